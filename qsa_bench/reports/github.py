"""A campaign as GitHub workflow commands: lines beside the code, survivors first, ten a step."""

from __future__ import annotations

from qsa_bench.model import MutantResult
from qsa_bench.reports import facts
from qsa_bench.store import StoredRun

# GitHub shows so many errors of a step and drops the others without a word.
MOST = 10


def text(run: StoredRun) -> str:
    """Return one `::error` line for each surprise, at most ten; the last says what is left out."""
    run = facts.campaign(run)
    sources = {source.path: source.text for source in run.sources}
    told = [result for result in facts.survivors_first(run.mutants) if not result.as_expected]
    lines = [_line(result, sources) for result in told]
    if run.run.done != run.run.asked or not run.mutants:
        said = f"{run.run.done} of {run.run.asked} mutants were run"
        lines.insert(0, f"::error title=campaign incomplete::{_escaped(said)}")
    if len(lines) > MOST:
        left = len(lines) - MOST + 1
        lines[MOST - 1 :] = [f"::error title=more survivors::{left} more; see the step summary"]
    return "".join(f"{line}\n" for line in lines)


def _line(result: MutantResult, sources: dict[str, str]) -> str:
    (place, *_) = facts.places(result, sources)
    properties = {
        "file": place.path,
        "line": str(place.line),
        "endLine": str(max(place.end_line, place.line)),
        "title": f"{result.outcome}: {result.mutant.id}",
    }
    named = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    message = f"{result.why}\n{result.mutant.patch}"
    return f"::error {named}::{_escaped(message)}"


def _escaped(message: str) -> str:
    return message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _escaped(value).replace(":", "%3A").replace(",", "%2C")
