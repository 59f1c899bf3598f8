"""Which kernels of a PTX module differ from another's, calls included and names of folders left out."""

from __future__ import annotations

from qsa_bench.device_text import differing, read

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n\n"


def function(name: str, body: str) -> str:
    """Return a device function that returns a word."""
    return f".func  (.param .b32 func_retval0) {name}\n(\n\t.param .b32 {name}_param_0\n)\n{{\n{body}\n}}\n"


def kernel(name: str, body: str) -> str:
    """Return a kernel."""
    return f".visible .entry {name}(\n\t.param .u64 {name}_param_0\n)\n.maxntid 128, 1, 1\n{{\n{body}\n}}\n"


def call(name: str, number: int) -> str:
    """Return a call as nvcc writes one."""
    return f"\t{{ // callseq {number}, 0\n\tcall.uni (retval0), {name}, (param0);\n\t}}"


TWO = (function("near", "\tret;"), function("far", call("near", 1)))


def changed(one: str, other: str) -> set[str]:
    """Return the kernels that differ between two modules."""
    return differing(read(HEAD + one), read(HEAD + other))


def test_a_kernel_is_changed_by_itself_or_by_what_it_calls_however_far() -> None:
    caller, alone = kernel("caller", call("far", 2)), kernel("alone", "\tret;")
    old = "".join((*TWO, caller, alone))
    assert changed(old, old) == set()
    assert changed(old, old.replace("near", "new_name")) == {"caller"}
    nearer = "".join((function("near", "\ttrap;"), TWO[1], caller, alone))
    assert changed(old, nearer) == {"caller"}
    other = "".join((*TWO, caller, kernel("alone", "\ttrap;")))
    assert changed(old, other) == {"alone"}


def test_a_kernel_that_only_one_has_is_changed() -> None:
    one, two = kernel("one", "\tret;"), kernel("two", "\tret;")
    assert changed(one, one + two) == changed(one + two, one) == {"two"}


def test_where_a_function_stands_and_where_it_was_compiled_changes_nothing() -> None:
    body = "\tmov.u64 %SPL, __local_depot3;\n$L__BB3_1:\n" + call("near", 7)
    moved = body.replace("depot3", "depot4").replace("BB3_", "BB4_").replace("seq 7", "seq 9")
    name = "_ZN3qsa41_GLOBAL__N__f4d1cd91_9_select_cu_00c30bd86kernelEv"
    old = TWO[0] + kernel(name, body)
    new = TWO[0] + kernel(name.replace("f4d1cd91", "00aa11bb"), moved)
    assert changed(old, new) == set()
    assert len(changed(old, new.replace("_1:", "_2:"))) == 1


def test_a_constant_that_changed_may_be_anyones() -> None:
    kernels = kernel("one", "\tret;") + kernel("two", "\tret;")
    constant = ".const .align 4 .b8 table[4] = {1, 0, 0, 0};\n"
    assert changed(constant + kernels, constant.replace("1", "2") + kernels) == {"one", "two"}


def test_a_function_in_a_table_may_be_anyones() -> None:
    table = ".global .align 8 .u64 table[1] = {near};\n"
    old = "".join((table, TWO[0], kernel("one", "\tret;")))
    assert changed(old, old.replace("\tret;\n}\n.visible", "\ttrap;\n}\n.visible")) == {"one"}
    assert (
        changed(old.replace(table, ""), old.replace(table, "").replace("\tret;", "\ttrap;", 1))
        == set()
    )
