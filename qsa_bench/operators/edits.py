"""What an operator yields: one replacement of one place; and the registry of operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qsa_bench.operators.syntax import Source

if TYPE_CHECKING:
    from tree_sitter import Node


@dataclass(frozen=True)
class Edit:
    """Bytes `begin` to `end` become `text`; `node` is what the operator looked at."""

    node: Node
    begin: int
    end: int
    text: str

    @staticmethod
    def of(node: Node, text: str) -> Edit:
        """Replace a whole node."""
        return Edit(node, node.start_byte, node.end_byte, text)


Yields = Callable[[Source, "Node"], Iterator[Edit]]


@dataclass(frozen=True)
class Operator:
    """One kind of fault. `gate` says which fault of a real kernel it stands for.

    `race` operators break an order of accesses, which only some orders of threads show: the access
    checker is asked whatever a plain run says. `device` ones change what no run of one thread at a
    time can show.
    """

    name: str
    fault: str
    edits: Yields
    race: bool = False
    device: bool = False


def calls(source: Source, node: Node) -> tuple[str, Sequence[Node]] | None:
    """Return the name and the arguments of a call by plain name, None for anything else."""
    if node.type != "call_expression":
        return None
    function, arguments = (node.child_by_field_name(name) for name in ("function", "arguments"))
    if function is None or arguments is None or function.type != "identifier":
        return None
    return source.text(function), [
        child for child in arguments.named_children if child.type != "comment"
    ]


def operator_of(source: Source, node: Node) -> tuple[str, Node] | None:
    """Return the operator of a binary expression or an assignment, and its node."""
    if node.type not in ("binary_expression", "assignment_expression"):
        return None
    found = node.child_by_field_name("operator")
    return None if found is None else (source.text(found), found)


def is_statement(node: Node) -> bool:
    """True for an expression that is a statement of its own: nobody uses its value."""
    return node.parent is not None and node.parent.type == "expression_statement"
