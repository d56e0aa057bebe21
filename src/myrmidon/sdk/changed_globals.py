"""Warns that a program has changed constants of its modules: bots import the sources, and so get other values.

Only what is certain is said. A constant is a name that a sent module binds exactly once, at its top level, to a number,
text, bytes, boolean or a tuple of these, and that a called function reads, or a function which it calls. Its value is
compared with the one that the program has now. What is below ``if __name__ == "__main__"`` does not run on bots.

A name is left out if the functions set it themselves, or if code that bots run while they import may set it.
"""

from __future__ import annotations

import ast
import dis
import inspect
import io
import logging
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

from myrmidon.functions.task_function import TaskFunction
from myrmidon.functions.types import module_name
from myrmidon.sdk.code_zip import CodeZip

_PLAIN: Final = (bool, int, float, complex, str, bytes)
_SHOWN: Final = 60

_log = logging.getLogger("myrmidon")
_said: set[str] = set()


def warn_of_changed_globals(functions: Iterable[TaskFunction[Any, Any]], zips: Mapping[str, CodeZip]) -> None:
    """Log a warning for each constant that differs; the same sentence once."""
    given = list(functions)
    for packed in set(zips.values()):
        read = {one for function in given for one in _constants_read(function.function, packed)}
        for module, name in sorted(one for one in read if _differs(packed, *one)):
            here, there = vars(sys.modules[module])[name], _constants(packed, module)[name]
            warning = (
                f"{name} of {module} is {_shown(here)} in this program and {_shown(there)} on bots, which import the"
                " module. Pass such values as arguments."
            )
            if warning not in _said and not _is_set_by_import(packed, name):
                _said.add(warning)
                _log.warning("%s", warning)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


@lru_cache(maxsize=1_024)
def _constants_read(function: Any, packed: CodeZip) -> frozenset[tuple[str, str]]:
    """The constants (module, name) of a zip that a function and those that it calls read, unless they set them."""
    found: set[tuple[str, str]] = set()
    set_by_functions: set[tuple[str, str]] = set()
    pending = [function]
    seen: set[int] = set()
    while pending:
        plain = inspect.unwrap(pending.pop())
        if not isinstance(plain, FunctionType) or id(plain) in seen or _path_in(packed, plain.__module__) is None:
            continue
        seen.add(id(plain))
        read, stored = _names(plain.__code__)
        set_by_functions |= {(plain.__module__, name) for name in stored}
        for name in read:
            value = plain.__globals__.get(name)
            if isinstance(value, TaskFunction | FunctionType):
                pending.append(value.function if isinstance(value, TaskFunction) else value)
            elif isinstance(value, ModuleType):
                found |= {(value.__name__, one) for one in read & _constants(packed, value.__name__).keys()}
            elif name in _constants(packed, plain.__module__):
                found.add((plain.__module__, name))
    return frozenset(found - set_by_functions)


@lru_cache(maxsize=1_024)
def _names(code: CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """The names that a function reads as globals or attributes, and the globals that it sets."""
    read, stored = (
        set(code.co_names),
        {one.argval for one in dis.get_instructions(code) if one.opname == "STORE_GLOBAL"},
    )
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            inner_read, inner_stored = _names(inner)
            read |= inner_read
            stored |= inner_stored
    return frozenset(read), frozenset(stored)


def _differs(packed: CodeZip, module: str, name: str) -> bool:
    """Whether a constant has another value here. One that was deleted here has none."""
    there, values = _constants(packed, module)[name], vars(sys.modules[module])
    return name in values and (type(values[name]) is not type(there) or values[name] != there)


def _path_in(packed: CodeZip, module: str) -> str | None:
    path = module_name(module).replace(".", "/")
    return next((one for one in (f"{path}.py", f"{path}/__init__.py") if one in packed.names), None)


@lru_cache(maxsize=256)
def _constants(packed: CodeZip, module: str) -> dict[str, Any]:
    """The constants of a module of a zip, as its source gives them; none if it is not there."""
    name = _path_in(packed, module)
    if name is None or module not in sys.modules:
        return {}
    with zipfile.ZipFile(io.BytesIO(packed.data)) as archive:
        try:
            tree = ast.parse(archive.read(name))
        except (SyntaxError, ValueError):
            return {}  # edited since it was imported: bots will say what is wrong
    body = [one for one in tree.body if not _is_main_block(one)]
    bound = [one for statement in body for one in _bound(statement)]
    own = {one.name for one in body if isinstance(one, ast.FunctionDef)}
    if any(isinstance(one, ast.Name) and one.id in own for one in _called_by_import(body)):
        bound += [name for tree in body for one in ast.walk(tree) if isinstance(one, ast.Global) for name in one.names]
    return {name: value for name, value in map(_constant, body) if name and bound.count(name) == 1}


def _constant(statement: ast.stmt) -> tuple[str, Any]:
    """The name and the value that a statement binds; no name if the value is not a plain literal."""
    target: ast.expr | None = None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AnnAssign):
        target = statement.target
    if not isinstance(target, ast.Name) or statement.value is None:  # type: ignore[attr-defined]
        return "", None
    try:
        value = ast.literal_eval(statement.value)  # type: ignore[attr-defined]
    except ValueError:
        return "", None
    return (target.id, value) if _is_plain(value) else ("", None)


def _is_plain(value: Any) -> bool:
    return all(map(_is_plain, value)) if type(value) is tuple else type(value) in _PLAIN


def _is_main_block(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) in (
        "__name__ == '__main__'",
        "'__main__' == __name__",
    )


def _outside_of_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run while the module is imported."""
    yield tree
    if not isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        for child in ast.iter_child_nodes(tree):
            yield from _outside_of_functions(child)


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The names that a statement binds, as often as it does."""
    for node in _outside_of_functions(statement):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias):
            yield (node.asname or node.name).partition(".")[0]


def _called_by_import(body: Iterable[ast.stmt]) -> Iterator[ast.expr]:
    return (node.func for statement in body for node in _outside_of_functions(statement) if isinstance(node, ast.Call))


@lru_cache(maxsize=256)
def _is_set_by_import(packed: CodeZip, name: str) -> bool:
    """Whether a source of the zip may set an attribute of this name while it is imported."""
    text = re.escape(name).encode()
    pattern = re.compile(rb"^(?:[^\s#].*\.%s\s*=[^=]|setattr\(.*[\"']%s[\"'])" % (text, text), re.MULTILINE)
    with zipfile.ZipFile(io.BytesIO(packed.data)) as archive:
        return any(pattern.search(archive.read(one)) for one in packed.names if one.endswith(".py"))
