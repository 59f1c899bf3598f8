"""The CUDA device's buffers, over a driver that is made of host memory: no GPU is needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qsa_bench import program
from qsa_bench.model import STREAM, Argument, Entry, Kernel, Role
from qsa_bench.program import Buffer, Call, Program

# Fresh memory is 0xCD; the launch that a library "makes" is its own loop over that memory. A file
# named by FAKE_CUDA holds the code that the next synchronise answers.
DRIVER = r"""
#include <cstdio>
#include <cstdlib>
#include <cstring>
extern "C" {
int cuInit(unsigned) { return getenv("FAKE_CUDA_NONE") ? 100 : 0; }
int cuDeviceGet(int* device, int) { *device = 0; return 0; }
int cuDevicePrimaryCtxRetain(void** context, int) { *context = &context; return 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuCtxSynchronize() {
  int code = 0;
  if (FILE* file = fopen(getenv("FAKE_CUDA"), "r")) { if (fscanf(file, "%d", &code)) {} fclose(file); }
  return code;
}
int cuGetErrorString(int code, const char** text) { *text = code == 719 ? "unspecified launch failure" : "bad"; return 0; }
int cuMemAlloc_v2(unsigned long long* address, size_t size) {
  void* made = aligned_alloc(256, (size + 255) / 256 * 256);
  memset(made, 0xCD, size);
  *address = (unsigned long long)made;
  return 0;
}
int cuMemFree_v2(unsigned long long address) { free((void*)address); return 0; }
int cuMemcpyHtoD_v2(unsigned long long to, const void* from, size_t size) { memcpy((void*)to, from, size); return 0; }
int cuMemcpyDtoH_v2(void* to, unsigned long long from, size_t size) {
  memcpy(to, (void*)from, size);
  if (getenv("FAKE_CUDA_ROT")) ((char*)to)[0] ^= 1;
  return 0;
}
int cuMemsetD8_v2(unsigned long long to, unsigned char value, size_t size) { memset((void*)to, value, size); return 0; }
}
"""
LIBRARY = r"""
#include <cstdint>
#include <cstdio>
#include <cstdlib>
extern "C" int32_t deed(const uint32_t* in, uint32_t* out, int64_t count, int32_t what, void*) {
  if (what == 1) const_cast<uint32_t*>(in)[2] += 1;
  if (what == 3) { FILE* file = fopen(getenv("FAKE_CUDA"), "w"); fputs("719", file); fclose(file); }
  if (what == 4) { for (int64_t i = 0; i < count; ++i) fprintf(stderr, "%08x ", in[i]); fprintf(stderr, "%08x", out[0]); }
  for (int64_t i = 0; i < count; ++i) out[i] = in[i] + 1;
  if (what == 2) out[count] = 7;
  return 0;
}
"""
COPY, CHANGE_INPUT, WRITE_PAST, TRAP, TELL = range(5)
COUNT = 6
KERNEL = Kernel(
    "deed",
    "nowhere.cu",
    (
        Entry(
            "deed",
            (
                Argument("in", "u32", Role.INPUT, ("count",)),
                Argument("out", "u32", Role.OUTPUT, ("count",)),
                Argument("count", "i64", Role.SCALAR),
                Argument("what", "i32", Role.SCALAR),
                STREAM,
            ),
        ),
    ),
)


class Gpu:
    """Runs the worker over the made-up driver."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, source in (("libcuda.so.1", DRIVER), ("libdeed.so", LIBRARY)):
            path = folder / f"{name}.cpp"
            path.write_text(source)
            command = ["g++", "-shared", "-fPIC", "-o", str(folder / name), str(path)]
            subprocess.run(command, check=True, capture_output=True, timeout=60)

    def run(
        self, what: int, device: str = "cuda", runs: int = 2, **environment: str
    ) -> tuple[list[dict[str, Any]], str]:
        """Return the answers to one job and what came on stderr."""
        data = np.arange(COUNT, dtype=np.uint32)
        hidden = ((4, COUNT),) if what == TELL else ()
        buffers = (
            Buffer("in", "u32", (COUNT,), Role.INPUT, data, uninitialised=hidden),
            Buffer("out", "u32", (COUNT,), Role.OUTPUT),
        )
        values = {"in": "in", "out": "out", "count": COUNT, "what": what}
        path = self.folder / "program.safetensors"
        program.write(path, Program(buffers, (Call("deed", "deed", values),)), (KERNEL,))  # type: ignore[arg-type]
        job = {
            "case": "case",
            "key": "0",
            "program": str(path),
            "libraries": {"deed": str(self.folder / "libdeed.so")},
            "fuel": 0,
            "known": [],
            "written": True,
            "out": str(self.folder),
            "runs": [{"schedule": "device", "seed": n, "index": n} for n in range(runs)],
        }
        (self.folder / "sync").unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "qsa_bench.worker", device, "alone"],
            input=json.dumps(job) + "\n",
            env={
                **os.environ,
                "LD_LIBRARY_PATH": str(self.folder),
                "FAKE_CUDA": str(self.folder / "sync"),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Gpu:
    return Gpu(tmp_path_factory.mktemp("cuda"))


def results(answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [answer["run"] for answer in answers if "run" in answer]


def test_a_kernel_that_behaves_leaves_its_output_in_both_placements(gpu: Gpu) -> None:
    answers, _ = gpu.run(COPY)
    assert answers[0] == {"ready": "cuda"}
    first, second = results(answers)
    assert first["digest"] == second["digest"]
    for run in (first, second):
        assert (run["statuses"], run["fences"], run["inputs_changed"]) == ([0], [], [])
        assert run["touched"] == [{"buffer": "out"}]
    written = np.fromfile(gpu.folder / f"0.{first['digest']}.out", dtype=np.uint32)
    assert written.tolist() == [1, 2, 3, 4, 5, 6]


def test_a_write_past_the_end_and_a_changed_input_are_seen(gpu: Gpu) -> None:
    answers, _ = gpu.run(WRITE_PAST)
    past = {"buffer": "out", "side": "after", "byte": 4 * COUNT}
    assert [run["fences"] for run in results(answers)] == [[past], [past]]
    answers, _ = gpu.run(CHANGE_INPUT)
    changed = {"buffer": "in", "element": 2}
    assert [run["inputs_changed"] for run in results(answers)] == [[changed], [changed]]


@pytest.mark.parametrize("device", ["cuda", "cuda_bare"])
def test_a_trap_ends_the_context_and_the_case(gpu: Gpu, device: str) -> None:
    answers, _ = gpu.run(TRAP, device)
    (run,) = results(answers)
    assert run["statuses"] == [100]
    assert "digest" not in run
    assert answers[-1] == {"case": "case", "lost": "719 (unspecified launch failure)"}


@pytest.mark.parametrize("device", ["cuda", "cuda_bare"])
@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("FAKE_CUDA_NONE", "DriverError: cuInit: 100 (bad)"),
        ("FAKE_CUDA_ROT", "DriverError: the device does not give back the bytes"),
    ],
)
def test_a_device_that_does_not_answer_is_unavailable(
    gpu: Gpu, device: str, broken: str, why: str
) -> None:
    answers, _ = gpu.run(COPY, device, **{broken: "1"})
    (only,) = answers
    assert only["unavailable"].startswith(why)


def test_a_bare_device_fills_in_what_kernels_may_read_and_nothing_else(gpu: Gpu) -> None:
    _, said = gpu.run(TELL, "cuda", runs=1)
    assert said.split()[:6] == [f"{number:08x}" for number in range(COUNT)]
    assert said.split()[6] != "cdcdcdcd"
    _, said = gpu.run(TELL, "cuda_bare", runs=1)
    # The last two inputs are marked as not to be read, the output as written by nobody.
    assert said.split() == ["00000000", "00000001", "00000002", "00000003", *3 * ["cdcdcdcd"]]


def test_a_bare_device_reads_no_output_back(gpu: Gpu) -> None:
    answers, _ = gpu.run(COPY, "cuda_bare", runs=1)
    (run,) = results(answers)
    assert run["statuses"] == [0]
    assert (gpu.folder / f"0.{run['digest']}.out").read_bytes() == b""
