"""Tables of an audit: the smallest fault each check sees, and the false alarms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qsa_bench import stats
from qsa_bench.sensitivity import GATE, Alarms, Strength
from qsa_bench.side_by_side import SideBySide, TargetScore
from qsa_bench.store import StoredRun
from qsa_bench.tables import Cell, Column, Mark, Table, count, row

_DIALS = "scale: times 1 + e or 1 - e; bias: k units in the last place; corrupt: one of N elements."


def tables(run: StoredRun) -> list[Table]:
    """Return the tables of an audit, stage by stage."""
    made: list[Table] = []
    stages = [r.stage for r in run.strengths] + [r.stage for r in run.alarms]
    for stage in dict.fromkeys(stages):
        strengths = [record for record in run.strengths if record.stage == stage]
        alarms = [record for record in run.alarms if record.stage == stage]
        if strengths:
            made.append(_strengths(stage, strengths))
        if alarms:
            made.append(alarm_table(stage, alarms))
    failed = run.run.notes.get("failed")
    if isinstance(failed, list):
        notes = tuple(Cell(str(line), Mark.BAD) for line in failed)
        made.append(Table("failed", "the production kernel fails its gate", notes=notes))
    return made


def beside(sides: SideBySide) -> list[Table]:
    """Return the score of each target, and the false alarms of the stages beside it."""
    columns = (
        Column("stage", whole=True),
        Column("gate on", whole=True),
        Column("killed of what exists", right=True, whole=True),
        Column("by it alone", right=True),
        Column("survived", right=True),
        Column("not to be seen there", right=True),
        Column("not run", right=True),
    )
    rows = tuple(_target_row(score) for score in sides.scores)
    notes = tuple(Cell(note, Mark.WARN) for note in sides.notes)
    made = [Table("targets", "score by target, not merged", columns, rows, notes)] if rows else []
    for stage in dict.fromkeys(record.stage for record in sides.alarms):
        made.append(alarm_table(stage, [row for row in sides.alarms if row.stage == stage]))
    return made


_NAMES = {"host": "the CPU", "cuda": "the GPU"}


def _target_row(score: TargetScore) -> tuple[Cell, ...]:
    where = _NAMES[score.target]
    if score.share is None:
        said = Cell(f"no run given ({score.exists} exist)", Mark.WARN)
        return (*row(score.stage, where), said, *row("", "", "", ""))
    killed = f"{score.killed} of {score.exists} ({score.share:.1%})"
    rest = (score.alone, score.survived, score.unseen, score.not_run)
    return row(score.stage, where, killed, *(str(number) for number in rest))


def counts(run: StoredRun) -> str:
    """Return "5 dials, 1 turns back; 0 false alarms of 120 trials"."""
    gate = [record for record in run.strengths if record.check == GATE]
    said = count(len(gate), "dial")
    unseen = sum(record.caught is None for record in gate)
    said += f", {unseen} never seen" if unseen else ""
    if run.alarms:
        trials = sum(record.trials for record in run.alarms)
        alarms = sum(record.alarms for record in run.alarms)
        said += f"; {count(alarms, 'false alarm')} of {count(trials, 'trial')}"
    return said


def _strengths(stage: str, records: Sequence[Strength]) -> Table:
    columns = (
        Column("dial", whole=True),
        Column("check", whole=True),
        Column("smallest seen", right=True, whole=True),
        Column("next, missed", right=True, whole=True),
        Column("seen of", right=True, whole=True),
        Column("monotone"),
    )
    rows = []
    for record in records:
        never = record.caught is None
        mark = Mark.DIM if never else Mark.PLAIN
        if record.check == GATE:
            mark = Mark.BAD if never else Mark.GOOD
        rows.append(
            row(
                record.dial if record.check == GATE else "",
                "all together" if record.check == GATE else record.check,
                "never" if never else record.told,
                record.missed_told or "(least there is)",
                f"{record.hits} of {record.repeats}" if record.missed_told else "",
                Cell("yes") if record.monotone else Cell(f"no: {record.turns}", Mark.WARN),
                mark=mark,
            )
        )
    note = f"{_DIALS} Seen: in every repeat, by some case."
    title = f"the smallest fault that {stage}'s gate sees"
    return Table("strength", title, columns, tuple(rows), (Cell(note, Mark.DIM),))


def alarm_table(stage: str, records: Sequence[Alarms]) -> Table:
    """Return the false alarms of a stage by build, with the interval of their share."""
    rows = [_alarm_row(record.kind, record.build, [record]) for record in records]
    rows.append(_alarm_row("all", "", records))
    columns = (
        Column("differs in", whole=True),
        Column("build", whole=True),
        Column("alarms", right=True, whole=True),
        Column("95% interval", right=True, whole=True),
        Column("first"),
    )
    note = Cell(f"Right builds on fresh seeds; inputs: {records[0].inputs}.", Mark.DIM)
    title = f"false alarms of {stage}'s gate"
    return Table("alarms", title, columns, tuple(rows), (note,))


def _alarm_row(kind: str, build: str, records: Iterable[Alarms]) -> tuple[Cell, ...]:
    held = list(records)
    trials = sum(record.trials for record in held)
    alarms = sum(record.alarms for record in held)
    share = stats.exact_interval(alarms, trials) if trials else None
    return row(
        kind,
        build,
        f"{alarms} of {trials}",
        f"{share.low:.2%} to {share.high:.2%}" if share else "no trial",
        next((record.first for record in held if record.first), ""),
        mark=Mark.BAD if alarms or not trials else Mark.PLAIN,
    )
