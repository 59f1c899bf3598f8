"""Lists what there is: stages, kernels, cases, checks, clauses, mutants, goldens, runs, codes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from qsa_bench import checks, goldens, resources, store
from qsa_bench.errors import RunFileError
from qsa_bench.exit_codes import ExitCode
from qsa_bench.requests import Listing, ListRequest, Progress
from qsa_bench.stages import select_stages
from qsa_bench.stages.base import Stage

_Rows = Iterable[Sequence[str]]


def run(request: ListRequest, _progress: Progress) -> Listing:
    """Return the list that was asked for, in the order of the registries."""
    columns, make = _LISTS[request.what]
    rows = tuple(tuple(row) for row in make(request))
    return Listing(request.what, columns, rows, _SHOWN.get(request.what))


def _stages(request: ListRequest) -> _Rows:
    for stage in select_stages(request.stages):
        yield (stage.name, stage.summary, stage.golden_kind or "none", str(len(stage.kernels)))


def _kernels(request: ListRequest) -> _Rows:
    seen: dict[str, Sequence[str]] = {}
    for stage in select_stages(request.stages):
        for kernel in stage.kernels:
            entries = ", ".join(entry.symbol for entry in kernel.entries)
            seen[kernel.name] = (kernel.name, kernel.source, entries, ", ".join(kernel.targets))
    return seen.values()


def _cases(request: ListRequest) -> _Rows:
    for stage in select_stages(request.stages):
        for case in stage.cases(_golden(stage, request.golden)):
            if request.target in case.targets:
                checked = "yes" if case.checked else "no"
                reserve = "yes" if case.reserve else "no"
                clauses = ", ".join(case.clauses)
                yield (case.id, case.schedules, checked, clauses, case.family, reserve)


def _golden(stage: Stage, path: Path | None) -> goldens.Golden | None:
    if stage.golden_kind is None:
        return None
    return goldens.load(path or goldens.committed(stage.golden_kind), stage.golden_kind)


def _checks(request: ListRequest) -> _Rows:
    for stage in select_stages(request.stages):
        for name, sentence in checks.checks_on(stage, request.target).items():
            yield (name, stage.name, sentence)


def _named(which: Callable[[Stage], Mapping[str, str]]) -> Callable[[ListRequest], _Rows]:
    def rows(request: ListRequest) -> _Rows:
        for stage in select_stages(request.stages):
            for name, sentence in which(stage).items():
                yield (name, stage.name, sentence)

    return rows


def _mutants(request: ListRequest) -> _Rows:
    from qsa_bench import mutants

    root = resources.tree_root()
    for stage in select_stages(request.stages):
        for mutant in mutants.load(root, stage.name, stage.clauses, checks.checks_of(stage)):
            if request.target in mutant.targets:
                killers = ", ".join(mutant.killed_by)
                yield (mutant.id, mutant.expect, mutant.proves, killers, mutant.clause)


def _goldens(_request: ListRequest) -> _Rows:
    for kind in goldens.kinds():
        path = goldens.committed(kind)
        yield (kind, str(path), f"{path.stat().st_size:,}")


def _runs(request: ListRequest) -> _Rows:
    """List run folders, newest first; one that can't be read is listed as that."""
    for folder in reversed(store.run_folders(request.results)):
        try:
            record = store.read_summary(folder)
        except RunFileError as error:
            yield (folder.name, "", "unreadable", str(error))
            continue
        ending = str(record.run.exit_code) if record.complete else "no end"
        yield (
            folder.name,
            record.run.command,
            ending,
            f"{record.run.done} of {record.run.asked} done",
        )


def _exit_codes(_request: ListRequest) -> _Rows:
    for code in ExitCode:
        yield (str(int(code)), code.name.lower().replace("_", " "), code.sentence)


_LISTS: Mapping[str, tuple[tuple[str, ...], Callable[[ListRequest], _Rows]]] = {
    "stages": (("stage", "summary", "golden", "kernels"), _stages),
    "kernels": (("kernel", "source", "entries", "targets"), _kernels),
    "cases": (("case", "orders", "checker", "clauses", "family", "reserve"), _cases),
    "checks": (("check", "stage", "what it holds"), _checks),
    "clauses": (("clause", "stage", "what it says"), _named(lambda stage: stage.clauses)),
    "mutants": (("mutant", "expect", "proves", "killed by", "clause"), _mutants),
    "goldens": (("kind", "path", "bytes"), _goldens),
    "runs": (("run", "command", "exit code", "done"), _runs),
    "exit-codes": (("code", "name", "meaning"), _exit_codes),
}

# More columns of a mutant would leave its sentence no room; a case's name holds its family.
_SHOWN = {"mutants": 3, "cases": 4}
