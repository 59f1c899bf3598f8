"""Tables of a mutation run: the mutants, the negative controls, the kill matrix, the checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from string import ascii_letters
from typing import Any

from qsa_bench import campaign_numbers, outcomes, stats
from qsa_bench.model import Kill, Mutant, MutantResult, Outcome
from qsa_bench.store import StoredRun
from qsa_bench.tables import Cell, Column, Mark, Table, row, shown, without_empty

# What a cell of the kill matrix shows; the legend under it says the same.
NAMED_KILL, OTHER_KILL, NAMED_SILENT, SILENT, NOT_RUN = "X", "x", "!", ".", ""
_LEGEND = (
    f"{NAMED_KILL} killed, and its manifest names this check; {OTHER_KILL} killed too; "
    f"{NAMED_SILENT} named, but saw nothing; {SILENT} saw nothing; blank: not run"
)
_LEFT_OUT_OF_RUNS = (
    "cases: those in every run; the others hung or lost the device, or came after such, "
    "and are not counted in the share"
)
_SCORED = ("killed", "expected_crash", "expected_timeout")
_LEFT_OUT = ("equivalent", "unviable", "gpu_only", "host_only")


def tables(run: StoredRun) -> tuple[Table, ...]:
    """Return the tables of a mutation run, stage by stage."""
    made: list[Table] = []
    results = sorted(run.mutants, key=lambda result: (result.as_expected, result.mutant.id))
    for stage in dict.fromkeys(result.mutant.stage for result in run.mutants):
        own = [result for result in results if result.mutant.stage == stage]
        made.append(_mutants(stage, own))
        made.append(_sentences(stage, own))
        made.extend(_races(stage, own))
        controls = [r for r in own if r.mutant.control or r.mutant.differing_bits is not None]
        if controls:
            made.append(_controls(stage, controls))
        kills = [kill for kill in run.kills if _stage(kill.mutant) == stage]
        if kills:
            made.extend(_matrix(stage, own, kills))
            made.extend(campaign_numbers.tables(stage, own, kills))
    gaps = _gaps(run.run.notes)
    if gaps:
        made.append(Table("gaps", "what the mutants leave untested", notes=gaps))
    return tuple(made)


def short_id(mutant: Mutant) -> str:
    """Return a mutant's id without its stage."""
    return mutant.id.removeprefix(f"{mutant.stage}/")


def _stage(mutant_id: str) -> str:
    return mutant_id.partition("/")[0]


def score(notes: Mapping[str, Any]) -> str:
    """Return "score 30/30 (100%): ..." with every count; "" where the run states no score.

    The score is absent when everything was left out of it: 0 of 0 is no 100%.
    """
    counts = notes.get("score")
    if not isinstance(counts, Mapping) or "all" not in counts:
        return ""
    killed = sum(int(counts.get(key, 0)) for key in _SCORED)
    counted = int(counts["all"]) - sum(int(counts.get(key, 0)) for key in _LEFT_OUT)
    listed = ", ".join(
        f"{count} {key.replace('_', ' ')}" for key, count in counts.items() if key != "all"
    )
    share = f"score {killed}/{counted} ({killed / counted:.1%})" if counted > 0 else "no score"
    return f"{share}; of {counts['all']}: {listed}"


def outcome_counts(results: Sequence[MutantResult]) -> str:
    """Return "24 killed, 2 equivalent", in the order of the outcomes."""
    counts = Counter(result.outcome for result in results)
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])


def _tone(result: MutantResult) -> Mark:
    if not result.as_expected:
        return Mark.BAD
    if result.outcome in (Outcome.NOT_RUN, Outcome.UNVIABLE, Outcome.STALE):
        return Mark.WARN
    return Mark.PLAIN


def _killers(result: MutantResult) -> str:
    """Return the named checks that killed and how many others did; all where none is named.

    The kill matrix has them all; here a line must stay one a person reads.
    """
    named = [check for check in result.killed_by if check in result.mutant.killed_by]
    rest = len(result.killed_by) - len(named)
    if not named:
        return ", ".join(result.killed_by)
    return ", ".join(named) + (f" +{rest}" if rest else "")


def _mutants(stage: str, results: Sequence[MutantResult]) -> Table:
    columns = (
        Column("mutant", whole=True),
        Column("outcome", whole=True),
        Column("expected", whole=True),
        Column("killed by"),
        Column("bits", right=True, whole=True),
        Column("error", right=True, whole=True),
        Column("margin", right=True, whole=True),
        Column("where"),
    )
    rows = [
        row(
            short_id(result.mutant),
            result.outcome,
            "yes" if result.as_expected else "NO",
            _killers(result),
            result.differing_bits,
            result.worst_error,
            result.margin,
            # A place stands beside a measured error; elsewhere the kill matrix has the case.
            result.where if result.worst_error is not None else "",
            mark=_tone(result),
        )
        for result in results
    ]
    notes = tuple(
        Cell(f"{short_id(result.mutant)}: {result.why}", _tone(result))
        for result in results
        if result.why
    )
    kept, cells = without_empty(columns, rows)
    title = f"mutants of {stage} (ids are {stage}/NAME)"
    return Table("mutants", title, kept, cells, notes)


def _sentences(stage: str, results: Sequence[MutantResult]) -> Table:
    """Return what each mutant proves; beside its outcome there is no room for a sentence."""
    columns = (Column("mutant", whole=True), Column("clause", whole=True), Column("what it proves"))
    rows = tuple(
        row(
            short_id(result.mutant),
            result.mutant.clause,
            result.mutant.proves if result.as_expected else f"nothing: {result.why}",
            mark=_tone(result),
        )
        for result in results
    )
    return Table("proofs", f"what the mutants of {stage} prove", columns, rows, detail=True)


def _races(stage: str, results: Sequence[MutantResult]) -> tuple[Table, ...]:
    """Return how often each race showed on a device, with the interval of its share."""
    rows = []
    for result in results:
        hits, runs = result.race_hits, result.race_runs
        if hits is None or runs is None:
            continue
        interval = stats.exact_interval(hits, runs) if runs else None
        rows.append(
            row(
                short_id(result.mutant),
                f"{hits} of {runs}",
                f"{interval.low:.0%} to {interval.high:.0%}" if interval else "no run ended",
                _cases_repeated(result),
                mark=Mark.PLAIN if interval else Mark.BAD,
            )
        )
    columns = (
        Column("mutant", whole=True),
        Column("killed in runs", right=True, whole=True),
        Column("share at 95%", right=True, whole=True),
        Column("cases", right=True, whole=True),
    )
    title = f"races of {stage} on the device; the host's access checker sees each"
    kept, cells = without_empty(columns, rows)
    notes = (Cell(_LEFT_OUT_OF_RUNS, Mark.DIM),) if any(r.race_left_out for r in results) else ()
    return (Table("races", title, kept, cells, notes),) if rows else ()


def _cases_repeated(result: MutantResult) -> str:
    """Return how many cases every run had, of how many; "" where an older run does not say."""
    if result.race_cases is None:
        return ""
    left_out = result.race_left_out or 0
    whole = result.race_cases + left_out
    return f"{result.race_cases} of {whole}" if left_out else str(whole)


def _controls(stage: str, results: Sequence[MutantResult]) -> Table:
    rows = []
    for result in results:
        wanted = result.mutant.differing_bits
        bits = shown(result.differing_bits)
        if wanted is not None and wanted != result.differing_bits:
            bits = f"{bits}, not {wanted}"
        proved = result.mutant.proves if result.as_expected else f"nothing: {result.why}"
        rows.append(row(short_id(result.mutant), bits, proved, mark=_tone(result)))
    columns = (Column("control"), Column("differing bits", right=True), Column("what it proved"))
    return Table("controls", f"negative controls of {stage}", columns, tuple(rows))


def _matrix(
    stage: str, results: Sequence[MutantResult], kills: Sequence[Kill]
) -> tuple[Table, Table]:
    """Return the kill matrix and the table of its checks, which is its key."""
    checks = list(dict.fromkeys(kill.check for kill in kills))
    cells = {(kill.mutant, kill.check): kill for kill in kills}
    names = {check: _letter(index) for index, check in enumerate(checks)}
    ordered = sorted(results, key=lambda result: result.mutant.id)
    rows = tuple(
        row(
            short_id(result.mutant),
            *(
                _matrix_cell(result, cells.get((result.mutant.id, check)), check)
                for check in checks
            ),
        )
        for result in ordered
    )
    matrix = Table(
        "kill-matrix",
        f"kill matrix of {stage}",
        (Column("mutant", whole=True), *(Column(names[check], whole=True) for check in checks)),
        rows,
        (Cell(_LEGEND, Mark.DIM),),
        dense=True,
    )
    return matrix, _checks(stage, ordered, kills, names)


def _letter(index: int) -> str:
    """Return a, b, ... Z, a2, b2, ...: columns of one character for the first 52 checks."""
    turn, place = divmod(index, len(ascii_letters))
    return ascii_letters[place] + (str(turn + 1) if turn else "")


def _matrix_cell(result: MutantResult, kill: Kill | None, check: str) -> Cell:
    named = check in result.mutant.killed_by
    if kill is None or kill.cases == 0:
        return Cell(NOT_RUN)
    if kill.failed:
        if named:
            return Cell(NAMED_KILL, Mark.GOOD)
        unexpected = result.mutant.why_survives and not result.as_expected
        return Cell(OTHER_KILL, Mark.BAD if unexpected else Mark.PLAIN)
    if named:
        return Cell(NAMED_SILENT, Mark.BAD)
    return Cell(SILENT, Mark.DIM)


def _checks(
    stage: str,
    results: Sequence[MutantResult],
    kills: Sequence[Kill],
    names: Mapping[str, str],
) -> Table:
    worth = outcomes.worth_of_checks(kills)
    rows = []
    for check, letter in names.items():
        killed, alone = worth[check]["kills"], worth[check]["alone"]
        named = sum(check in result.mutant.killed_by for result in results)
        mark = Mark.PLAIN if killed else Mark.WARN
        rows.append(row(letter, check, str(killed), str(alone), str(named), mark=mark))
    columns = (
        Column("", whole=True),
        Column("check", whole=True),
        Column("kills", right=True),
        Column("kills alone", right=True),
        Column("named by", right=True),
    )
    return Table("checks", f"what each check of {stage} kills", columns, tuple(rows))


def _gaps(notes: Mapping[str, Any]) -> tuple[Cell, ...]:
    """Return the lists of checks no mutant needs and of clauses no mutant breaks, where known."""
    made = []
    for key, found, none in (
        ("unneeded_checks", "checks no mutant needs", "every check is needed by some mutant"),
        ("unbroken_clauses", "clauses no mutant breaks", "every clause is broken by some mutant"),
    ):
        if key not in notes:
            continue
        names = _listed(notes[key])
        text = f"{found}: {names}" if names else none
        made.append(Cell(text, Mark.WARN if names else Mark.GOOD))
    return tuple(made)


def _listed(value: Any) -> str:
    """Return names as "stage: a, b; stage: c"; they come as "stage: name" or by stage."""
    by_stage: dict[str, list[str]] = {}
    if isinstance(value, Mapping):
        by_stage = {stage: list(names) for stage, names in value.items() if names}
    else:
        for entry in value or ():
            stage, _, name = str(entry).rpartition(": ")
            by_stage.setdefault(stage, []).append(name)
    return "; ".join(
        f"{stage}: {', '.join(names)}" if stage else ", ".join(names)
        for stage, names in by_stage.items()
    )
