"""Results as pages: tables and a headline, made from the result alone.

A run's page is the same whether the run has just ended or was read from its folder.
"""

from __future__ import annotations

from dataclasses import replace

from qsa_bench import gate_tables, mutation_tables, strength_tables, sweep_tables
from qsa_bench.campaign_requests import Argued, MutantDiffs
from qsa_bench.exit_codes import ExitCode
from qsa_bench.requests import Diagnosis, GoldenReport, Listing, ReplayResult, State
from qsa_bench.side_by_side import SideBySide
from qsa_bench.store import StoredRun
from qsa_bench.tables import Cell, Column, Mark, Page, Table, count, duration, pairs, row


def of_run(run: StoredRun) -> Page:
    """Return the page of a gate, mutation or build run."""
    record = run.run
    made: list[Table] = [*gate_tables.library(record.notes)]
    if record.command == "mutate":
        made += mutation_tables.tables(run)
        # The verdicts of a mutation run are the baseline's; they matter when it failed.
        if any(not verdict.passed for verdict in run.verdicts):
            made += gate_tables.tables(run)
        else:
            made += gate_tables.golden(record.notes) + gate_tables.blind(record.notes)
        made += gate_tables.wavering(record.notes)
    elif record.command == "gate":
        made += gate_tables.tables(run)
    elif record.command == "sweep":
        made += sweep_tables.tables(run)
    elif record.command == "nsys":
        made += sweep_tables.summaries(run.timings)
    elif record.command == "strength":
        made += strength_tables.tables(run)
    made += sweep_tables.resources(run.usages)
    if run.builds:
        all_built = all(build.ok for build in run.builds if build.mutant is None)
        made.append(gate_tables.builds(run.builds, detail=record.command != "build" and all_built))
    made += gate_tables.unavailable(record.notes)
    made += gate_tables.timing(record.notes)
    lines = () if run.folder is None else (f"run folder: {run.folder}",)
    return Page(_headline(run), tuple(made), lines)


def of_side_by_side(sides: SideBySide) -> Page:
    """Return the run's page with the score of each target and the false alarms at its end."""
    page = of_run(sides.run)
    return replace(page, tables=(*page.tables, *strength_tables.beside(sides)))


def _headline(run: StoredRun) -> Cell:
    """Return one line: how it ended, what was done, how long it took."""
    record = run.run
    error = record.notes.get("error")
    parts = [str(error), _counts(run)] if error else [_counts(run)]
    if record.done != record.asked or not run.complete:
        parts.append(f"{record.done} of {record.asked} done")
    if record.command == "mutate":
        parts.append(mutation_tables.score(record.notes))
    if not run.complete:
        ending = "INTERRUPTED: run.json tells no end; it was killed, or still runs"
        return Cell(f"{record.command} {ending}: {_joined(parts)}", Mark.BAD)
    parts.append(f"in {duration(record.seconds)}")
    if record.exit_code == ExitCode.OK:
        return Cell(f"{record.command} ok: {_joined(parts)}", Mark.GOOD)
    ending = "INTERRUPTED" if record.exit_code == ExitCode.INTERRUPTED else "FAILED"
    return Cell(
        f"{record.command} {ending} (exit {record.exit_code}: {_sentence(record.exit_code)}): "
        f"{_joined(parts)}",
        Mark.BAD,
    )


def _joined(parts: list[str]) -> str:
    return "; ".join(part for part in parts if part)


def _sentence(code: int) -> str:
    try:
        return ExitCode(code).sentence
    except ValueError:
        return "a code that this version does not know"


def _counts(run: StoredRun) -> str:
    if run.run.command == "mutate":
        unexpected = sum(not result.as_expected for result in run.mutants)
        outcomes = mutation_tables.outcome_counts(run.mutants)
        said = count(len(run.mutants), "mutant") + (f" ({outcomes})" if outcomes else "")
        return f"{said}, {unexpected} not as expected" if unexpected else said
    if run.run.command == "gate":
        cases = {verdict.case for verdict in run.verdicts}
        bad = [verdict for verdict in run.verdicts if not verdict.passed]
        failed = {verdict.case for verdict in bad if not verdict.status.says_nothing}
        said = f"{count(len(cases), 'case')}, {count(len(run.verdicts), 'verdict')}"
        said += f", {count(len(failed), 'case')} failed"
        # What was asked for and not done is no failure of a kernel, and no pass.
        for status in dict.fromkeys(v.status for v in bad if v.status.says_nothing):
            checks = dict.fromkeys(v.check for v in bad if v.status is status)
            said += f", {status}: {', '.join(checks)}"
        return said
    if run.run.command == "strength":
        return strength_tables.counts(run)
    if run.run.command == "sweep":
        return sweep_tables.counts(run)
    if run.run.command == "nsys":
        launches = sum(len(timing.samples_ns) for timing in run.timings)
        return f"{count(len(run.timings), 'kernel')}, {count(launches, 'launch', 'launches')}"
    built = sum(build.ok for build in run.builds)
    unchanged = sum(build.ok and build.cached for build in run.builds)
    return f"{built} of {count(len(run.builds), 'build')} ok, {unchanged} unchanged"


def of_replay(result: ReplayResult) -> Page:
    """Return what a replay saw: the trap if there was one, then each check's evidence."""
    tone = Mark.GOOD if result.exit_code is ExitCode.OK else Mark.BAD
    said = f"replay {result.kernel} {result.inputs}: "
    if result.trap_reason:
        demanded = (
            "as the contract demands" if result.trap_expected else "the contract demands none"
        )
        at = f" at {result.trap_where}" if result.trap_where else ""
        said += f"trapped{at}: {result.trap_reason} ({demanded})"
    elif result.exit_code is ExitCode.OK:
        said += "equals the oracle"
    else:
        said += f"{result.status}: differs from the oracle"
    rows = tuple(
        row(
            finding.check,
            finding.status,
            gate_tables.evidence(finding.evidence),
            mark=Mark.PLAIN if finding.status == "pass" else Mark.BAD,
        )
        for finding in result.findings
    )
    columns = (Column("check", whole=True), Column("status", whole=True), Column("evidence"))
    # What the command says in lines is for a result without findings: they say it themselves.
    notes = () if rows else tuple(Cell(line) for line in result.lines)
    tables = (Table("findings", "findings", columns, rows, notes),) if rows or notes else ()
    lines = () if result.output is None else (f"outputs: {result.output}",)
    if result.mutant:
        said += f" (mutant {result.mutant})"
    return Page(Cell(said, tone), tables, lines)


def of_listing(listing: Listing) -> Page:
    """Return a list as a table; the first column is what other commands take."""
    columns = tuple(Column(title, whole=index == 0) for index, title in enumerate(listing.columns))
    columns = columns[: listing.shown]
    rows = tuple(row(*cells[: listing.shown]) for cells in listing.rows)
    headline = count(len(rows), listing.what.rstrip("s").replace("-", " "))
    table = Table("list", listing.what.replace("-", " "), columns, rows)
    return Page(Cell(headline, Mark.DIM), (table,))


def of_diffs(diffs: MutantDiffs) -> Page:
    """Return mutants as diffs, one after the other, each under its id."""
    made = tuple(
        Table(
            "diff", mutant.id, notes=(Cell(mutant.proves),), lines=tuple(mutant.patch.splitlines())
        )
        for mutant in diffs.mutants
    )
    return Page(Cell(count(len(made), "mutant"), Mark.DIM), made)


def of_argued(argued: Argued) -> Page:
    """Return lines to paste, then what was told apart."""
    lines = tuple(line for block in argued.lines for line in (*block.split("\n"), ""))
    notes = tuple(Cell(f"differs: {text}", Mark.BAD) for text in argued.differing)
    said = f"argue: {count(len(argued.lines), 'mutant')} equal, {len(argued.differing)} differ"
    tone = Mark.BAD if argued.differing else Mark.GOOD
    return Page(Cell(said, tone), (Table("argued", "for equivalent.toml", (), (), notes, lines),))


def of_diagnosis(diagnosis: Diagnosis) -> Page:
    """Return what the doctor found, and below it what to do."""
    tones = {State.OK: Mark.GOOD, State.ABSENT: Mark.WARN, State.MISSING: Mark.BAD}
    rows = tuple(
        row(probe.name, Cell(str(probe.state), tones[probe.state]), probe.found)
        for probe in diagnosis.probes
    )
    remedies = tuple(
        Cell(f"{probe.name}: {probe.remedy}", tones[probe.state])
        for probe in diagnosis.probes
        if probe.remedy and probe.state is not State.OK
    )
    columns = (Column("what", whole=True), Column("state", whole=True), Column("found"))
    if diagnosis.exit_code is ExitCode.OK:
        headline = Cell(f"doctor ok: the {diagnosis.target} target can work here", Mark.GOOD)
    else:
        missing = [probe.name for probe in diagnosis.probes if probe.state is State.MISSING]
        headline = Cell(
            f"doctor: the {diagnosis.target} target can't work here: missing {', '.join(missing)}",
            Mark.BAD,
        )
    return Page(headline, (Table("doctor", "this machine", columns, rows, remedies),))


def of_goldens(report: GoldenReport) -> Page:
    """Return what each golden says of itself and what was checked of it."""
    tables = tuple(
        pairs(
            "golden",
            str(golden.path),
            [
                ("kind", golden.kind),
                ("bytes", f"{golden.bytes:,}"),
                ("sha256", golden.digest),
                # The config is a page of JSON; its digest says the same.
                *((key, value) for key, value in golden.metadata.items() if key != "config"),
            ],
            notes=tuple(Cell(fact) for fact in golden.facts),
        )
        for golden in report.files
    )
    done = "dumped" if report.action == "dump" else "verified"
    headline = f"golden {report.action} ok: {count(len(report.files), 'file')} {done}"
    return Page(Cell(headline, Mark.GOOD), tables)
