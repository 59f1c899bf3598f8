"""Mutation operators: what each makes of a syntax tree's nodes. tree-sitter loads on first use."""

from __future__ import annotations

from collections.abc import Mapping

from qsa_bench.operators import expressions, parallel, statements
from qsa_bench.operators.edits import Edit, Operator
from qsa_bench.operators.syntax import Source

OPERATORS: Mapping[str, Operator] = {
    operator.name: operator
    for operator in (*expressions.OPERATORS, *statements.OPERATORS, *parallel.OPERATORS)
}

__all__ = ["OPERATORS", "Edit", "Operator", "Source"]
