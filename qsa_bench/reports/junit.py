"""A campaign as JUnit XML: a case a mutant, so that any CI lists survivors as failures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from qsa_bench.model import MutantResult
from qsa_bench.reports import facts
from qsa_bench.store import StoredRun

# XML has no way to hold these.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def text(run: StoredRun) -> str:
    """Return the XML: survived and other surprises are failures, equivalent is skipped.

    Unviable and inconclusive mutants are errors.
    """
    run = facts.campaign(run)
    root = ElementTree.Element("testsuites", name=run.run.id)
    stages = dict.fromkeys(result.mutant.stage for result in run.mutants)
    for stage in stages:
        own = [result for result in run.mutants if result.mutant.stage == stage]
        root.append(_suite(stage, own, run))
    missing = run.run.asked - run.run.done
    if missing > 0 or not run.mutants:
        root.append(_lost(missing))
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(stage: str, results: Sequence[MutantResult], run: StoredRun) -> ElementTree.Element:
    suite = ElementTree.Element(
        "testsuite", name=stage, timestamp=run.run.started, hostname=run.run.target
    )
    counts = {"failures": 0, "errors": 0, "skipped": 0}
    for result in facts.survivors_first(results):
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=f"{stage}.{result.mutant.operator or 'by-hand'}",
            name=_clean(result.mutant.id),
            time=f"{result.seconds:.3f}",
        )
        verdict = _verdict(result)
        if verdict is None:
            continue
        counts["skipped" if verdict == "skipped" else f"{verdict}s"] += 1
        told = ElementTree.SubElement(case, verdict, message=_clean(result.why or result.outcome))
        if verdict != "skipped":
            told.set("type", str(result.outcome))
            told.text = _clean(f"{result.mutant.proves}\n\n{result.mutant.patch}")
    suite.set("tests", str(len(results)))
    suite.set("time", f"{sum(result.seconds for result in results):.3f}")
    for name, count in counts.items():
        suite.set(name, str(count))
    return suite


def _verdict(result: MutantResult) -> str | None:
    """Return the element that a result is told by, None for a mutant that died as it should."""
    if result.outcome in facts.INCONCLUSIVE:
        return "error"
    if not result.as_expected:
        return "failure"
    return "skipped" if result.outcome in facts.LEFT_OUT else None


def _lost(count: int) -> ElementTree.Element:
    """Return a suite that says what was asked for and not done: no list of tests may hide it."""
    suite = ElementTree.Element(
        "testsuite", name="campaign", tests="1", failures="0", errors="1", skipped="0"
    )
    case = ElementTree.SubElement(suite, "testcase", classname="campaign", name="complete")
    said = f"{count} mutants were not run" if count > 0 else "no mutant was run"
    ElementTree.SubElement(case, "error", message=said, type="incomplete")
    return suite


def _clean(words: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", words)
