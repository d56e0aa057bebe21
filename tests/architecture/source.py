"""The source tree as the structure tests see it: files and their syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "myrmidon"


def files(part: str = "") -> list[str]:
    """Every Python file of the package (or of one part, as "store"), relative to it.

    An `__init__.py` that holds nothing but its docstring is left out.
    """
    found = [path.relative_to(PACKAGE).as_posix() for path in sorted((PACKAGE / part).rglob("*.py"))]
    return [file for file in found if not (file.endswith("__init__.py") and _only_docstring(tree(file)))]


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text(), filename=file)


def imported_names(file: str) -> Iterator[str]:
    """Dotted names, `from a import b` giving `a.b`."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            start = ["myrmidon", *file.split("/")][: -node.level] if node.level else []
            module = [*start, node.module] if node.module else start
            yield from (".".join([*module, alias.name]) for alias in node.names)


def used_names(file: str) -> Iterator[str]:
    """Dotted names that are read: `time.time`, `random.random`."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Attribute) and (name := _dotted(node)):
            yield name


def called_names(file: str) -> Iterator[str]:
    """Plain names that are called: `eval`, `open`."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def strings(file: str) -> Iterator[str]:
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def filled_in(file: str) -> Iterator[tuple[str, list[str]]]:
    """Every f-string inside a function: how it begins, and the expressions that are filled in.

    Outside functions nothing can be filled in but what is in the source.
    """
    functions = [node for node in ast.walk(tree(file)) if isinstance(node, ast.FunctionDef)]
    for node in [inner for function in functions for inner in ast.walk(function)]:
        if isinstance(node, ast.JoinedStr):
            start = node.values[0].value if isinstance(node.values[0], ast.Constant) else ""
            holes = [ast.unparse(hole.value) for hole in node.values if isinstance(hole, ast.FormattedValue)]
            yield str(start), holes


def verbs(file: str) -> list[str]:
    """What others may call: a verb takes a transaction or a database first; what takes a turn is a step of one."""
    functions = [node for node in tree(file).body if isinstance(node, ast.FunctionDef)]
    return [
        node.name
        for node in functions
        if not node.name.startswith("_") and node.args.args and node.args.args[0].arg in ("tx", "db", "write")
    ]


def calls_of(path: Path) -> set[str]:
    """Full names of the imported functions that a file calls, or passes to a call, as in `partial(f, x)`."""
    module = ast.parse(path.read_text(), filename=str(path))
    imported = dict(_imports(module))
    calls = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
    names = [_dotted(node) for call in calls for node in (call.func, *call.args)]
    found = [name.partition(".") for name in names if name]
    return {f"{imported[head]}{dot}{rest}" for head, dot, rest in found if head in imported}


def _imports(module: ast.Module) -> Iterator[tuple[str, str]]:
    """(the name in the file, what it stands for)"""
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def raised(file: str, name: str) -> Iterator[str]:
    """The first argument of every call of an error class: constant texts, with ... for what is filled in."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name and node.args:
            yield "".join(_text_parts(node.args[0]))


def _text_parts(node: ast.expr) -> Iterator[str]:
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    for part in parts:
        yield str(part.value) if isinstance(part, ast.Constant) else "..."


def error_codes() -> list[str]:
    """The value of every class attribute `code` in model/errors.py."""
    classes = [node for node in tree("model/errors.py").body if isinstance(node, ast.ClassDef)]
    return [code for node in classes if (code := _code(node))]


def _code(node: ast.ClassDef) -> str | None:
    if any("Struct" in ast.unparse(base) for base in node.bases):
        return None  # a field with a default, not the code of an error
    for statement in node.body:
        match statement:
            case (
                ast.AnnAssign(target=ast.Name(id="code"), value=ast.Constant(value=str(code)))
                | ast.Assign(targets=[ast.Name(id="code")], value=ast.Constant(value=str(code)))
            ):
                return code
    return None


def _only_docstring(module: ast.Module) -> bool:
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in module.body)


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return f"{before}.{node.attr}"
    return None
