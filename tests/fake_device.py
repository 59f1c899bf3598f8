"""A GPU that is none: the emulation in the place of a device, which traps take and tests can break.

`plant` puts it into a tree as the tree's cuda target. It writes down which process did what, and
does as the files in its folder say:
  fragile   a case that traps takes the device with it: no process can open it any more
  skewed    the first level of every run comes back with another last bit
  bent      so does the first rank, which no bound holds
  flaky     so does the first rank in every third run of many
  losing    a case of so many elements loses the context, from a run on: words "ELEMENTS:RUN"
  hanging   so it hangs
  faulty    (compute-sanitizer) the tools report an error in every case whose id stands there
  blind     (compute-sanitizer) the tools report nothing, whatever they are shown
  silent    (compute-sanitizer) the tools end without a summary
"""

from __future__ import annotations

import os
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from qsa_bench import builder
from qsa_bench.commands import gate, mutate
from qsa_bench.targets import host, toolchain
from tests.specimen.trees import Tree

FOLDER = "QSA_FAKE_DEVICE"

DEVICE = '''
"""The emulation as a device that loses its context at a trap."""

import os
import time
from pathlib import Path

from qsa_bench.targets.host_device import HostDevice

FOLDER = Path(os.environ["QSA_FAKE_DEVICE"])


def say(*words):
    with (FOLDER / "log").open("a") as log:
        log.write(" ".join([str(os.getpid()), *words]) + "\\n")


class FakeDevice(HostDevice):
    _lost = ""
    _seed = 0
    _elements = 0

    @property
    def lost(self):
        return self._lost

    def allocate(self, program, blob):
        say("case", "trap" if program["calls"][-1]["expect"] == "trap" else "ordinary")
        self._elements = program["buffers"][0]["shape"][-1]
        return super().allocate(program, blob)

    def prepare(self, run, library):
        self._seed = run["seed"]
        super().prepare({**run, "schedule": "fifo"}, library)

    def _is_one_that_is(self, what):
        words = (FOLDER / what).read_text().split() if (FOLDER / what).exists() else []
        named = [word.split(":") for word in words]
        return any(self._elements == int(n) and self._seed >= int(run) for n, run in named)

    def finish(self, library):
        outcome = super().finish(library)
        if self._is_one_that_is("hanging"):
            say("hangs")
            time.sleep(600)
        if self._is_one_that_is("losing"):
            self._lost = "700 (made up)"
            return {**outcome, "status": 110}
        if any(finding["kind"] == "trap" for finding in outcome["findings"]):
            self._lost = "719 (made up)"
            if (FOLDER / "fragile").exists():
                (FOLDER / "dead").touch()
        return outcome

    def output(self, name):
        content = super().output(name)
        if name == "rank" and (FOLDER / "bent").exists():
            return bytes([content[0] ^ 1]) + content[1:]
        flaky = self._seed > 1 and self._seed % 3 == 2 and (FOLDER / "flaky").exists()
        if (name == "level" and (FOLDER / "skewed").exists()) or (name == "rank" and flaky):
            return bytes([content[0] ^ 1]) + content[1:]
        return content


def open_device():
    say("open")
    if (FOLDER / "dead").exists():
        raise RuntimeError("no device is left")
    return FakeDevice()
'''

SANITIZER = '''
"""compute-sanitizer as a test has it: it reports what the test wrote down."""

import json, os, subprocess, sys
from pathlib import Path

FOLDER = Path(os.environ["QSA_FAKE_DEVICE"])
words = sys.argv[1:]
tool = words[words.index("--tool") + 1]
place = words.index("--log-file")
log = Path(words[place + 1].replace("%p", str(os.getpid())))
child = subprocess.Popen(words[place + 2 :], stdin=subprocess.PIPE)
faulty = FOLDER / "faulty"
guilty = ["sanitizer-proof"] + (faulty.read_text().split() if faulty.exists() else [])
errors = 0
with log.open("w") as out:
    print("========= COMPUTE-SANITIZER", file=out, flush=True)
    for line in sys.stdin:
        if json.loads(line).get("case") in guilty and not (FOLDER / "blind").exists():
            errors += 1
            print("========= Invalid made-up access of size 4 bytes", file=out)
            print("=========     at kernel+0x10 in made.cu:7\\n=========", file=out, flush=True)
        child.stdin.write(line.encode())
        child.stdin.flush()
    child.stdin.close()
    if child.wait():
        errors += 1
        print("========= Target application returned an error", file=out, flush=True)
    if not (FOLDER / "silent").exists():
        summary = f"RACECHECK SUMMARY: {errors} hazards" if tool == "racecheck" else None
        print("=========", summary or f"ERROR SUMMARY: {errors} errors", file=out)
'''


@dataclass(frozen=True)
class FakeGpu:
    """The device's folder and what was written down there."""

    folder: Path

    def does(self, what: str, text: str = "") -> None:
        """Let the device or the tools do what a file of that name says."""
        (self.folder / what).write_text(text)

    def log(self) -> list[tuple[int, str]]:
        """Return what each process did, in order."""
        lines = (self.folder / "log").read_text().splitlines()
        return [(int(line.split()[0]), line.partition(" ")[2]) for line in lines]


def plant(tree: Tree, folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """Make the emulation the cuda target of a planted tree."""
    folder.mkdir()
    for name in ("cuda_device", "cuda_bare_device"):
        tree.write(f"qsa_bench/targets/{name}.py", textwrap.dedent(DEVICE))
    monkeypatch.setenv(FOLDER, str(folder))
    found = toolchain.toolchain

    def stand_in(target: str) -> toolchain.Toolchain:
        return found("host") if target == "cuda" else found(target)

    assert host.COMPILER
    monkeypatch.setattr(builder, "toolchain", stand_in)
    for command in (gate, mutate):
        monkeypatch.setattr(command, "device_name", lambda _target: "made-up device")
    return FakeGpu(folder)


def plant_sanitizer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a compute-sanitizer on the PATH."""
    folder.mkdir()
    script = folder / "compute-sanitizer"
    script.write_text(f"#!{sys.executable}\n{textwrap.dedent(SANITIZER)}")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), os.environ["PATH"]]))
