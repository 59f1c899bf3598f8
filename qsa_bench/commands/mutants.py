"""The mutants that a campaign would run, listed or shown as diffs; builds and runs nothing."""

from __future__ import annotations

from qsa_bench import baseline, patches, selection
from qsa_bench.campaign_requests import MutantDiffs, MutantsRequest
from qsa_bench.model import Mutant
from qsa_bench.requests import Listing, Progress

_COLUMNS = ("mutant", "expect", "place", "proves")
# The sentence of an automatic mutant says no more than its operator; JSON has it.
_SHOWN = 3


def run(request: MutantsRequest, _progress: Progress) -> Listing | MutantDiffs:
    """Return the chosen mutants; NothingSelectedError where there is none."""
    campaign = request.campaign
    goldens = baseline.Goldens(campaign.golden, campaign.stages)
    found = [
        mutant
        for stage in goldens.stages(campaign.stages)
        for mutant in baseline.read_mutants(stage, campaign.auto)
        if campaign.target in mutant.targets
    ]
    chosen = selection.choose(found, *selection.asked_by(campaign))
    if request.diffs:
        return MutantDiffs(chosen.mutants)
    rows = tuple((m.id, str(m.expect), _place(m), m.proves) for m in chosen.mutants)
    return Listing("mutants", _COLUMNS, rows, _SHOWN)


def _place(mutant: Mutant) -> str:
    """Return the file and the first line that a mutant changes."""
    return ", ".join(f"{path}:{line}" for path, line, _ in patches.places(mutant.patch))
