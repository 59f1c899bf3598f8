"""Tables of a comparison of two runs."""

from __future__ import annotations

from collections import Counter

from qsa_bench.compare_campaigns import CampaignComparison
from qsa_bench.compare_runs import Change, Compared, Comparison
from qsa_bench.exit_codes import ExitCode
from qsa_bench.tables import Cell, Column, Mark, Page, Table, count, row

_US = 1000.0
_MARKS = {
    Change.SLOWER: Mark.BAD,
    Change.FASTER: Mark.GOOD,
    Change.UNDECIDED: Mark.WARN,
    Change.SAME: Mark.PLAIN,
}
# What needs a look stands first.
_ORDER = (Change.SLOWER, Change.UNDECIDED, Change.FASTER, Change.SAME)


def page(comparison: Comparison) -> Page:
    """Return the page of a comparison."""
    made = [table for table in (_times(comparison), _growths(comparison)) if table is not None]
    code = comparison.exit_code
    tone = Mark.GOOD if code is ExitCode.OK else Mark.BAD
    ending = "ok" if code is ExitCode.OK else f"FAILED (exit {int(code)}: {code.sentence})"
    return Page(Cell(f"compare {ending}: {_counts(comparison)}", tone), tuple(made))


def _counts(comparison: Comparison) -> str:
    if comparison.kind == "build":
        too_much = sum(growth.too_much for growth in comparison.growths)
        return (
            f"{count(len(comparison.growths), 'number')} changed, {too_much} beyond "
            f"{comparison.max_growth:.0%}"
        )
    changes = Counter(compared.change for compared in comparison.rows)
    said = ", ".join(f"{changes[change]} {change}" for change in _ORDER if changes[change])
    return f"{said} (allowed {comparison.max_slowdown:.0%})"


def _times(comparison: Comparison) -> Table | None:
    if not comparison.rows:
        return None
    rows = sorted(comparison.rows, key=lambda compared: _ORDER.index(compared.change))
    columns = (
        Column("verdict", whole=True),
        Column("case"),
        Column("what"),
        Column("timer", whole=True),
        Column("cache", whole=True),
        Column("old us", right=True),
        Column("new us", right=True),
        Column("new / old", right=True),
    )
    return Table(
        "compare",
        f"{comparison.old.id} against {comparison.new.id}, on {comparison.new.device}",
        columns,
        tuple(_row(compared) for compared in rows),
        _notes(comparison),
    )


def _row(compared: Compared) -> tuple[Cell, ...]:
    ratio = compared.ratio
    said = compared.why if ratio is None else f"{ratio.low:.3f} to {ratio.high:.3f}"
    return row(
        Cell(str(compared.change), _MARKS[compared.change]),
        compared.new.case,
        compared.new.name,
        compared.new.timer,
        compared.new.cache,
        *(
            "-" if value is None else f"{value / _US:.3f}"
            for value in (compared.old_ns, compared.new_ns)
        ),
        said,
    )


def _notes(comparison: Comparison) -> tuple[Cell, ...]:
    said = []
    if comparison.only_old:
        said.append(f"{count(len(comparison.only_old), 'measurement')} only in the old run")
    if comparison.only_new:
        said.append(f"{count(len(comparison.only_new), 'measurement')} only in the new run")
    if comparison.drift is not None:
        said.append(f"what did not change (peers, calibration) took {comparison.drift:.3f} of it")
    return tuple(Cell(text, Mark.WARN) for text in (*said, *comparison.notes))


def _growths(comparison: Comparison) -> Table | None:
    if comparison.kind != "build":
        return None
    rows = tuple(
        row(
            growth.usage.kernel,
            growth.usage.name,
            f"sm_{growth.usage.architecture}",
            growth.field.replace("_", " "),
            str(growth.old),
            str(growth.new),
            Cell("too much", Mark.BAD) if growth.too_much else "allowed",
        )
        for growth in comparison.growths
    )
    columns = (
        Column("kernel", whole=True),
        Column("entry"),
        Column("architecture", whole=True),
        Column("number", whole=True),
        Column("old", right=True),
        Column("new", right=True),
        Column("verdict", whole=True),
    )
    title = f"{comparison.old.id} against {comparison.new.id}: what kernels use"
    return Table("growth", title, columns, rows, _notes(comparison))


def campaign_page(comparison: CampaignComparison) -> Page:
    """Return the page of two campaigns: new survivors first."""
    columns = (Column("what", whole=True), Column("mutant"), Column("outcome now", whole=True))
    told = (
        ("new survivor", comparison.appeared, Mark.BAD),
        ("not known", comparison.unknown, Mark.WARN),
        ("survivor still", comparison.remaining, Mark.WARN),
        ("fixed", comparison.fixed, Mark.GOOD),
    )
    rows = tuple(
        row(Cell(what, mark), result.mutant.id, result.outcome)
        for what, results, mark in told
        for result in results
    )
    notes = tuple(
        Cell(f"{count(number, 'mutant')} only in the {word} campaign", Mark.WARN)
        for word, number in (("old", comparison.only_old), ("new", comparison.only_new))
        if number
    )
    title = f"{comparison.old.id} against {comparison.new.id}, on {comparison.new.target}"
    code = comparison.exit_code
    ending = "ok" if code is ExitCode.OK else f"FAILED (exit {int(code)}: {code.sentence})"
    said = ", ".join(f"{len(results)} {what}" for what, results, _ in told)
    headline = Cell(f"compare {ending}: {said}", Mark.GOOD if code is ExitCode.OK else Mark.BAD)
    return Page(headline, (Table("compare", title, columns, rows, notes),))
