"""Operators on expressions: comparisons, arithmetic, constants, conditions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from qsa_bench.operators.edits import Edit, Operator, Yields, calls, operator_of
from qsa_bench.operators.syntax import Source

if TYPE_CHECKING:
    from tree_sitter import Node

_RELATIONS = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "!=", "!=": "=="}
_BOUNDARIES = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_ARITHMETIC = {
    "+": "-",
    "-": "+",
    "*": "+",
    "/": "*",
    "%": "/",
    "+=": "-=",
    "-=": "+=",
    "*=": "+=",
    "/=": "*=",
}
_LOGIC = {"&&": "||", "||": "&&", "&": "|", "|": "&", "^": "|", "&=": "|=", "|=": "&="}
_SHIFTS = {"<<": ">>", ">>": "<<", "<<=": ">>=", ">>=": "<<="}
# Intrinsics that stand for an operator because their rounding is fixed.
_INTRINSICS = {"__fadd_rn": "__fsub_rn", "__fsub_rn": "__fadd_rn", "__fdiv_rn": "__fmul_rn"}
_ROUNDED = ("__fadd_rn", "__fmaf_rn", "__fmul_rn", "fmaf")
# Calls that round their arguments to bf16 themselves.
_TO_BF16 = ("round_to_bf16", "pack_bf16", "__float2bfloat16_rn", "__float2bfloat16")
_EXTREMES = {"min": "max", "max": "min", "fminf": "fmaxf", "fmaxf": "fminf"}
_INTEGER = re.compile(r"^(0[xX][0-9a-fA-F]+|[0-9]+)([uUlL]*)$")
_REAL = re.compile(r"^([0-9]*\.[0-9]*(?:[eE][-+]?[0-9]+)?)([fF]?)$")
_MOST_BITS = 0xFFFFFFFF


def _swap(table: Mapping[str, str]) -> Yields:
    def edits(source: Source, node: Node) -> Iterator[Edit]:
        found = operator_of(source, node)
        if found is not None and found[0] in table:
            yield Edit(node, found[1].start_byte, found[1].end_byte, table[found[0]])

    return edits


def _relational(source: Source, node: Node) -> Iterator[Edit]:
    found = operator_of(source, node)
    if found is not None and node.type == "binary_expression" and found[0] in _RELATIONS:
        yield Edit(node, found[1].start_byte, found[1].end_byte, _RELATIONS[found[0]])


def _boundary(source: Source, node: Node) -> Iterator[Edit]:
    found = operator_of(source, node)
    if found is not None and node.type == "binary_expression" and found[0] in _BOUNDARIES:
        yield Edit(node, found[1].start_byte, found[1].end_byte, _BOUNDARIES[found[0]])


def _by_table(table: Mapping[str, str]) -> Yields:
    """Return the edits that put a call's or an operator's counterpart in its place."""

    def edits(source: Source, node: Node) -> Iterator[Edit]:
        call = calls(source, node)
        if call is not None and call[0] in table:
            name = node.child_by_field_name("function")
            assert name is not None
            yield Edit(node, name.start_byte, name.end_byte, table[call[0]])

    return edits


def _arithmetic(source: Source, node: Node) -> Iterator[Edit]:
    found = operator_of(source, node)
    if found is not None and found[0] in _ARITHMETIC:
        yield Edit(node, found[1].start_byte, found[1].end_byte, _ARITHMETIC[found[0]])
    yield from _by_table(_INTRINSICS)(source, node)
    if node.type == "unary_expression":
        sign = node.child_by_field_name("operator")
        argument = node.child_by_field_name("argument")
        negates = sign is not None and argument is not None and source.text(sign) == "-"
        # -1 is a constant, and has its own operator.
        if negates and sign and argument and argument.type != "number_literal":
            yield Edit(node, sign.start_byte, sign.end_byte, "+")


def _constant(source: Source, node: Node) -> Iterator[Edit]:
    if node.type != "number_literal":
        return
    text = source.text(node)
    integer = _INTEGER.match(text)
    if integer is not None:
        value, suffix = int(integer[1], 0), integer[2]
        form = "{:#x}" if integer[1][:2].lower() == "0x" else "{}"
        near = [value + 1, value - 1]
        if value > 1 and value & (value - 1) == 0:
            near += [value * 2, value // 2]
        fits = (n for n in dict.fromkeys(near) if n <= _MOST_BITS and n != value)
        for neighbour in fits:
            yield Edit.of(node, f"{form.format(neighbour) if neighbour >= 0 else '-1'}{suffix}")
        return
    real = _REAL.match(text)
    if real is not None:
        value_of = float(real[1])
        for other in (value_of + 1, value_of - 1) if value_of in (0.0, 1.0) else (value_of * 2,):
            yield Edit.of(node, f"{other!r}{real[2]}" if other >= 0 else f"({other!r}{real[2]})")


def _shift(source: Source, node: Node) -> Iterator[Edit]:
    found = operator_of(source, node)
    if found is None or found[0] not in _SHIFTS:
        return
    yield Edit(node, found[1].start_byte, found[1].end_byte, _SHIFTS[found[0]])
    amount = node.child_by_field_name("right")
    # A literal amount is a constant, and has its own operator.
    if amount is not None and amount.type != "number_literal":
        yield Edit.of(amount, f"({source.text(amount)} + 1)")


def _condition(source: Source, node: Node) -> Iterator[Edit]:
    """Negate the condition of if, while and ?:, where it is more than one comparison."""
    if node.type not in ("if_statement", "while_statement", "conditional_expression"):
        return
    if any(child.type == "constexpr" for child in node.children):
        return
    condition = node.child_by_field_name("condition")
    if condition is not None and condition.type == "condition_clause":
        condition = condition.child_by_field_name("value")
    if condition is None or condition.type == "declaration":
        return
    yield Edit.of(condition, f"!({source.text(condition)})")


def _bf16(source: Source, node: Node) -> Iterator[Edit]:
    call = calls(source, node)
    if call is not None and call[0] in _ROUNDED and not _is_rounded(source, node):
        yield Edit.of(node, f"__bfloat162float(__float2bfloat16_rn({source.text(node)}))")


def _is_rounded(source: Source, node: Node) -> bool:
    """True where the value goes to bf16 anyway: rounding it before is nothing."""
    outer = node.parent.parent if node.parent is not None else None
    call = None if outer is None else calls(source, outer)
    return call is not None and call[0] in _TO_BF16


def _in_function(operator: Yields) -> Yields:
    """Keep an operator to function bodies and constants: a declaration's types are no fault."""

    def edits(source: Source, node: Node) -> Iterator[Edit]:
        at: Node | None = node
        while at is not None:
            if at.type in ("template_parameter_list", "template_argument_list", "parameter_list"):
                return
            if at.type in ("static_assert_declaration", "enumerator_list"):
                return
            at = at.parent
        yield from operator(source, node)

    return edits


def _operator(name: str, fault: str, edits: Yields) -> Operator:
    return Operator(name, fault, _in_function(edits))


OPERATORS = (
    _operator("relational", "a comparison the other way round", _relational),
    _operator("boundary", "a guard or a bound that is off by the equal case", _boundary),
    _operator("condition-negated", "a branch taken when it should not be", _condition),
    _operator("logical", "both instead of either, or a bit set instead of kept", _swap(_LOGIC)),
    _operator("arithmetic", "a wrong sign or operation", _arithmetic),
    _operator("constant", "a constant off by one or by a factor of two", _constant),
    _operator("shift", "bits moved the wrong way or one too far", _shift),
    _operator("min-max", "the smaller taken for the larger", _by_table(_EXTREMES)),
    _operator("bf16-accumulate", "a result kept in bf16 where f32 is asked for", _bf16),
)
