"""The unmutated kernel's gate, and the proof that the gate is not blind.

Shared by gate and mutate: cases are spread over threads, each with a child of its own; results
are put back in the cases' order, so that the number of threads never shows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from qsa_bench import checks, derivations, mutants, resources
from qsa_bench.builder import Builder
from qsa_bench.errors import BuildError, GoldenError, ManifestError, NothingSelectedError
from qsa_bench.goldens import Golden, committed, kinds, load
from qsa_bench.model import Mutant
from qsa_bench.parity import (
    MOST_CONTEXTS,
    PLAIN,
    Limits,
    Seen,
    StageBuilds,
    Workload,
    build_stage,
    modes_of,
)
from qsa_bench.runner import HOST
from qsa_bench.stages import select_stages
from qsa_bench.stages.base import Case, Stage

# How soon an interrupt is noticed that came at a bad moment.
_POLL_S = 0.2
T = TypeVar("T")


class Goldens:
    """The golden a run uses for each kind: the user's file for its own kind, else the committed."""

    def __init__(self, path: Path | None, stages: Sequence[str] = ()) -> None:
        """`stages` are those asked for: what their kinds say of a bad file is what counts."""
        self._given: Golden | None = None
        if path is not None:
            asked = {stage.golden_kind for stage in select_stages(stages)} if stages else set()
            self._given = _load_any(path, asked)
        self._loaded: dict[str, Golden] = {}

    def stages(self, names: Sequence[str]) -> tuple[Stage, ...]:
        """Return the named stages (all if none); with a user's golden those that read its kind.

        NothingSelectedError when a named stage reads another kind.
        """
        chosen = select_stages(names)
        if self._given is None:
            return chosen
        reading = tuple(stage for stage in chosen if stage.golden_kind == self._given.kind)
        if not reading:
            raise NothingSelectedError(
                f"selecting stages for {self._given.path}: it is a {self._given.kind} golden, "
                f"which {', '.join(stage.name for stage in chosen)} does not read"
            )
        return reading

    def of(self, stage: Stage) -> Golden | None:
        """Return the golden a stage reads, or None when it reads none."""
        kind = stage.golden_kind
        if kind is None:
            return None
        if self._given is not None and self._given.kind == kind:
            return self._given
        if kind not in self._loaded:
            self._loaded[kind] = load(committed(kind), kind)
        return self._loaded[kind]


def _load_any(path: Path, first: Collection[str | None]) -> Golden:
    """Load a golden of whatever kind it is, trying the kinds of `first` before the others."""
    problems: list[GoldenError] = []
    for kind in sorted(kinds(), key=lambda kind: kind not in first):
        try:
            return load(path, kind)
        except GoldenError as error:
            problems.append(error)
    # The kind that got furthest says what is wrong; the others only say that it is not theirs.
    raise next((error for error in problems if "not a " not in str(error)), problems[0])


def read_mutants(stage: Stage, auto: bool = False) -> list[Mutant]:
    """Read and validate all mutants of a stage; ManifestError lists what is wrong.

    With `auto` the automatic ones come after those written by hand.
    """
    root = resources.tree_root()
    by_hand = mutants.load(root, stage.name, stage.clauses, checks.checks_of(stage))
    if not auto:
        return by_hand
    kept_in = resources.cache_root() / "derived"
    return [*by_hand, *derivations.derive(root, stage.name, stage.kernels, kept_in).mutants]


def read_control(stage: Stage) -> Mutant:
    """Read the control that writes nothing alone; ManifestError when it is missing or stale.

    A kernel under work makes other mutants stale; that is no reason not to gate it.
    """
    found = mutants.load(
        resources.tree_root(),
        stage.name,
        stage.clauses,
        checks.checks_of(stage),
        only=mutants.WRITES_NOTHING,
    )
    return writes_nothing(found, stage)


def build_or_raise(
    builder: Builder,
    stage: Stage,
    target: str,
    *,
    short: bool = False,
    modes: Sequence[str] = (),
    flags: Sequence[str] = (),
) -> StageBuilds:
    """Build the production kernels of a stage; BuildError with the compiler's first lines.

    In every mode of the target unless some are named; `flags` as of build_stage().
    """
    root = resources.tree_root()
    modes = modes or modes_of(target)
    builds = build_stage(builder, stage.kernels, target, root, modes, short=short, flags=flags)
    failure = builds.failure
    if failure is not None:
        raise BuildError(
            f"building {failure.kernel} for {target} ({failure.mode}): it does not compile:\n"
            f"{failure.log.strip()}"
        )
    return builds


def build_ahead(
    builder: Builder, stages: Iterable[Stage], target: str, modes: Sequence[str], jobs: int
) -> None:
    """Build the kernels of several stages side by side, each once, into the cache.

    One that does not compile is told of when its stage is built.
    """
    kernels = {kernel.name: kernel for stage in stages for kernel in stage.kernels}
    root = resources.tree_root()
    with ThreadPoolExecutor(jobs) as pool:
        futures = [
            pool.submit(builder.build, kernel, target, root=root, mode=mode)
            for kernel in kernels.values()
            for mode in modes
        ]
        try:
            for future in as_they_end(futures):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def as_they_end(
    futures: Iterable[Future[T]], meanwhile: Callable[[], None] = lambda: None
) -> Iterator[Future[T]]:
    """Yield futures as they end, for a main thread that wants to be interrupted.

    `meanwhile` is called again and again while it waits.
    A signal that comes while a thread is about to wait for a lock, which may last while others
    hold the interpreter, does not end that wait: so none of these waits is a long one.
    """
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=_POLL_S, return_when=FIRST_COMPLETED)
        meanwhile()
        yield from done


@contextmanager
def stoppable_pool(jobs: int, stop: Callable[[], None]) -> Iterator[ThreadPoolExecutor]:
    """Yield a pool of `jobs` threads; what ends the block early calls `stop`, and what waits never begins.

    `stop` has to end what is under way.
    """
    pool = ThreadPoolExecutor(jobs)
    try:
        yield pool
    except BaseException:
        stop()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def gate_in_parallel(
    workload: Workload,
    builds: StageBuilds,
    jobs: int,
    limits: Limits | None = None,
    on_case: Callable[[int], None] | None = None,
    cases: Sequence[Case] | None = None,
    phase: str = "",
    *,
    judged: bool = True,
) -> Seen:
    """Gate a workload with `jobs` children; `on_case(n)` is told of finished cases.

    On a device there are no more children than it makes contexts for, and no case that must trap
    begins before every other has ended. `cases` narrow the workload, `phase` is told by the
    verdicts; not `judged`, the outputs' digests are all that is found.
    """

    def gate(share: Sequence[Case]) -> Seen:
        seen = workload.gate(builds, limits, cases=share, phase=phase, judged=judged)
        if on_case is not None:
            on_case(len(share))
        return seen

    if workload.target != HOST:
        jobs = min(jobs, MOST_CONTEXTS)
    chosen = workload.cases if cases is None else list(cases)
    last = [] if workload.target == HOST else workload.trapping
    kept_back = {case.id for case in last}
    first = [case for case in chosen if case.id not in kept_back]
    parts: list[Seen] = []
    with ThreadPoolExecutor(jobs) as pool:
        try:
            for wave in (first, [case for case in chosen if case.id in kept_back]):
                # Dealt like cards, so that neighbours of one family, which cost alike, are spread.
                shares = [wave[index::jobs] for index in range(jobs)]
                futures = [pool.submit(gate, share) for share in shares if share]
                for future in as_they_end(futures):
                    future.result()
                parts += [future.result() for future in futures]
        except BaseException:
            workload.stopped.set()
            raise
    place = {case.id: index for index, case in enumerate(workload.cases)}
    verdicts = [verdict for part in parts for verdict in part.verdicts]
    verdicts.sort(key=lambda verdict: place[verdict.case])
    digests = {case: seen for part in parts for case, seen in part.digests.items()}
    return Seen(
        verdicts,
        dict(sorted(digests.items(), key=lambda item: place[item[0]])),
        Limits(
            {key: fuel for part in parts for key, fuel in part.limits.fuel.items()},
            {key: limit for part in parts for key, limit in part.limits.seconds.items()},
        ),
    )


def writes_nothing(stage_mutants: Sequence[Mutant], stage: Stage) -> Mutant:
    """Return the stage's control that writes nothing; ManifestError when it has none."""
    wanted = f"{stage.name}/{mutants.WRITES_NOTHING}"
    for mutant in stage_mutants:
        if mutant.id == wanted:
            return mutant
    raise ManifestError(
        f"looking for the control that writes nothing: mutations/{wanted}.patch is missing; "
        "without it nothing shows that the gate is not blind"
    )


def blind_cases(
    workload: Workload,
    control: Mutant,
    builder: Builder,
    limits: Limits,
    *,
    short: bool = False,
) -> list[str]:
    """Return the cases that a kernel which writes nothing passes though it owes bytes.

    An empty list is the proof that every case looks at what was written. A case that a gate gave up,
    after many others that cost it the device, is gated again.
    """
    writing = [case for case in workload.cases if case.writes]
    with tempfile.TemporaryDirectory(prefix="qsa-bench-control-") as scratch:
        tree = mutants.apply(control, resources.tree_root(), Path(scratch))
        builds = build_stage(
            builder,
            workload.stage.kernels,
            workload.target,
            tree.root,
            (PLAIN,),
            control.id,
            short=short,
        )
        failure = builds.failure
        if failure is not None:
            raise ManifestError(f"building {control.id}: it does not compile:\n{failure.log}")
        python_path = (tree.root,) if tree.python else ()
        failed: set[str] = set()
        waiting = writing
        while waiting:
            seen = workload.gate(builds, limits, python_path, waiting, (PLAIN,))
            told = [verdict for verdict in seen.verdicts if not verdict.status.says_nothing]
            failed |= {verdict.case for verdict in told if not verdict.passed}
            answered = {verdict.case for verdict in told}
            if not answered:
                break
            waiting = [case for case in waiting if case.id not in answered]
    return [case.id for case in writing if case.id not in failed]
