"""Tables of a gate run, and those that every kind of run shares: golden, builds, time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qsa_bench import row_tables
from qsa_bench.model import Build, Evidence, Status, Verdict
from qsa_bench.store import StoredRun
from qsa_bench.tables import (
    Cell,
    Column,
    Mark,
    Table,
    count,
    duration,
    pairs,
    row,
    shown,
    without_empty,
)

# A gate that fails everywhere is read from its first failures; all are in the run's files.
MOST_FAILURES = 20
# How the counts of a golden's rows are said; another stage's own counts are said by their names.
_COVERAGE = {
    "rows": "rows",
    "bitwise": "bitwise",
    "ties": "up to ties",
    "all_kept": "all-kept",
    "truncating": "truncating",
    # Of scores, that nothing is left is what a reader looks for.
    "left": "outside their bound",
    "reference_flips": "elements the reference rounded otherwise",
    "reference_unexplained": "of its scores unexplained by them",
}
_LOG_LINES = 12
# The check whose verdicts compare two targets (qsa_bench/against_host.py).
EMULATION = "emulation"


def tables(run: StoredRun) -> tuple[Table, ...]:
    """Return the tables of a gate run: the checks, the golden, what failed, how to see it again."""
    notes = run.run.notes
    made = [
        checks(run.verdicts),
        *emulation(run.verdicts),
        *golden(notes),
        *row_tables.tables(run.verdicts),
        *_headroom(notes),
        *blind(notes),
    ]
    failures = [verdict for verdict in run.verdicts if not verdict.passed]
    if failures:
        made.append(_failures(failures))
    commands = _texts(notes.get("replay_commands"))
    if commands:
        made.append(Table("replay", "to run a failing case alone", lines=commands))
    return tuple(made)


def checks(verdicts: Sequence[Verdict]) -> Table:
    """Return one row per stage and check, failed ones first."""
    groups: dict[tuple[str, str, str], list[Verdict]] = {}
    for verdict in verdicts:
        # Of a gate repeated, what passes again is one line.
        pooled = verdict.phase and verdict.passed
        name = "all that pass" if pooled else verdict.check
        groups.setdefault((verdict.stage, name, verdict.phase), []).append(verdict)
    rows = []
    for (stage, check, phase), group in groups.items():
        failed = [verdict for verdict in group if not verdict.passed]
        margins = [m for verdict in group if (m := verdict.evidence.margin) is not None]
        first = f"{failed[0].case}: {said(failed[0])}" if failed else ""
        # A case is judged more than once (plain, checked): it passes when every verdict does.
        cases = {verdict.case for verdict in group}
        failed_cases = {verdict.case for verdict in failed}
        cells = row(
            stage,
            check,
            phase,
            str(len(cases)),
            str(sum(verdict.runs for verdict in group)),
            str(len(cases) - len(failed_cases)),
            str(len(failed_cases)),
            max(margins, default=None),
            first,
            mark=Mark.BAD if failed else Mark.PLAIN,
        )
        rows.append((not failed, cells))
    rows.sort(key=lambda entry: entry[0])
    columns = (
        Column("stage", whole=True),
        Column("check", whole=True),
        Column("when", whole=True),
        Column("cases", right=True),
        Column("runs", right=True),
        Column("passed", right=True),
        Column("failed", right=True),
        Column("worst margin", right=True),
        Column("first failing case"),
    )
    # Bitwise checks measure no margin and a passing gate has no failing case.
    kept, cells_of = without_empty(columns, [cells for _, cells in rows])
    return Table("checks", "checks", kept, cells_of)


def emulation(verdicts: Iterable[Verdict]) -> tuple[Table, ...]:
    """Return, stage by stage, how the emulation's outputs compare with a device's."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.check == EMULATION:
            groups.setdefault(verdict.stage, []).append(verdict)
    rows = []
    for stage, group in groups.items():
        numbers = [verdict.evidence.numbers for verdict in group]
        compared, equal, endings = (
            round(sum(each.get(name, 0.0) for each in numbers))
            for name in ("comparisons", "equal", "endings")
        )
        outside = sum(verdict.evidence.count for verdict in group)
        # Not compared is no agreement.
        missing = sum(verdict.status.says_nothing for verdict in group)
        worst = max(group, key=lambda verdict: verdict.evidence.margin or 0.0)
        margin = worst.evidence.margin
        cells = row(
            stage,
            str(len(group)),
            str(compared),
            str(equal),
            str(outside),
            str(missing) if missing else "",
            str(endings),
            margin,
            f"{worst.case} {worst.evidence.where}" if margin else "",
            mark=Mark.BAD if outside or missing else Mark.PLAIN,
        )
        rows.append(cells)
    columns = (
        Column("stage", whole=True),
        Column("cases", right=True),
        Column("outputs compared", right=True),
        Column("equal bit for bit", right=True),
        Column("outside the bound", right=True),
        Column("cases not compared", right=True),
        Column("traps and refusals", right=True),
        Column("worst margin", right=True),
        Column("where"),
    )
    kept, cells_of = without_empty(columns, rows)
    title = "the emulation against the device: an output a case and order of threads"
    return (Table("emulation", title, kept, cells_of),) if rows else ()


def said(verdict: Verdict) -> str:
    """Return a verdict's status with its evidence in words."""
    text = evidence(verdict.evidence)
    if verdict.status is Status.WRONG and text:
        return text
    return f"{verdict.status}{': ' if text else ''}{text}"


def evidence(seen: Evidence) -> str:
    """Return evidence in words: how many differ, where first, want and got, how far off."""
    parts = []
    if seen.count:
        of = f" of {seen.total}" if seen.total else ""
        parts.append(f"{seen.count}{of} {seen.unit} differ")
    if seen.first:
        parts.append(f"first at {seen.first}")
    if seen.want or seen.got:
        parts.append(f"want {seen.want or 'nothing'}, got {seen.got or 'nothing'}")
    if seen.error is not None and seen.count:
        bound = f" (bound {shown(float(seen.bound))})" if seen.bound is not None else ""
        parts.append(f"worst error {shown(float(seen.error))}{bound}")
    if seen.where:
        parts.append(f"at {seen.where}")
    if seen.note:
        parts.append(seen.note)
    return ", ".join(parts)


def _failures(failures: Sequence[Verdict]) -> Table:
    columns = (Column("case"), Column("check"), Column("status", whole=True), Column("evidence"))
    rows = tuple(
        row(
            verdict.case,
            verdict.check,
            verdict.status,
            evidence(verdict.evidence),
            mark=Mark.BAD,
        )
        for verdict in failures[:MOST_FAILURES]
    )
    rest = len(failures) - MOST_FAILURES
    notes = (
        (Cell(f"and {rest} more, in the run's verdicts.parquet", Mark.WARN),) if rest > 0 else ()
    )
    return Table("failures", "what failed", columns, rows, notes)


def golden(notes: Mapping[str, Any]) -> tuple[Table, ...]:
    """Return which golden was used and what its rows covered; nothing where the run states none."""
    entries: list[tuple[str, str]] = []
    used = notes.get("golden")
    if isinstance(used, Mapping):
        entries += [(key, str(used[key])) for key in ("path", "digest") if used.get(key)]
        metadata = used.get("metadata")
        if isinstance(metadata, Mapping):
            entries.append(("made with", _provenance(metadata)))
    entries += coverage(notes.get("coverage"))
    return (pairs("golden", "golden", entries),) if entries else ()


def _provenance(metadata: Mapping[str, Any]) -> str:
    """Return who computed a golden: "transformers 5.16.1, torch 2.13.0, Linux-x86_64, seed 0"."""
    said = (("transformers_version", "transformers "), ("torch_version", "torch "))
    parts = [f"{prefix}{metadata[key]}" for key, prefix in said if metadata.get(key)]
    parts += [str(metadata["platform"])] if metadata.get("platform") else []
    return ", ".join([*parts, f"seed {metadata.get('seed', 'unknown')}"])


def coverage(counts: Any) -> list[tuple[str, str]]:
    """Return one line per stage: "133 rows, 129 bitwise, 4 up to ties, 128 all-kept, ..."."""
    if not isinstance(counts, Mapping):
        return []
    by_stage = counts if all(isinstance(v, Mapping) for v in counts.values()) else {"rows": counts}
    return [
        (
            str(stage),
            ", ".join(
                f"{number} {_COVERAGE.get(key, str(key).replace('_', ' '))}"
                for key, number in numbers.items()
                # What is no count of rows (bits that differ) is said when there is some.
                if number or key in _COVERAGE
            ),
        )
        for stage, numbers in by_stage.items()
        if numbers
    ]


def library(notes: Mapping[str, Any]) -> tuple[Table, ...]:
    """Return whose kernel was gated, where it is none of this repository's."""
    said = notes.get("library")
    if not isinstance(said, Mapping):
        return ()
    entries = [(str(key), str(value)) for key, value in said.items() if value]
    return (pairs("library", "a user's kernel", entries),)


def blind(notes: Mapping[str, Any]) -> tuple[Table, ...]:
    """Return the cases that a kernel which writes nothing passes; they prove nothing."""
    found = notes.get("blind_cases")
    cases = (
        [case for names in found.values() for case in names] if isinstance(found, Mapping) else []
    )
    if not cases:
        return ()
    title = "cases that a kernel which writes nothing passes"
    rows = tuple(row(case, mark=Mark.BAD) for case in cases)
    return (Table("blind", title, (Column("case"),), rows),)


def wavering(notes: Mapping[str, Any]) -> tuple[Table, ...]:
    """Return the cases in which the unmutated kernel gave two results in two runs."""
    found = notes.get("baseline")
    stages = found.values() if isinstance(found, Mapping) else ()
    cases = [case for stage in stages for case in stage.get("wavering", ())]
    if not cases:
        return ()
    title = "cases in which the unmutated kernel gave other bytes the second time"
    rows = tuple(row(case, mark=Mark.BAD) for case in cases)
    return (Table("wavering", title, (Column("case"),), rows),)


def _headroom(notes: Mapping[str, Any]) -> tuple[Table, ...]:
    found = notes.get("headroom")
    if not isinstance(found, Mapping) or not found:
        return ()
    return (pairs("headroom", "headroom (worst error / bound)", _flattened(found)),)


def _flattened(value: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for key, item in value.items():
        if isinstance(item, Mapping):
            yield from _flattened(item, f"{prefix}{key} ")
        else:
            yield f"{prefix}{key}", shown(item)


def builds(made: Sequence[Build], *, detail: bool) -> Table:
    """Return what was built; a failure's log stands below, cut to its first lines."""
    columns = (
        Column("kernel", whole=True),
        Column("target"),
        Column("mode"),
        Column("mutant"),
        Column("result", whole=True),
        Column("time", right=True, whole=True),
        Column("compiler"),
        Column("digest", whole=True),
    )
    rows = []
    lines: list[str] = []
    for build in made:
        result = "FAILED" if not build.ok else "unchanged" if build.cached else "built"
        rows.append(
            row(
                build.kernel,
                build.target,
                build.mode,
                build.mutant or "",
                result,
                duration(build.seconds),
                compiler(build.compiler),
                build.digest[:12],
                mark=Mark.PLAIN if build.ok else Mark.BAD,
            )
        )
        log = build.log.strip().splitlines()
        if log and not build.ok:
            lines += [f"{build.kernel}, {build.target} {build.mode}:", *log[:_LOG_LINES]]
            if len(log) > _LOG_LINES:
                lines.append(f"... {count(len(log) - _LOG_LINES, 'line')} more")
    return Table("builds", "builds", columns, tuple(rows), lines=tuple(lines), detail=detail)


def unavailable(notes: Mapping[str, Any]) -> tuple[Table, ...]:
    """Return the kernels that this toolkit can't build, and what it lacks; they were not built."""
    found = notes.get("unavailable")
    if not isinstance(found, Mapping) or not found:
        return ()
    entries = [(str(kernel), str(why)) for kernel, why in found.items()]
    return (pairs("unavailable", "not built: this toolkit lacks what they need", entries),)


def compiler(line: str) -> str:
    """Return a compiler's version line in two words: "g++ 12.2.0", "nvcc 13.0"."""
    release = re.search(r"release (\S+?),", line)
    if release:
        return f"nvcc {release[1]}"
    words = line.split()
    return f"{words[0]} {words[-1]}" if words else line


def timing(notes: Mapping[str, Any]) -> tuple[Table, ...]:
    """Return where the time went, where the run says so; names end in _seconds or their unit."""
    spent = notes.get("timing")
    if not isinstance(spent, Mapping) or not spent:
        return ()
    entries = [
        (name.removesuffix("_seconds"), duration(float(value)))
        if name.endswith("_seconds")
        else (name, value)
        for name, value in _flattened(spent)
    ]
    return (pairs("timing", "where the time went", entries, detail=True),)


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence):
        return ()
    return tuple(str(item) for item in value)
