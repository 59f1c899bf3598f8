"""The description of the host target: commands are data, modes differ as said, objects do not depend on the place."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qsa_bench.targets import host
from tests.host.harness import FIFO, HERE, INPUT, KERNELS, LIFO, SEEDED, Buffer, Library


def command(mode: str, source: str = "qsa/some.cu") -> list[str]:
    return host.compile_command(
        KERNELS / source, Path("some.o"), KERNELS, mode, {"THREADS": 256, "NAME": "x"}
    )


def test_a_kernel_is_instrumented_and_alike_for_both_modes() -> None:
    plain, checked = command("plain"), command("checked")
    assert plain == checked
    assert {"-fsanitize=thread", "-fsanitize-coverage=trace-pc", "-ffp-contract=off"} <= set(plain)
    assert {"-DTHREADS=256", "-DNAME=x"} <= set(plain)


def test_the_runtime_is_never_instrumented() -> None:
    (source,) = host.runtime_sources(KERNELS)
    for mode in host.MODES:
        flags = command(mode, str(source.relative_to(KERNELS)))
        assert not [flag for flag in flags if flag.startswith("-fsanitize")]


def test_the_runtime_is_all_of_its_folder() -> None:
    (source,) = host.runtime_sources(KERNELS)
    included = {
        line.split('"')[1]
        for line in source.read_text().splitlines()
        if line.startswith("#include")
    }
    there = {f"host/{path.name}" for path in source.parent.glob("*.cpp") if path != source}
    assert included == there


def test_an_unknown_mode_is_an_error() -> None:
    with pytest.raises(ValueError, match="host mode 'fast': expected one of plain, checked"):
        command("fast")


def test_linking_brings_no_sanitizer() -> None:
    flags = host.link_command([Path("a.o"), Path("b.o")], Path("c.so"))
    assert flags[-4:] == ["a.o", "b.o", "-o", "c.so"]
    assert not [flag for flag in flags if "sanitize" in flag]


@pytest.mark.parametrize("mode", list(host.MODES))
def test_equal_sources_give_equal_objects_wherever_they_lie(tmp_path: Path, mode: str) -> None:
    objects = []
    for place in ("one", "another/deeper"):
        root = tmp_path / place
        for folder in ("common", "host", "include"):
            (root / folder).mkdir(parents=True)
            for header in (KERNELS / folder).glob("*.*h"):
                (root / folder / header.name).write_bytes(header.read_bytes())
        source = root / "qsa" / "limits.cu"
        source.parent.mkdir()
        source.write_bytes((HERE / "kernels" / "limits.cu").read_bytes())
        made = root / "limits.o"
        subprocess.run(host.compile_command(source, made, root, mode, {}), check=True)
        objects.append(made.read_bytes())
    assert objects[0] == objects[1]
    assert str(tmp_path).encode() not in objects[0]


@pytest.mark.parametrize("mode", list(host.MODES))
def test_everything_the_portability_header_promises_runs_on_the_host(
    build: Callable[[str, str], Library], mode: str
) -> None:
    # Compiled without a warning: the builder refuses any.
    vectors = np.random.default_rng(5).standard_normal(128).astype(np.float32)
    buffers = [
        Buffer("vectors", vectors, INPUT),
        Buffer("out", np.zeros(192, np.uint32)),
        Buffer("wide", np.zeros(1, np.uint64)),
        Buffer("number", np.zeros(1, np.float32)),
    ]
    orders = [{"schedule": FIFO}, {"schedule": LIFO}, {"schedule": SEEDED, "seed": 3}]
    results = build("portability_surface.cu", mode).runs("surface", buffers, [], orders)
    for result in results:
        assert (result.status, result.findings) == (0, [])
        assert (result.arrays["out"][1:33] != 0).all()
        assert result.arrays["number"][0] == 3.0
        # out[0] went through atomics of every kind, so it alone depends on the order.
        assert (result.arrays["out"][1:] == results[0].arrays["out"][1:]).all()


TWO_LIBRARIES = """
import ctypes, sys
racy, right = (ctypes.CDLL(path) for path in sys.argv[1:])
words = (ctypes.c_int32 * 128)()
for library in (racy, right):
    library.qsa_host_findings.restype = library.qsa_host_fuel_used.restype = ctypes.c_uint64
    library.qsa_host_reset(None)
    library.qsa_host_register(words, ctypes.c_uint64(512), 2, b"words")
assert racy.flag(words, words, ctypes.c_int64(1), None) == 0
assert right.half_warps(words, ctypes.c_int64(0), None) == 0
length = racy.qsa_host_findings(None, ctypes.c_uint64(0))
assert length > 2 == right.qsa_host_findings(None, ctypes.c_uint64(0)), length
assert racy.qsa_host_fuel_used() != right.qsa_host_fuel_used()
"""


def test_two_libraries_of_a_process_share_nothing(
    build: Callable[[str, str], Library],
) -> None:
    paths = [build(file, "checked").path for file in ("memory.cu", "collectives.cu")]
    subprocess.run([sys.executable, "-c", TWO_LIBRARIES, *map(str, paths)], check=True)


def test_a_location_is_the_first_line_outside_the_runtime() -> None:
    text = "/k/host/atomics.h:40\nqsa/select.cu:17 (discriminator 3)\nqsa/select.cu:99\n"
    assert host.located(text) == ("qsa/select.cu", 17)
    assert host.located("??:0\n") is None
    assert host.located("??:?\n") is None
