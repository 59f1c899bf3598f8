"""The audit of the specimen's gate, through the real command line."""

from __future__ import annotations

from typing import Any

from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    specimen_master,
    specimen_session_folder,
    specimen_tree,
)
from tests.specimen.trees import STAGE, Tree

AUDIT = ("strength", "--stage", STAGE, "--jobs", "2")
STAGE_FILE = f"qsa_bench/stages/{STAGE}.py"


def rows(document: dict[str, Any], dial: str) -> dict[str, dict[str, Any]]:
    """Return a dial's rows by check."""
    return {row["check"]: row for row in document["strengths"] if row["dial"] == dial}


def test_the_smallest_scale_that_is_seen_follows_the_bound(tree: Tree) -> None:
    code, document = tree.json(*AUDIT, "--dial", "scale", "--trials", "0")
    assert (code, document["asked"], document["done"]) == (0, 1, 1)
    level = rows(document, "scale")["level"]
    # Four roundings of 2**-24 at levels below 1: a scale of less moves none that far.
    assert 4 * 2.0**-24 <= level["caught"] < 4 * 4 * 2.0**-24
    assert level["missed"] < level["caught"] < 1.2 * level["missed"]
    assert level["monotone"]
    assert level["hits"] < level["repeats"] == 4
    assert rows(document, "scale")["gate"]["caught"] == level["caught"]
    assert rows(document, "scale")["steps"]["caught"] is None
    looser = tree.read(STAGE_FILE).replace("BOUND = 4 * 2.0**-24", "BOUND = 4 * 2.0**-14")
    tree.write(STAGE_FILE, looser)
    _, document = tree.json(*AUDIT, "--dial", "scale", "--trials", "0")
    assert rows(document, "scale")["level"]["caught"] > 500 * level["caught"]


def test_a_gate_that_no_fault_of_a_dial_reaches_is_no_success(tree: Tree) -> None:
    text = tree.read(STAGE_FILE)
    blind = text.replace(
        '    yield bounded("level"', '    if False:\n        yield bounded("level"'
    )
    tree.write(
        STAGE_FILE,
        blind.replace("        yield found\n", "").replace(
            "        yield replace(found, evidence=replace(found.evidence, numbers=numbers))\n", ""
        ),
    )
    code, document = tree.json(*AUDIT, "--dial", "scale", "--trials", "0")
    assert code == 4
    assert rows(document, "scale")["gate"]["caught"] is None


def test_builds_that_are_right_raise_no_alarm(tree: Tree) -> None:
    # An axis that no source reads gives production's own code, which is no other build.
    text = tree.read(STAGE_FILE).replace("import STREAM, Argument", "import STREAM, Axis, Argument")
    unread = '    ),\n    axes={"threads": Axis("NOBODY_READS_THIS", (32, 64))},\n)\nRANK = Kernel('
    assert text.count("    ),\n)\nRANK = Kernel(") == 1
    tree.write(STAGE_FILE, text.replace("    ),\n)\nRANK = Kernel(", unread))
    code, document = tree.json(*AUDIT, "--dial", "corrupt", "--trials", "3")
    assert code == 0
    kinds = {row["build"]: row["kind"] for row in document["alarms"]}
    assert kinds == {
        "production": "order of threads",
        "-O1": "optimisation",
        "-O2": "optimisation",
        "-O3": "optimisation",
        "does-nothing": "source",
    }
    assert {(row["trials"], row["alarms"]) for row in document["alarms"]} == {(3, 0)}
    assert document["done"] == document["asked"] == 6
    shown = tree.run("report", "latest")
    assert shown.returncode == 0
    assert "0 of 15" in shown.stdout
    assert "0.00% to 21.80%" in shown.stdout


def test_a_bound_that_right_arithmetic_breaks_is_a_false_alarm(tree: Tree) -> None:
    # A control that is right, and rounds elsewhere.
    patch = tree.read(f"mutations/{STAGE}/forgets-the-decay.patch")
    name = f"mutations/{STAGE}/controls/halves"
    old = next(line for line in patch.splitlines() if line.startswith("-") and line[1] != "-")[1:]
    new = old.replace("decay", "(decay + 2e-6f)", 1)
    head = patch[: patch.index("@@")]
    body = patch[patch.index("@@") :].splitlines()
    kept = [line for line in body if not line.startswith(("-", "+"))]
    place = next(i for i, line in enumerate(body) if line.startswith("-"))
    lines = [*body[:place], f"-{old}", f"+{new}", *kept[place:]]
    tree.write(f"{name}.patch", head + "\n".join(lines) + "\n")
    tree.write(
        f"{name}.toml",
        'proves = "a decay that is off raises no alarm"\nclause = "decay"\nexpect = "survives"\n'
        'why_survives = "it does not"\n',
    )
    code, document = tree.json(*AUDIT, "--dial", "corrupt", "--trials", "4")
    assert code == 3
    row = next(row for row in document["alarms"] if row["build"] == "halves")
    assert 1 <= row["alarms"] <= row["trials"]
    assert row["first"].endswith("level")


def test_a_production_kernel_that_fails_has_no_strength(tree: Tree) -> None:
    text = tree.read(STAGE_FILE).replace("BOUND = 4 * 2.0**-24", "BOUND = 0.0")
    tree.write(STAGE_FILE, text)
    code, document = tree.json(*AUDIT, "--trials", "0")
    assert code == 5
    assert "strengths" not in document
    assert any("level" in line for line in document["notes"]["failed"])


def test_an_audit_of_nothing_is_no_success(tree: Tree) -> None:
    done = tree.run(*AUDIT, "--dial", "none", "--trials", "0")
    assert done.returncode == 6
    assert "no dial none" in done.stderr
    assert tree.run(*AUDIT, "--repeats", "1").returncode == 2
