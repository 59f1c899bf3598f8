"""A kernel source as a syntax tree, with what a mutation operator asks of it. Owns tree-sitter.

The grammar knows C++ and CUDA, not this tree's macros: those that a parser trips over are masked by
text of the same length, so that every offset in the tree is an offset in the source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from qsa_bench.errors import EnvironmentMissingError

if TYPE_CHECKING:
    from tree_sitter import Node

# A macro that stands for an attribute or a pragma: before a loop, or before a return type.
_ALONE = re.compile(rb"^([ \t]*)(QSA_[A-Z_]+)([ \t]*)$", re.MULTILINE)
_ATTRIBUTE = re.compile(rb"(__device__ )(QSA_[A-Z_]+)(?= )")
_SHARED = re.compile(rb"QSA_SHARED\(([^,()]+),([^,()]+),([^;]*)\)(?=;)")
_DYNAMIC = re.compile(rb"QSA_DYNAMIC_SHARED\(([^,()]+),([^,()]+)\)(?=;)")
# What no mutant changes: text, directives, what only a compiler's register allocation sees.
_NO_BEHAVIOUR = ("comment", "preproc_include", "preproc_def", "launch_bounds", "ERROR")
# The statements that a mutant may take away whole, and the smallest text an id is made of.
_STATEMENTS = (
    "expression_statement",
    "return_statement",
    "declaration",
    "if_statement",
    "for_statement",
    "while_statement",
    "do_statement",
    "break_statement",
    "continue_statement",
    "static_assert_declaration",
    "field_declaration",
)
# Where a value must be known to the compiler.
_EARLY = (
    "static_assert_declaration",
    "template_argument_list",
    "template_parameter_list",
    "array_declarator",
    "case_statement",
    "enumerator_list",
    "type_descriptor",
    "sizeof_expression",
    "alignas_qualifier",
    "field_declaration",
)


@cache
def _parser() -> Any:
    try:
        import tree_sitter_cuda
        from tree_sitter import Language, Parser
    except ImportError as error:
        raise EnvironmentMissingError(
            f"deriving mutants from the syntax tree: {error.name or 'tree_sitter'} is not "
            "installed; pip install 'qsa-bench[auto]'"
        ) from None
    return Parser(Language(tree_sitter_cuda.language()))


def _masked(text: bytes) -> bytes:
    """Return the text as the parser reads it: as long, line for line."""

    def blank(match: re.Match[bytes]) -> bytes:
        return match[1] + b" " * len(match[2]) + (match[3] if match.lastindex == 3 else b"")

    def shared(match: re.Match[bytes]) -> bytes:
        # QSA_SHARED(T, name, n) reads "           T  name[ n]".
        return b" " * len(b"QSA_SHARED(") + match[1] + b" " + match[2] + b"[" + match[3] + b"]"

    def dynamic(match: re.Match[bytes]) -> bytes:
        return b" " * len(b"QSA_DYNAMIC_SHARED(") + match[1] + b"*" + match[2] + b" "

    text = _ALONE.sub(blank, text)
    text = _ATTRIBUTE.sub(blank, text)
    text = _SHARED.sub(shared, text)
    return _DYNAMIC.sub(dynamic, text)


class Source:
    """One file: `path` relative to the tree's root, its bytes, and the nodes of its tree."""

    def __init__(self, path: str, content: bytes) -> None:
        self.path = path
        self.content = content
        self.shared_sizes = [match.span(3) for match in _SHARED.finditer(content)]
        self._tree = _parser().parse(_masked(content))

    @property
    def root(self) -> Node:
        """The whole file's node."""
        node: Node = self._tree.root_node
        return node

    def nodes(self) -> Iterator[Node]:
        """Yield every node outside comments and directives that the parser understood, in order."""
        pending = [self.root]
        while pending:
            node = pending.pop()
            if node.type in _NO_BEHAVIOUR:
                continue
            yield node
            pending.extend(reversed(node.children))

    def unparsed(self) -> list[int]:
        """Return the lines, from 1, that the parser did not understand: they get no mutant."""
        found: set[int] = set()
        pending = [self.root]
        while pending:
            node = pending.pop()
            if node.type == "ERROR" or node.is_missing:
                found.add(node.start_point[0] + 1)
            pending.extend(node.children)
        return sorted(found)

    def text(self, node: Node) -> str:
        """Return what the source says there, macros as they are."""
        return self.content[node.start_byte : node.end_byte].decode()


def function_of(node: Node) -> Node | None:
    """Return the innermost function definition around a node, None at file scope."""
    at: Node | None = node
    while at is not None and at.type != "function_definition":
        at = at.parent
    return at


def function_name(function: Node | None) -> str:
    """Return a function's name with its class, "file" for what is in none."""
    if function is None:
        return "file"
    name = _declared(function)
    at = function.parent
    while at is not None:
        if at.type in ("struct_specifier", "class_specifier"):
            own = at.child_by_field_name("name")
            if own is not None and own.text is not None:
                return f"{own.text.decode()}.{name}"
        at = at.parent
    return name


def _declared(function: Node) -> str:
    pending = [function.child_by_field_name("declarator")]
    while pending:
        node = pending.pop(0)
        if node is None:
            continue
        if node.type == "function_declarator":
            named = node.child_by_field_name("declarator")
            if named is not None and named.text is not None:
                return str(named.text.decode()).rpartition("::")[2]
        pending.extend(node.children)
    return "unnamed"


def statement_of(node: Node) -> Node:
    """Return the innermost statement, declaration or member around a node."""
    at = node
    while at.type not in _STATEMENTS and at.parent is not None:
        if at.type == "function_definition":
            return node
        at = at.parent
    return at if at.parent is not None else node


def scope_of(node: Node) -> Node:
    """Return the innermost branch of the preprocessor, function or top-level item around a node."""
    at = node
    while at.parent is not None:
        if at.type == "function_definition" or at.type.startswith("preproc_"):
            return at
        if at.parent.type in ("translation_unit", "declaration_list"):
            return at
        at = at.parent
    return at


def is_device(function: Node | None) -> bool:
    """True in a function that runs on the device."""
    if function is None:
        return False
    return any(child.type in ("__global__", "__device__") for child in function.children)


def returns_nothing(function: Node) -> bool:
    """True for a function of type void (and not a pointer to it)."""
    kind = function.child_by_field_name("type")
    declarator = function.child_by_field_name("declarator")
    return (
        kind is not None
        and kind.text == b"void"
        and declarator is not None
        and declarator.type == "function_declarator"
    )


def is_evaluated_early(node: Node) -> bool:
    """True for what a compiler needs the value of, and for what stands in no function's body."""
    at = node
    while at.type not in _EARLY:
        if at.type in ("declaration", "field_declaration") and _is_constexpr(at):
            return True
        parent = at.parent
        if parent is None:
            return True
        if parent.type == "function_definition":
            runs = at.type in ("compound_statement", "field_initializer_list")
            return not runs or _is_constexpr(parent)
        chosen = any(child.type == "constexpr" for child in parent.children)
        if chosen and at == parent.child_by_field_name("condition"):
            return True
        at = parent
    return True


def _is_constexpr(node: Node) -> bool:
    return any(
        child.type == "type_qualifier" and child.text == b"constexpr" for child in node.children
    )
