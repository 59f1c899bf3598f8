"""Whatever becomes of a child costs the case it was on, and is told as what it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from qsa_bench import program, runner
from qsa_bench.builder import Builder
from qsa_bench.child import Ending
from qsa_bench.model import Role
from qsa_bench.poison import POISON
from qsa_bench.program import At, Buffer, Call, Program
from qsa_bench.runner import HOST, Job, Observation, Schedule, observe, schedules
from tests.specimen.fixtures import (  # noqa: F401 - fixtures of this module
    specimen_builder,
    specimen_master,
    specimen_session_folder,
)
from tests.specimen.trees import PROBE, REPOSITORY, Tree

# What the probe does: kernels/specimen/probe.cu of the specimen.
COPY, FAULT, NEVER_END, PRINT, WRITE_PAST, WRITE_BEFORE, CHANGE_INPUT = range(7)
LAST_THREAD_WINS, TRAP, LEAVE_BARRIER, DIVIDE, EXIT, SKIP_WRITE = range(7, 13)
COUNT, THREADS = 20, 32
INPUT = np.arange(COUNT, dtype=np.uint8)
BOTH = schedules(0)
PYTHON = "deeds"


def probe(
    deed: int, count: int = COUNT, threads: int = THREADS, role: Role = Role.INPUT
) -> Program:
    """Return a program of one call of the probe; `role` is that of its input."""
    buffers = (
        Buffer("in", "u8", (COUNT,), role, INPUT),
        Buffer("out", "u8", (COUNT,), Role.OUTPUT),
    )
    values = {"in": "in", "out": "out", "count": count, "deed": deed, "threads": threads}
    return Program(buffers, (Call("probe", "specimen_probe", values),))


def python(function: str) -> Program:
    """Return a program that calls a function of the module that the test wrote."""
    built = probe(COPY)
    return Program(
        built.buffers,
        (
            built.calls[0],
            Call("probe", function, {"out": "out", "count": COUNT}, python=f"{PYTHON}:{function}"),
        ),
    )


class Bench:
    """Runs programs of the probe and keeps what they leave."""

    def __init__(self, library: str, folder: Path) -> None:
        self.libraries = {"probe": library}
        self.folder = folder
        self.out = folder / "out"
        self.out.mkdir()

    def job(
        self, name: str, built: Program, orders: Sequence[Schedule] = BOTH, **fields: object
    ) -> Job:
        path = self.folder / f"{name}.safetensors"
        program.write(path, built, (PROBE,))
        return Job(name, name, path, tuple(orders), **fields)  # type: ignore[arg-type]

    def observe(self, *jobs: Job, stopped: threading.Event | None = None) -> list[Observation]:
        return list(observe("host", self.libraries, jobs, self.out, (self.folder,), stopped))

    def see(self, built: Program, orders: Sequence[Schedule] = BOTH) -> Observation:
        (seen,) = self.observe(self.job("only", built, orders))
        return seen

    def python(self, source: str) -> None:
        """Write the module whose functions programs may call."""
        (self.folder / f"{PYTHON}.py").write_text(textwrap.dedent(source))

    def output(self, seen: Observation, run: int = 0) -> np.ndarray:
        path = self.out / f"{seen.case}.{seen.runs[run].digest}.out"
        return np.fromfile(path, dtype=np.uint8)


@pytest.fixture(name="bench")
def probe_bench(builder: Builder, master: Tree, tmp_path: Path) -> Bench:
    library = builder.build(PROBE, "host", root=master.root).library
    assert library is not None
    return Bench(library, tmp_path)


def alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def until(what: str, condition: object) -> None:
    """Wait for a condition; a test that waits in vain fails."""
    assert callable(condition)
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


def test_a_kernel_that_behaves_leaves_its_output_and_no_finding(bench: Bench) -> None:
    seen = bench.see(probe(COPY))
    assert seen.ending is Ending.RAN
    assert [run.schedule.name for run in seen.runs] == ["fifo", "lifo"]
    for run in seen.runs:
        assert run.statuses == (0,)
        assert (run.findings, run.fences, run.inputs_changed) == ((), (), ())
        assert [dict(hit) for hit in run.touched] == [{"buffer": "out"}]
        assert run.fuel > 0
    assert seen.runs[0].digest == seen.runs[1].digest
    assert (bench.output(seen) == INPUT + 1).all()
    assert len(list(bench.out.iterdir())) == 1


def test_an_output_that_is_not_written_comes_back_as_poison_and_untouched(bench: Bench) -> None:
    seen = bench.see(probe(SKIP_WRITE))
    assert (bench.output(seen) == POISON).all()
    assert seen.runs[0].touched == ()


def test_an_output_that_is_known_is_not_written_again(bench: Bench) -> None:
    first = bench.see(probe(COPY))
    for path in bench.out.iterdir():
        path.unlink()
    digest = first.runs[0].digest
    assert digest is not None
    (second,) = bench.observe(bench.job("only", probe(COPY), known=(digest,)))
    assert second.runs[0].digest == digest
    assert list(bench.out.iterdir()) == []


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        (FAULT, "Segmentation fault: reads memory that is not there"),
        (DIVIDE, "Floating point exception: an integer division by zero"),
    ],
)
def test_a_crash_is_told_with_its_kind_and_the_next_case_runs(
    bench: Bench, deed: int, said: str
) -> None:
    seen = bench.observe(
        bench.job("first", probe(COPY)),
        bench.job("bad", probe(deed)),
        bench.job("last", probe(COPY)),
    )
    assert [s.case for s in seen] == ["first", "bad", "last"]
    assert [s.ending for s in seen] == [Ending.RAN, Ending.CRASHED, Ending.RAN]
    assert seen[1].text.startswith(said)
    assert seen[1].findings[-1]["kind"] == "crash"
    assert seen[1].findings[-1]["thread"] == [0, 0, 0]


def test_every_one_of_several_crashes_is_told_with_its_own_words(bench: Bench) -> None:
    jobs = [bench.job(f"bad{i}", probe(deed)) for i, deed in enumerate((FAULT, DIVIDE, FAULT))]
    texts = [seen.text.partition(":")[0] for seen in bench.observe(*jobs)]
    assert texts == ["Segmentation fault", "Floating point exception", "Segmentation fault"]


def test_a_crash_leaves_the_runs_before_it(bench: Bench) -> None:
    # In the second run the buffer ends at the page behind it: there the write faults.
    seen = bench.see(probe(WRITE_PAST))
    assert seen.ending is Ending.CRASHED
    assert [run.schedule.name for run in seen.runs] == ["fifo"]
    assert [dict(hit) for hit in seen.runs[0].fences] == [
        {"buffer": "out", "side": "after", "byte": COUNT}
    ]


def test_a_write_before_a_buffer_faults_at_its_page_or_breaks_its_fence(bench: Bench) -> None:
    orders = [Schedule("fifo"), Schedule("lifo")]
    assert bench.see(probe(WRITE_BEFORE), orders[:1]).ending is Ending.CRASHED
    # Runs with an odd index have the buffer at the other end of its pages.
    job = bench.job("odd", python("copy_and_write_before"), orders)
    bench.python(
        """
        import ctypes, os

        def copy_and_write_before(libraries, values):
            address = values["out"]
            if address % 4096:
                ctypes.c_uint8.from_address(address - 1).value = 1
            return 0
        """
    )
    (seen,) = bench.observe(job)
    assert seen.runs[0].fences == ()
    assert dict(seen.runs[1].fences[0]) == {"buffer": "out", "side": "before", "byte": -1}


def test_a_changed_input_is_named_with_its_first_element(bench: Bench) -> None:
    seen = bench.see(probe(CHANGE_INPUT))
    assert [dict(hit) for hit in seen.runs[0].inputs_changed] == [{"buffer": "in", "element": 0}]


def test_what_a_pipeline_carries_on_may_change_and_starts_anew_with_every_run(
    bench: Bench,
) -> None:
    seen = bench.see(probe(CHANGE_INPUT, role=Role.INOUT))
    assert all(run.inputs_changed == () for run in seen.runs)
    carried = np.fromfile(bench.out / f"only.{seen.runs[1].digest}.in", dtype=np.uint8)
    assert (carried == INPUT + 1).all()


def test_a_pointer_into_a_buffer_is_that_many_elements_in(bench: Bench) -> None:
    built = probe(COPY)
    values = {**built.calls[0].values, "in": At("in", 5), "out": At("out", 2), "count": 3}
    seen = bench.see(Program(built.buffers, (Call("probe", "specimen_probe", values),)))
    want = np.full(COUNT, POISON, np.uint8)
    want[2:5] = INPUT[5:8] + 1
    assert (bench.output(seen) == want).all()


def test_an_order_of_threads_that_matters_gives_another_output(bench: Bench) -> None:
    orders = [Schedule("fifo"), Schedule("lifo"), Schedule("seeded", 1), Schedule("seeded", 1)]
    seen = bench.see(probe(LAST_THREAD_WINS), orders)
    outputs = [int(bench.output(seen, run)[0]) for run in range(4)]
    assert outputs[:2] == [THREADS - 1, 0]
    assert outputs[2] == outputs[3]


@pytest.mark.parametrize(
    ("built", "status", "kind"),
    [
        (probe(TRAP), 100, "trap"),
        (probe(LEAVE_BARRIER), 101, "divergence"),
        (probe(COPY, threads=2048), 103, "launch-limit"),
    ],
)
def test_what_the_emulated_device_refuses_ends_the_run_and_not_the_child(
    bench: Bench, built: Program, status: int, kind: str
) -> None:
    seen = bench.observe(bench.job("bad", built), bench.job("good", probe(COPY)))
    assert [s.ending for s in seen] == [Ending.RAN, Ending.RAN]
    assert seen[0].runs[0].statuses == (status,)
    assert seen[0].runs[0].findings[-1]["kind"] == kind
    assert seen[0].runs[0].digest is None
    assert seen[1].runs[0].statuses == (0,)


def test_a_refusal_is_a_status_and_stops_the_program(bench: Bench) -> None:
    good = probe(COPY)
    bad = Call("probe", "specimen_probe", {**good.calls[0].values, "count": -1})
    seen = bench.see(Program(good.buffers, (good.calls[0], bad, good.calls[0])))
    assert seen.runs[0].statuses == (0, 2)
    assert seen.runs[0].digest is None


def test_a_loop_without_end_runs_out_of_fuel(bench: Bench) -> None:
    (seen,) = bench.observe(bench.job("endless", probe(NEVER_END), fuel=100_000))
    assert seen.ending is Ending.RAN
    assert {run.statuses for run in seen.runs} == {(102,)}
    assert seen.runs[0].findings[-1]["kind"] == "fuel"


def test_silence_past_the_limit_is_ended_and_the_next_case_runs(bench: Bench) -> None:
    bench.python("import time\ndef sleep(libraries, values):\n    time.sleep(600)\n")
    seen = bench.observe(
        bench.job("silent", python("sleep"), limit_s=0.5), bench.job("good", probe(COPY))
    )
    assert [s.ending for s in seen] == [Ending.TIMED_OUT, Ending.RAN]
    assert seen[0].text == "no answer within 0.5 s"


def test_after_three_silent_cases_the_rest_is_given_up_as_not_run(bench: Bench) -> None:
    bench.python("import time\ndef sleep(libraries, values):\n    time.sleep(600)\n")
    silent = [bench.job(f"silent{i}", python("sleep"), limit_s=0.3) for i in range(4)]
    seen = bench.observe(*silent, bench.job("good", probe(COPY)))
    assert [s.ending for s in seen] == [Ending.TIMED_OUT] * 3 + [Ending.NOT_RUN] * 2
    assert seen[-1].text == "given up after 3 cases out of time"


def test_a_child_that_leaves_as_if_all_were_well_has_crashed(bench: Bench) -> None:
    seen = bench.observe(bench.job("gone", probe(EXIT)), bench.job("good", probe(COPY)))
    assert [s.ending for s in seen] == [Ending.CRASHED, Ending.RAN]
    assert seen[0].text.startswith("exit 0")


def test_a_child_that_is_killed_is_told_by_its_signal(bench: Bench) -> None:
    bench.python(
        "import os, signal\ndef die(libraries, values):\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    seen = bench.see(python("die"))
    assert (seen.ending, seen.text) == (Ending.CRASHED, "killed by SIGKILL")


def test_an_exception_of_python_code_is_told_by_its_last_line(bench: Bench) -> None:
    bench.python("def fail(libraries, values):\n    raise ValueError('no such step')\n")
    seen = bench.see(python("fail"))
    assert (seen.ending, seen.text) == (Ending.CRASHED, "exit 1: ValueError: no such step")


def test_a_status_of_python_code_is_a_status_of_its_call(bench: Bench) -> None:
    bench.python("def refuse(libraries, values):\n    return 3\n")
    assert bench.see(python("refuse")).runs[0].statuses == (0, 3)


def test_python_code_is_given_addresses_and_numbers(bench: Bench) -> None:
    bench.python(
        """
        import ctypes

        def double(libraries, values):
            assert "probe" in libraries
            out = (ctypes.c_uint8 * values["count"]).from_address(values["out"])
            out[:] = [2 * byte for byte in out]
            return 0
        """
    )
    seen = bench.see(python("double"))
    assert (bench.output(seen) == 2 * (INPUT + 1)).all()


def test_what_no_kernel_may_read_is_reported_by_the_checker_when_it_is_read(
    builder: Builder, master: Tree, bench: Bench
) -> None:
    library = builder.build(PROBE, "host", root=master.root, mode="checked").library
    assert library is not None
    bench.libraries = {"probe": library}
    buffers = probe(COPY).buffers
    holes = (replace(buffers[0], uninitialised=((15, COUNT),)), buffers[1])
    for count, kinds in ((15, []), (16, ["uninitialised"])):
        (call,) = probe(COPY, count).calls
        seen = bench.see(Program(holes, (call,)), BOTH[:1])
        assert [finding["kind"] for finding in seen.runs[0].findings] == kinds


def test_what_a_kernel_or_python_code_prints_disturbs_nothing(bench: Bench) -> None:
    bench.python("def speak(libraries, values):\n    print('{\"case\": 1}')\n    return 0\n")
    seen = bench.observe(bench.job("first", probe(PRINT)), bench.job("second", python("speak")))
    assert [s.ending for s in seen] == [Ending.RAN, Ending.RAN]
    assert [len(s.runs) for s in seen] == [2, 2]


def test_the_copy_on_the_path_is_imported_before_the_package_in_the_working_folder(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A mutant of Python code must be what runs, also where the command is started in a checkout.
    (bench.folder / "qsa_bench").mkdir()
    (bench.folder / "qsa_bench/__init__.py").write_text("raise SystemExit('the copy was run')\n")
    monkeypatch.chdir(REPOSITORY)
    with pytest.raises(RuntimeError, match=r"did not start \(exit 1\): the copy was run"):
        bench.see(probe(COPY))


def test_the_working_folder_is_not_searched_for_modules(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cwd/qsa_bench").mkdir(parents=True)
    (tmp_path / "cwd/qsa_bench/__init__.py").write_text("raise SystemExit('from the folder')\n")
    (tmp_path / "cwd/json.py").write_text("raise SystemExit('from the folder')\n")
    monkeypatch.chdir(tmp_path / "cwd")
    assert bench.see(probe(COPY)).ending is Ending.RAN


@pytest.mark.parametrize("damage", ["truncated", "missing", "foreign"])
def test_a_damaged_program_is_the_workers_fault_and_no_crash_of_the_kernel(
    bench: Bench, damage: str
) -> None:
    job = bench.job("bad", probe(COPY))
    content = job.program.read_bytes()
    if damage == "missing":
        job.program.unlink()
    else:
        job.program.write_bytes(content[:100] if damage == "truncated" else b"x" * 400)
    with pytest.raises(RuntimeError, match=r"running bad: the worker failed preparing .*bad\.saf"):
        bench.observe(job)


def test_outputs_that_cannot_be_written_are_the_workers_fault(bench: Bench) -> None:
    job = bench.job("bad", probe(COPY))
    bench.out.rmdir()
    with pytest.raises(RuntimeError, match="the worker failed writing outputs in"):
        bench.observe(job)


def test_a_stopped_campaign_ends_the_case_under_way_and_runs_no_other(bench: Bench) -> None:
    mark = bench.folder / "pid"
    bench.python(
        f"""
        import os, time

        def sleep(libraries, values):
            with open({str(mark)!r} + ".new", "w") as file:
                file.write(str(os.getpid()))
            os.replace({str(mark)!r} + ".new", {str(mark)!r})
            time.sleep(600)
        """
    )
    stopped = threading.Event()
    jobs = [bench.job("slow", python("sleep")), bench.job("next", probe(COPY))]
    seen: list[Observation] = []
    thread = threading.Thread(target=lambda: seen.extend(bench.observe(*jobs, stopped=stopped)))
    thread.start()
    until("the child sleeps", mark.exists)
    stopped.set()
    thread.join(60)
    assert [s.ending for s in seen] == [Ending.NOT_RUN, Ending.NOT_RUN]
    # Its pipes are closed a moment before the kernel is done with it.
    until("the child ends", lambda: not alive(int(mark.read_text())))


def test_a_child_whose_parent_is_killed_does_not_linger(bench: Bench, master: Tree) -> None:
    mark = bench.folder / "pid"
    bench.python(
        f"""
        import os, time

        def sleep(libraries, values):
            with open({str(mark)!r} + ".new", "w") as file:
                file.write(str(os.getpid()))
            os.replace({str(mark)!r} + ".new", {str(mark)!r})
            time.sleep(600)
        """
    )
    job = bench.job("slow", python("sleep"))
    parent = textwrap.dedent(
        f"""
        from pathlib import Path
        from qsa_bench.runner import Job, Schedule, observe
        job = Job("slow", "slow", Path({str(job.program)!r}), (Schedule("fifo"),))
        list(observe("host", {bench.libraries!r}, [job], Path({str(bench.out)!r}),
                     (Path({str(bench.folder)!r}),)))
        """
    )
    environment: Mapping[str, str] = {**os.environ, "PYTHONPATH": str(master.root)}
    process = subprocess.Popen([sys.executable, "-c", parent], env=environment)
    try:
        until("the child sleeps", mark.exists)
        child = int(mark.read_text())
        assert alive(child)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    until("the child is gone", lambda: not alive(child))


def test_a_worker_that_does_not_start_says_why(bench: Bench) -> None:
    with pytest.raises(RuntimeError, match="(?s)the worker did not start.*abacus_device"):
        list(observe("abacus", bench.libraries, [bench.job("a", probe(COPY))], bench.out))


def test_the_host_worker_imports_neither_numpy_nor_anything_beside_the_package() -> None:
    code = (
        "import sys; from qsa_bench import worker; from qsa_bench.targets import host_device; "
        "print([m for m in sys.modules if m.split('.')[0] not in sys.stdlib_module_names])"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", code],
        env={"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    names = {name.partition(".")[0] for name in eval(done.stdout)}
    assert names - {"__main__"} == {"qsa_bench"}


def test_seeded_orders_come_after_both_plain_ones() -> None:
    assert [order.name for order in runner.schedules(2)] == [
        "fifo",
        "lifo",
        "seeded(1)",
        "seeded(2)",
    ]


def test_a_process_that_has_yet_to_say_that_it_is_ready_is_not_renewed() -> None:
    # It would read the next job together with the word and take both with it.
    job = Job("case", "0", Path("program"), ())
    ran, born = (
        SimpleNamespace(fresh=fresh, loaded={"kernel": "old.so"}) for fresh in (False, True)
    )
    assert runner._is_worn(ran, job, {"kernel": "new.so"}, HOST)  # type: ignore[arg-type]
    assert not runner._is_worn(ran, job, {"kernel": "old.so"}, HOST)  # type: ignore[arg-type]
    assert not runner._is_worn(born, job, {"kernel": "new.so"}, HOST)  # type: ignore[arg-type]
