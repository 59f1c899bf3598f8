"""merge: the shards of one campaign as one run; builds and runs nothing."""

from __future__ import annotations

from qsa_bench import campaign_notes, merging, store
from qsa_bench.campaign_requests import MergeRequest
from qsa_bench.exit_codes import ExitCode, combine
from qsa_bench.model import Outcome
from qsa_bench.requests import Progress
from qsa_bench.stages import select_stages
from qsa_bench.store import RunWriter, StoredRun


def run(request: MergeRequest, _progress: Progress) -> StoredRun:
    """Write the merged run and return it; its exit code is that of the whole campaign."""
    shards = [store.open_run(name, request.results) for name in request.runs]
    merged = merging.merge(shards)
    first = shards[0].run
    results = merged.results
    codes = [ExitCode(shard.run.exit_code) for shard in shards]
    if len(results) != merged.listed or any(r.outcome is Outcome.NOT_RUN for r in results):
        codes.append(ExitCode.INCOMPLETE)
    if any(not result.as_expected for result in results):
        codes.append(ExitCode.MUTATION_MISMATCH)
    names = list(dict.fromkeys(result.mutant.stage for result in results))
    done = {result.mutant.id for result in results}
    never_run = merged.listed - len(done)
    notes = campaign_notes.conclude(
        select_stages(names), results, merged.kills, never_run, merged.whole, first.target
    )
    notes["merged"] = [shard.run.id for shard in shards]
    notes["timing"] = {
        f"shard {number}": {"seconds": shard.run.seconds} for number, shard in enumerate(shards, 1)
    }
    with RunWriter.create(
        request.results, "mutate", request.argv, first.target, first.device, merged.listed
    ) as writer:
        writer.add_verdicts(merged.verdicts)
        writer.add_builds(merged.builds)
        writer.add_sources(merged.sources)
        writer.add_mutants(results)
        writer.add_kills(merged.kills)
        return writer.finish(merged.listed, len(results), combine(codes), notes)
