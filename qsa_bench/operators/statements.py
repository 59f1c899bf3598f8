"""Operators on statements and loops: deletion, early return, bounds and strides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from qsa_bench.operators.edits import Edit, Operator, calls
from qsa_bench.operators.syntax import Source, function_of, returns_nothing

if TYPE_CHECKING:
    from tree_sitter import Node

# Their removal is another operator's fault, or a barrier's.
_OTHERS = ("__syncthreads", "__syncwarp", "__threadfence", "__threadfence_block")


def _blank(source: Source, node: Node) -> str:
    """Return an empty statement as many lines long, so that no line below it moves."""
    return ";" + "\n" * source.text(node).count("\n")


def _deletion(source: Source, node: Node) -> Iterator[Edit]:
    if node.type in ("break_statement", "continue_statement"):
        yield Edit.of(node, _blank(source, node))
    if node.type == "return_statement":
        function = function_of(node)
        body = None if function is None else function.child_by_field_name("body")
        # The last return of a function with a result is what makes it a function.
        if body is not None and node.parent != body:
            yield Edit.of(node, _blank(source, node))
    if node.type == "expression_statement" and node.named_children:
        inner = node.named_children[0]
        call = calls(source, inner)
        if call is None or call[0] not in _OTHERS:
            yield Edit.of(node, _blank(source, node))


def _early_return(source: Source, node: Node) -> Iterator[Edit]:
    """Leave a function at its start, and a thread of it before each barrier."""
    if node.type == "function_definition":
        body = node.child_by_field_name("body")
        kind = node.child_by_field_name("type")
        if body is not None and kind is not None and body.named_children:
            word = "return;" if returns_nothing(node) else "return {};"
            yield Edit(node, body.start_byte, body.start_byte + 1, f"{{ {word}")
    call = calls(source, node)
    if call is not None and call[0] == "__syncthreads":
        function = function_of(node)
        if function is not None and returns_nothing(function):
            text = f"if (threadIdx.x == 0) return; {source.text(node)}"
            yield Edit.of(node, text)


def _loop_bound(source: Source, node: Node) -> Iterator[Edit]:
    if node.type != "for_statement":
        return
    condition = node.child_by_field_name("condition")
    if condition is None or condition.type != "binary_expression":
        return
    bound = condition.child_by_field_name("right")
    if bound is not None:
        text = source.text(bound)
        yield Edit.of(bound, f"{text} - 1" if bound.child_count == 0 else f"({text}) - 1")


def _loop_stride(source: Source, node: Node) -> Iterator[Edit]:
    if node.type != "for_statement":
        return
    update = node.child_by_field_name("update")
    if update is None:
        return
    if update.type == "update_expression":
        counter = update.child_by_field_name("argument")
        sign = update.child_by_field_name("operator")
        if counter is not None and sign is not None:
            step = "+= 2" if source.text(sign) == "++" else "-= 2"
            yield Edit.of(update, f"{source.text(counter)} {step}")
    if update.type == "assignment_expression":
        step_node = update.child_by_field_name("right")
        if step_node is not None:
            yield Edit.of(step_node, f"({source.text(step_node)}) * 2")


OPERATORS = (
    Operator("statement-deleted", "something that is not done", _deletion),
    Operator("early-return", "a thread or a function that leaves too soon", _early_return),
    Operator("loop-bound", "a loop that ends one short", _loop_bound),
    Operator("loop-stride", "a loop that skips", _loop_stride),
)
