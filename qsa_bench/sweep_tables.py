"""Tables of a sweep, and of an Nsight Systems export: pivots, limits, peers, nsys's columns."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qsa_bench import limits, stats, sweep_rates, sweeps
from qsa_bench.limits import Limits
from qsa_bench.model import Measurement, Usage, Verdict
from qsa_bench.peer_names import is_peer, peer_of
from qsa_bench.store import StoredRun
from qsa_bench.tables import Cell, Column, Mark, Table, count, pairs, row, without_empty
from qsa_bench.timers import CUPTI

_OURS = ("kernel", "library")
_US = 1000.0
_MOST_REFUSED = 12
BEST = " *"


def tables(run: StoredRun) -> tuple[Table, ...]:
    """Return the tables of a sweep."""
    limit = limits.of(run.timings)
    return (
        *_pivots(run.timings, limit),
        *_by_input(run.timings),
        *sweep_rates.tables(run.timings, limit),
        *_contract(run.verdicts),
        *_published(run.run.notes),
        *_refused(run.timings),
        _device(run, limit),
        *summaries(run.timings, detail=True),
    )


def counts(run: StoredRun) -> str:
    """Return "340 measurements of 5 builds at 94 points" for the headline."""
    ours = [t for t in run.timings if t.kind in _OURS and t.samples_ns]
    builds, points = len({t.build for t in ours}), len({t.case for t in ours})
    return (
        f"{count(len(ours), 'measurement')} of {count(builds, 'build')} at {count(points, 'point')}"
    )


def _median(timing: Measurement) -> float | None:
    return float(statistics.median(timing.samples_ns)) if timing.samples_ns else None


def _us(value_ns: float | None) -> str:
    """Return ns as us with three digits, "-" for what was not measured."""
    if value_ns is None:
        return "-"
    value = value_ns / _US
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _context(text: str) -> str:
    return sweeps.size_text(int(text)) if text.isdigit() else text


def _rows(text: str) -> str:
    return count(int(text), "row") if text.isdigit() else ""


def _words(*words: str) -> str:
    return ", ".join(word for word in words if word)


def _label(timing: Measurement) -> str:
    """Return what a column is called: a build's axes, a peer's own title."""
    return timing.axes.get("title") or timing.name


def _grouped(
    timings: Iterable[Measurement], axes: Sequence[str]
) -> dict[tuple[str, ...], list[Measurement]]:
    groups: dict[tuple[str, ...], list[Measurement]] = {}
    for timing in timings:
        if timing.kind in (*_OURS, "peer") and "context" in timing.axes:
            key = (
                timing.entry,
                timing.timer,
                timing.cache,
                *(timing.axes.get(axis, "") for axis in axes),
            )
            groups.setdefault(key, []).append(timing)
    return groups


def _pivots(timings: Sequence[Measurement], limit: Limits) -> Iterable[Table]:
    """Yield context x build for every entry, timer, cache state, number of rows and input."""
    for (entry, timer, cache, rows, kind), group in _grouped(timings, ("rows", "input")).items():
        ours = list(dict.fromkeys(_label(t) for t in group if t.kind in _OURS))
        contexts = list(dict.fromkeys(t.axes["context"] for t in group))
        # An input that only the shipped build was timed on stands in the table by input.
        kinds = {t.axes.get("input") for t in timings if t.entry == entry}
        if len(ours) < 2 and len(kinds) > 1:
            continue
        peers = list(dict.fromkeys(_label(t) for t in group if t.kind == "peer" and t.samples_ns))
        lines = [_pivot_row(c, group, ours, peers, limit) for c in contexts]
        columns = (
            Column("context", whole=True, right=True),
            *(Column(name, right=True) for name in ours),
            Column("limit", right=True),
            Column("best / limit", right=True),
            *(Column(name, right=True) for name in peers),
        )
        kept, cells = without_empty(columns, lines)
        yield Table(
            "pivot",
            f"{_words(entry, _rows(rows), kind, cache, timer)}: median us",
            kept,
            cells,
            notes=(Cell(f"{BEST.strip()} is the best build of a context", Mark.DIM),),
            detail=timer != CUPTI,
        )


def _pivot_row(
    context: str,
    group: Sequence[Measurement],
    ours: Sequence[str],
    peers: Sequence[str],
    limit: Limits,
) -> tuple[Cell, ...]:
    here = {_label(t): t for t in group if t.axes["context"] == context}
    medians = {name: _median(t) for name, t in here.items()}
    known = {name: m for name in ours if (m := medians.get(name)) is not None}
    best = min(known, key=lambda name: known[name], default=None)
    any_ = next(iter(here.values()))
    least = limit.of(any_.timer, any_.bytes_read, any_.bytes_written)
    share = f"{known[best] / least:.2f}" if best is not None and least else "-"
    return row(
        _context(context),
        *(
            Cell(_us(medians.get(name)) + BEST, Mark.GOOD)
            if name == best and len(known) > 1
            else _us(medians.get(name))
            for name in ours
        ),
        _us(least),
        share,
        *(_us(medians.get(name)) for name in peers),
    )


def _by_input(timings: Sequence[Measurement]) -> Iterable[Table]:
    """Yield input x context for the shipped build, where several inputs were timed."""
    shipped = [t for t in timings if t.kind in _OURS and t.name in (sweeps.AUTO,)]
    for (entry, timer, cache, rows), group in _grouped(shipped, ("rows",)).items():
        kinds = list(dict.fromkeys(t.axes["input"] for t in group if "input" in t.axes))
        if len(kinds) < 2:
            continue
        hostile = {t.axes["context"] for t in group if t.axes.get("input") != kinds[0]}
        contexts = [c for c in dict.fromkeys(t.axes["context"] for t in group) if c in hostile]
        at = {(t.axes.get("input"), t.axes["context"]): _median(t) for t in group}
        columns = (
            Column("input", whole=True),
            *(Column(_context(c), right=True) for c in contexts),
        )
        lines = tuple(
            row(kind, *(_us(at.get((kind, context))) for context in contexts)) for kind in kinds
        )
        yield Table(
            "inputs",
            f"{_words(entry, _rows(rows), cache, timer, 'by input')}: median us",
            columns,
            lines,
            detail=timer != CUPTI,
        )


def _contract(verdicts: Sequence[Verdict]) -> Iterable[Table]:
    """Yield which peers break the contract, and on what inputs."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if is_peer(verdict.build) and verdict.family != sweeps.FAMILY:
            groups.setdefault(peer_of(verdict.build), []).append(verdict)
    if not groups:
        return
    rows = []
    for peer, group in groups.items():
        failed = [verdict for verdict in group if not verdict.passed]
        by_check: dict[str, list[Verdict]] = {}
        for verdict in failed:
            by_check.setdefault(verdict.check, []).append(verdict)
        breaks = "; ".join(
            f"{check} in {count(len({v.case for v in each}), 'case')} "
            f"({', '.join(dict.fromkeys(v.family for v in each))})"
            for check, each in by_check.items()
        )
        first = f"{failed[0].case}: {failed[0].evidence.note}" if failed else ""
        mark = Mark.WARN if failed else Mark.GOOD
        cases = str(len({verdict.case for verdict in group}))
        rows.append(row(peer, cases, Cell(breaks or "nothing", mark), first))
    columns = (
        Column("peer", whole=True),
        Column("cases", right=True),
        Column("breaks of the contract"),
        Column("first example"),
    )
    yield Table("peers", "peers, put through the gate's cases", columns, tuple(rows))


def _published(notes: Mapping[str, Any]) -> Iterable[Table]:
    """Yield what changed against the newest published run of the device, where there is one."""
    found = notes.get("published")
    if not isinstance(found, Mapping):
        return
    if found.get("why"):
        yield Table("published", "against published runs", notes=(Cell(str(found["why"])),))
        return
    changes: Mapping[str, int] = found.get("counts", {})
    said = ", ".join(f"{number} {word}" for word, number in changes.items())
    lines = tuple(
        row(
            str(each["key"]).replace("|", ", "),
            _us(each["old_ns"]),
            _us(each["new_ns"]),
            f"{each['low']:.3f} to {each['high']:.3f}",
            str(each["change"]),
            mark=Mark.BAD if each["change"] == "slower" else Mark.PLAIN,
        )
        for each in found.get("rows", ())
    )
    columns = (
        Column("measurement"),
        Column("published us", right=True),
        Column("now us", right=True),
        Column("ratio", right=True),
        Column("verdict", whole=True),
    )
    yield Table(
        "published",
        f"against the published run {found.get('run')}: {said}",
        columns if lines else (),
        lines,
    )


def _refused(timings: Sequence[Measurement]) -> Iterable[Table]:
    """Yield what was not timed and why, the same reason once."""
    reasons = Counter(
        (_label(t), t.timer, t.why or _all_dropped(t))
        for t in timings
        if not t.samples_ns and t.kind != limits.CALIBRATION
    )
    if not reasons:
        return
    rows = tuple(
        row(name, timer, str(number), why, mark=Mark.WARN)
        for (name, timer, why), number in reasons.most_common(_MOST_REFUSED)
    )
    columns = (
        Column("what"),
        Column("timer", whole=True),
        Column("times", right=True),
        Column("why it was not timed"),
    )
    rest = len(reasons) - len(rows)
    notes = (Cell(f"and {rest} more, in timings.parquet", Mark.WARN),) if rest > 0 else ()
    yield Table("refused", "not timed", columns, rows, notes)


def _all_dropped(timing: Measurement) -> str:
    dropped = ", ".join(f"{number} {reason}" for reason, number in timing.dropped.items())
    return f"every sample was dropped ({dropped})" if dropped else "no sample was taken"


def _device(run: StoredRun, limit: Limits) -> Table:
    """Return what the device was like: floors, bandwidths, clocks, other users, dropped samples."""
    notes = run.run.notes
    said = notes.get("device")
    entries: list[tuple[str, str]] = [("device", run.run.device)]
    if isinstance(said, Mapping):
        entries.append(("multiprocessors", str(said.get("multiprocessors", "-"))))
        entries.append(("telemetry", str(said.get("telemetry", "-"))))
    for (timer, cache), floor in limit.floors.items():
        entries.append((f"empty kernel, {timer} {cache}", f"{_us(floor)} us"))
    for kind, bandwidth in limit.bandwidths.items():
        entries.append((f"{kind} bandwidth", f"{bandwidth / 1000:.2f} TB/s"))
    if limit.matrix is not None:
        entries.append((limits.MATRIX, f"{limit.matrix / 1000:.0f} TFLOP/s"))
    if any(timing.cache == "cold" for timing in run.timings):
        entries.append(("cold", limit.cold_problem() or "verified: flushed, and the floor held"))
    for word, key, unit in (
        ("SM clock", "sm_mhz", "MHz"),
        ("power", "power_w", "W"),
        ("temperature", "temperature_c", "C"),
    ):
        seen = [t.clocks[key] for t in run.timings if key in t.clocks]
        if seen:
            entries.append((word, f"{min(seen):.0f} to {max(seen):.0f} {unit}"))
    others = [t.clocks["others"] for t in run.timings if "others" in t.clocks]
    entries.append(("other processes on it", _others(others)))
    dropped: Counter[str] = Counter()
    for timing in run.timings:
        dropped.update(timing.dropped)
    kept = sum(len(timing.samples_ns) for timing in run.timings)
    lost = ", ".join(f"{number} for {reason}" for reason, number in dropped.items())
    entries.append(("samples", f"{kept} kept, {lost or 'none'} dropped"))
    stops = Counter(t.stopped_because for t in run.timings)
    entries.append(("stopped", ", ".join(f"{n} {why}" for why, n in stops.most_common())))
    missing = notes.get("peers_unavailable")
    if isinstance(missing, Mapping):
        entries += [(f"peer {name}", f"unavailable: {why}") for name, why in missing.items()]
    return pairs(
        "device",
        "device and method",
        entries,
        notes=(
            Cell(
                "limit: an empty kernel or the bytes at the copy bandwidth, whichever is longer; "
                "a warm launch whose bytes fit the L2 may go below",
                Mark.DIM,
            ),
        ),
    )


def _others(seen: Sequence[float]) -> str:
    if not seen:
        return "unknown"
    return "none" if max(seen) == 0 else f"up to {max(seen):.0f}: the device was shared"


def summaries(timings: Sequence[Measurement], *, detail: bool = False) -> Iterable[Table]:
    """Yield the columns of nsys's kernel summary for every timer and cache state."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for timing in timings:
        if timing.samples_ns:
            groups.setdefault((timing.timer, timing.cache), []).append(timing)
    for (timer, cache), group in groups.items():
        whole = sum(sum(timing.samples_ns) for timing in group)
        lines = [_summary_row(timing, whole) for timing in group]
        lines.sort(key=lambda entry: -entry[0])
        columns = (
            Column("Time (%)", right=True),
            *(
                Column(f"{word} (ns)" if word != "Instances" else word, right=True)
                for word in ("Total Time", "Instances", "Avg", "Med", "Min", "Max", "StdDev")
            ),
            Column("Name"),
        )
        title = f"kernel summary, {timer}, {cache}"
        yield Table("summary", title, columns, tuple(cells for _, cells in lines), detail=detail)


def _summary_row(timing: Measurement, whole: int) -> tuple[int, tuple[Cell, ...]]:
    summary = stats.summary(timing.samples_ns)
    assert summary is not None
    where = "" if timing.case == timing.stage else f" [{timing.case}]"
    cells = row(
        f"{100 * summary.total / whole:.1f}" if whole else "-",
        str(summary.total),
        str(summary.instances),
        f"{summary.mean:.1f}",
        f"{summary.median:.1f}",
        str(summary.least),
        str(summary.most),
        f"{summary.deviation:.1f}",
        f"{_label(timing)}{where}",
    )
    return summary.total, cells


def resources(usages: Sequence[Usage]) -> Iterable[Table]:
    """Yield what the compiler gave each kernel, a table an architecture."""
    for architecture in dict.fromkeys(usage.architecture for usage in usages):
        rows = tuple(
            row(
                usage.kernel,
                usage.name,
                str(usage.registers),
                Cell(
                    f"{usage.spill_stores} / {usage.spill_loads}",
                    Mark.WARN if usage.spill_stores or usage.spill_loads else Mark.PLAIN,
                ),
                str(usage.shared),
                str(usage.threads),
                f"{usage.warps} / {usage.most_warps} ({usage.occupancy:.0%})",
            )
            for usage in usages
            if usage.architecture == architecture
        )
        columns = (
            Column("kernel"),
            Column("entry", whole=True),
            Column("registers", right=True),
            Column("spills st / ld, B", right=True),
            Column("shared, B", right=True),
            Column("threads", right=True),
            Column("warps resident", right=True),
        )
        note = Cell("shared memory and occupancy without what a launch asks for", Mark.DIM)
        yield Table("resources", f"resources, sm_{architecture}", columns, rows, (note,))
