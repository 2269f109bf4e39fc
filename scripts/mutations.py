"""Mutations of a Python module, for scripts/mutants.py: small changes, each of which some test should notice.

A mutation replaces the text of one node of the syntax tree, so that its diff is short. Texts for people (messages,
hints, events) are not mutated; the statement that raises or emits them is deleted as a whole.
"""

from __future__ import annotations

import ast
import difflib
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import TypeVar

T = TypeVar("T")

COMPARISONS = {
    ast.Eq: "!=", ast.NotEq: "==", ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
FUNCTIONS = {"any": "all", "all": "any", "min": "max", "max": "min", "sorted": "list"}
TEXT_CALLS = re.compile(r"Error$|^_?events$|^_?warn$|^_?tell$|^_lose$")
"""Names of what takes texts for people."""
TEXT_KEYWORDS = {"hint", "where", "diagnostics", "encoding", "indent"}
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Mutation:
    """`source`: the whole mutated module; `lines`: of the original, whose tests are run; `runtime`: it is in the body
    of a function, not in what runs when the module is imported."""

    file: str
    lines: range
    source: str
    runtime: bool

    def diff(self, original: str) -> list[str]:
        """Lines that differ, with - and + before them."""
        lines = difflib.unified_diff(original.splitlines(), self.source.splitlines(), n=0, lineterm="")
        return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def mutations(file: str, source: str) -> list[Mutation]:
    """All mutations of a module, in the order of its text."""
    walker = _Walker(file, source)
    walker.visit(ast.parse(source))
    unique = {mutation.source: mutation for mutation in walker.mutations}
    return sorted((m for m in unique.values() if _compiles(m.source)), key=lambda m: (m.lines.start, m.source))


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


class _Walker(ast.NodeVisitor):
    """Visits what is mutated. Positions are bytes, as the syntax tree has them."""

    def __init__(self, file: str, source: str) -> None:
        self.mutations: list[Mutation] = []
        self._file, self._source = file, source.encode()
        ends = [line + b"\n" for line in self._source.split(b"\n")]
        self._starts = [0]
        for line in ends:
            self._starts.append(self._starts[-1] + len(line))
        self._tokens = [
            (self._starts[t.start[0] - 1] + len(t.line[: t.start[1]].encode()), t.string)
            for t in tokenize.generate_tokens(io.StringIO(source).readline)
            if t.type in (tokenize.OP, tokenize.NAME)
        ]
        self._statement: ast.stmt | None = None
        self._runtime = False

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            outer, self._statement = self._statement, node
            super().visit(node)
            self._statement = outer
        else:
            super().visit(node)

    # what has no mutations inside

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Python 3.11 does not know the positions inside."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """For type checkers."""

    def visit_Raise(self, node: ast.Raise) -> None:
        self._replace(node, "pass")

    def visit_Import(self, node: ast.Import) -> None:
        pass

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._attribute(node, node.target)
            self.visit(node.value)

    # definitions

    def visit_FunctionDef(self, node: FUNCTION) -> None:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.visit(default)
        outer, self._runtime = self._runtime, True
        for statement in node.body[_documented(node) :]:
            self.visit(statement)
        self._runtime = outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases):
            return  # nobody calls its methods
        for statement in node.body[_documented(node) :]:
            self.visit(statement)

    # statements

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._replace(node, "pass")
        elif isinstance(node.value, ast.Yield) and node.value.value is not None:
            self._replace(node, "() if True else (yield)")
        elif isinstance(node.value, ast.YieldFrom):
            self._replace(node, "yield from ()")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._attribute(node, *node.targets)
        self.visit(node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._replace(node, "pass")
        self.visit(node.value)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._replace(node, "pass")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(node, "pass")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self._replace(node, "pass")
        elif not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self._replace(node, "return None")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if isinstance(node.type, ast.Tuple):
            for index in range(len(node.type.elts)):
                self._replace(node.type, ast.unparse(ast.Tuple(_without(node.type.elts, index), ast.Load())))
        if not isinstance(node.body[0], ast.Raise):
            self._replace(node.body[0], "raise", end=node.body[-1])
        for statement in node.body:
            self.visit(statement)

    # expressions

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._replace(test, "True")
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for operand, right in zip(node.values, node.values[1:], strict=False):
            self._operator(node, operand, right, old, new)
        for index in range(len(node.values)):
            operands = _without(node.values, index)
            self._replace(node, ast.BoolOp(node.op, operands) if len(operands) > 1 else operands[0])
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._replace(node, node.operand)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operand = node.left
        for op, right in zip(node.ops, node.comparators, strict=True):
            if type(op) in COMPARISONS:
                self._operator(node, operand, right, _operator_text(op), COMPARISONS[type(op)])
            operand = right
        for side in (node.left, *node.comparators):
            self._strings(side)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.right, ast.Constant) and node.right.value == "\n":
            self.visit(node.left)
            return
        if isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.BitOr | ast.BitAnd | ast.BitXor):
            self._replace(node, node.left)
        if isinstance(node.op, ast.Add | ast.BitOr | ast.BitAnd | ast.BitXor):
            self._replace(node, node.right)
        if isinstance(node.op, ast.Div):
            self._strings(node.right)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.value, ast.Name) and node.value.id == "Literal":
            return
        self._strings(node.slice)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))
        elif isinstance(node.value, int | float):
            self._replace(node, repr(node.value + 1))

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if TEXT_CALLS.search(name):
            return
        if isinstance(node.func, ast.Name) and name in FUNCTIONS and not (name == "sorted" and node.keywords):
            self._replace(node.func, FUNCTIONS[name])
        if name in ("get", "pop", "startswith", "endswith", "partition", "setdefault"):
            for argument in node.args[:1]:
                self._strings(argument)
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in TEXT_KEYWORDS:
                end = self._end(keyword)
                comma = next((position + 1 for position, text in self._tokens if position >= end and text == ","), end)
                end = comma if not self._source[end : comma - 1].strip() else end
                self._add(node, self._start(keyword), end, b"")
        self.visit(node.func)
        for argument in node.args:
            self.visit(argument)
        for keyword in node.keywords:
            if keyword.arg not in TEXT_KEYWORDS:
                self.visit(keyword.value)

    # how

    def _attribute(self, node: ast.stmt, *targets: ast.expr) -> None:
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
            self._replace(node, "pass")

    def _negate(self, test: ast.expr) -> None:
        """What other mutations invert already is left out."""
        inverted = isinstance(test, ast.Compare) and not isinstance(test.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE)
        if not inverted and not isinstance(test, ast.BoolOp | ast.UnaryOp):
            self._replace(test, f"not ({ast.unparse(test)})")

    def _strings(self, node: ast.expr) -> None:
        for part in [node, *(node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else ())]:
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                self._replace(part, repr(f"XX{part.value}"))

    def _operator(self, node: ast.expr, operand: ast.expr, right: ast.expr, old: str, new: str) -> None:
        start, end = self._end(operand), self._start(right)
        tokens = old.split()
        at = [(position, text) for position, text in self._tokens if start <= position < end and text in tokens]
        begin, finish = at[0][0], at[-1][0] + len(at[-1][1])
        self._add(node, begin, finish, new.encode())

    def _replace(self, node: ast.AST, new: ast.AST | str, end: ast.AST | None = None) -> None:
        text = new if isinstance(new, str) else f"({ast.unparse(new)})"
        self._add(node, self._start(node), self._end(end or node), text.encode())

    def _add(self, node: ast.AST, start: int, end: int, text: bytes) -> None:
        mutated = (self._source[:start] + text + self._source[end:]).decode()
        first, last = node.lineno, node.end_lineno  # type: ignore[attr-defined]
        statement = self._statement
        if statement is not None and not isinstance(statement, ast.ClassDef | FUNCTION):
            simple = not hasattr(statement, "body")
            first, last = (statement.lineno, statement.end_lineno or last) if simple else (first, last)
        self.mutations.append(Mutation(self._file, range(first, last + 1), mutated, self._runtime))

    def _start(self, node: ast.AST) -> int:
        return self._starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined,no-any-return]

    def _end(self, node: ast.AST) -> int:
        return self._starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined,no-any-return]


def _without(items: list[T], index: int) -> list[T]:
    return [*items[:index], *items[index + 1 :]]


def _documented(node: ast.ClassDef | FUNCTION) -> int:
    """1 where the body begins with a docstring, else 0."""
    return int(ast.get_docstring(node, clean=False) is not None)


def _operator_text(op: ast.cmpop) -> str:
    names = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Is: "is",
             ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"}  # fmt: skip
    return names[type(op)]


def scopes(code: CodeType) -> Iterator[tuple[str, CodeType]]:
    """(qualified name, code) of a code object and of all inside it."""
    yield code.co_qualname, code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from scopes(constant)
