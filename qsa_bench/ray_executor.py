"""Mutants spread over a Ray cluster: chunks as tasks, each run as a campaign of its own there.

A task on a machine with GPUs has one to itself. Ray runs the tasks of a worker or node that was
lost again elsewhere; a mutant is deterministic, so that changes no result. Every node needs this
package installed; outcomes are kept on each for itself.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from qsa_bench.campaign_requests import MutateRequest
from qsa_bench.errors import EnvironmentMissingError, IncompleteError, QsaBenchError
from qsa_bench.model import Mutant
from qsa_bench.requests import NullProgress
from qsa_bench.store import StoredRun

# A task of several mutants gates the production kernel once; more tasks than processors even out.
_MOST_IN_A_TASK = 8
_TASKS_A_PROCESSOR = 3
_RETRIES = 5


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise EnvironmentMissingError(
            "spreading mutants over a cluster: ray is not installed; pip install 'qsa-bench[ray]'"
        ) from None
    return ray


def run(
    request: MutateRequest, chosen: Sequence[Mutant], address: str | None
) -> Iterator[StoredRun]:
    """Yield the runs of the chunks as they end; their mutants are those of `chosen`, each once.

    `address` is a cluster's; None starts one on this machine. EnvironmentMissingError without ray
    or a cluster, IncompleteError for a chunk whose workers were lost over and over.
    """
    # Ray tells of a node that died on stdout, which is for the answer alone.
    with contextlib.redirect_stdout(sys.stderr):
        yield from _run(_ray(), request, chosen, address)


def _run(
    ray: Any, request: MutateRequest, chosen: Sequence[Mutant], address: str | None
) -> Iterator[StoredRun]:
    began = not ray.is_initialized()
    if began:
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise EnvironmentMissingError(
                f"joining the Ray cluster {address or 'of this machine'}: {error}"
            ) from None
    try:
        processors = int(ray.cluster_resources().get("CPU", 1))
        resources = {"num_cpus": 1, "num_gpus": int(request.target == "cuda")}
        task = ray.remote(**resources, max_retries=_RETRIES)(_chunk)
        pending = [
            task.remote(request, [mutant.id for mutant in part])
            for part in _parts(chosen, processors)
        ]
        while pending:
            (ended,), pending = ray.wait(pending, num_returns=1)
            try:
                answer = ray.get(ended)
            except ray.exceptions.RayTaskError as error:
                raise error.as_instanceof_cause() from None
            except ray.exceptions.RayError as error:
                raise IncompleteError(
                    f"running mutants on the Ray cluster: a task was lost {_RETRIES} times ({error})"
                ) from None
            if isinstance(answer, QsaBenchError):
                raise answer
            yield answer
    finally:
        if began:
            ray.shutdown()


def _parts(chosen: Sequence[Mutant], processors: int) -> Iterator[Sequence[Mutant]]:
    """Yield chunks of one stage each: a chunk gates one production kernel."""
    size = len(chosen) // (processors * _TASKS_A_PROCESSOR)
    size = min(max(size, 1), _MOST_IN_A_TASK)
    for stage in dict.fromkeys(mutant.stage for mutant in chosen):
        own = [mutant for mutant in chosen if mutant.stage == stage]
        for first in range(0, len(own), size):
            yield own[first : first + size]


def _chunk(request: MutateRequest, ids: list[str]) -> StoredRun | QsaBenchError:
    """Run a few mutants where Ray put this; each is built and run in children, as ever."""
    local = replace(
        request,
        stages=(ids[0].partition("/")[0],),
        id_globs=tuple(_literal(name) for name in ids),
        operators=(),
        in_diff=None,
        sample=None,
        shard=None,
        executor="local",
        address=None,
        jobs=1,
        results=None,
    )
    try:
        answer: StoredRun = importlib.import_module("qsa_bench.commands.mutate").run(
            local, NullProgress()
        )
    except QsaBenchError as error:
        return error
    return answer


def _literal(name: str) -> str:
    """Return a glob that matches one id alone."""
    return "".join(f"[{letter}]" if letter in "[*?" else letter for letter in name)
