"""Small faults that could be in a module: a swapped comparison, ``and`` for ``or``, ``+`` for ``-``, a turned condition."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.In: "not in",
    ast.NotIn: "in",
    ast.Is: "is not",
    ast.IsNot: "is",
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True)
class Fault:
    """One change of one place on one line."""

    file: str  # from the root of the tree
    function: str  # the innermost one; empty at the level of the module
    line: int
    start: int  # of the place in its line, in bytes
    end: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.old}  ->  {self.new}"

    def applied_to(self, text: str) -> str:
        lines = text.splitlines(keepends=True)
        row = lines[self.line - 1].encode()
        lines[self.line - 1] = (row[: self.start] + self.new.encode() + row[self.end :]).decode()
        return "".join(lines)

    def fits(self, text: str) -> bool:
        """Is the changed file still Python?"""
        try:
            compile(self.applied_to(text), self.file, "exec")
        except SyntaxError:
            return False
        return True


def faults_of(root: Path, file: str) -> list[Fault]:
    """Every fault of a file whose place is on one line."""
    text = (root / file).read_text()
    rows = [row.encode() for row in text.splitlines()]
    return [
        Fault(file, function, node.lineno, node.col_offset, node.end_col_offset or 0, old, new)
        for function, node, new in _walk(ast.parse(text), "", rows)
        if (old := _source(rows, node)) and new != old and _is_at(node, old)
    ]


def _source(rows: Sequence[bytes], node: ast.expr | ast.stmt) -> str:
    """The text of a place; none where it spans lines. ``ast.get_source_segment`` splits the file at each call."""
    if node.end_lineno != node.lineno:
        return ""
    return rows[node.lineno - 1][node.col_offset : node.end_col_offset].decode()


def _is_at(node: ast.expr | ast.stmt, old: str) -> bool:
    """Is the place really there? Python 3.11 counts places inside of f-strings from elsewhere."""
    try:
        there = ast.parse(old).body[0]
    except (SyntaxError, IndexError):
        return False
    return ast.dump(there.value if isinstance(there, ast.Expr) else there) == ast.dump(node)


def _walk(
    tree: ast.AST, function: str, rows: Sequence[bytes]
) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        for place, new in _changes(node, rows):
            yield inner, place, new
        yield from _walk(node, inner, rows)


def _changes(node: ast.AST, rows: Sequence[bytes]) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    def source(part: ast.expr) -> str:
        return _source(rows, part)

    match node:
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in COMPARISONS:
            yield node, f"{source(left)} {COMPARISONS[type(operator)]} {source(right)}"
        case ast.BoolOp(op=operator, values=values):
            other = " or " if isinstance(operator, ast.And) else " and "
            yield node, f"({other.join(f'({source(value)})' for value in values)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"bool({source(operand)})"
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as operator, right=right) if _is_sum(node):
            sign = "-" if isinstance(operator, ast.Add) else "+"
            yield node, f"(({source(left)}) {sign} ({source(right)}))"
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            yield node, CALLS[name] + source(node)[len(name) :]
        case ast.If(test=test):
            yield test, f"not ({source(test)})"
        case ast.Continue():
            yield node, "pass"


def _is_sum(node: ast.BinOp) -> bool:
    """Not of texts or lists, which cannot be subtracted: everything would notice that."""
    plain = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    return not any(
        isinstance(part, plain) or (isinstance(part, ast.Constant) and isinstance(part.value, str | bytes))
        for part in (node.left, node.right)
    )
