"""The source of functions that were typed into a notebook or an interactive session, as a module.

A function may use modules, other functions and classes whose source is known, and constants. Anything else exists only
in the memory of the session; it is named in the error.
"""

from __future__ import annotations

import builtins
import inspect
import symtable
import sys
import textwrap
import types
from collections.abc import Iterator
from typing import Any

from myrmidon.functions.graph_errors import GraphError
from myrmidon.functions.task_function import TaskFunction

_CONSTANTS = (type(None), bool, int, float, complex, str, bytes)


def session_source(functions: list[Any]) -> str:
    """A module with these plain functions of ``__main__`` and everything that they use."""
    collected = _Collected()
    for function in functions:
        collected.add(function.__name__, function)
    if collected.missing or collected.without_source:
        listed = "; ".join(f"{name} ({why})" for name, why in sorted(collected.missing.items()))
        shown = ", ".join(function.__name__ for function in functions)
        if unknown := sorted(collected.without_source):
            raise GraphError(
                f"the source of {', '.join(unknown)} is not known, so it cannot be sent to a bot: the prompt of Python"
                " does not keep it, while IPython and notebooks do. Write the functions into a file, and import them"
            )
        raise GraphError(
            f"the code of {shown} cannot be sent to a bot, because it uses {listed}. Pass such values as arguments, or "
            "move the functions into a module beside the notebook"
        )
    imports, definitions = sorted(collected.imports), collected.definitions.values()
    return "\n".join(["from __future__ import annotations", "", *imports, "", *definitions, ""])


class _Collected:
    """Statements that define names, in an order in which each is defined before it is needed."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.definitions: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self.without_source: set[str] = set()
        self._seen: set[str] = set()

    def add(self, name: str, value: Any) -> None:
        if name in self._seen:
            return
        self._seen.add(name)
        plain = value.function if isinstance(value, TaskFunction) else value
        if isinstance(plain, types.ModuleType):
            self.imports.add(f"import {plain.__name__} as {name}")
        elif isinstance(plain, (types.FunctionType, type)) and plain.__module__ == "__main__":
            self._add_source(name, plain)
        elif _is_constant(plain):
            self.definitions[name] = f"{name} = {plain!r}"
        elif (origin := _origin(name, plain)) is not None:
            self.imports.add(f"from {origin[0]} import {origin[1]} as {name}")
        else:
            self.missing[name] = f"an object of type {type(plain).__name__}"

    def _add_source(self, name: str, value: Any) -> None:
        try:
            source = textwrap.dedent(inspect.getsource(value))
        except (OSError, TypeError):
            self.without_source.add(name)
            return
        session = vars(sys.modules["__main__"])
        for used in _global_names(source):
            if used in session and used != name:
                self.add(used, session[used])
            elif used not in session and not hasattr(builtins, used):
                self.missing[used] = "not defined"
        self.definitions[name] = source


def _global_names(source: str) -> list[str]:
    """The names that a definition takes from its module, in any function inside of it too."""
    top = symtable.symtable(source, "<session>", "exec")
    defined = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned()}
    names = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    names |= {
        symbol.get_name()
        for table in _tables_below(top)
        for symbol in table.get_symbols()
        if symbol.is_global() and symbol.is_referenced()
    }
    return sorted(names - defined)


def _tables_below(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _tables_below(child)


def _is_constant(value: Any) -> bool:
    if type(value) in (tuple, list, set, frozenset):
        return all(map(_is_constant, value))
    if type(value) is dict:
        return all(_is_constant(key) and _is_constant(item) for key, item in value.items())
    return type(value) in _CONSTANTS


def _origin(name: str, value: Any) -> tuple[str, str] | None:
    """Where an object can be imported from, if its module has it under its own or the same name."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None or module.__name__ == "__main__":
        return None
    for candidate in (getattr(value, "__name__", None), name, getattr(value, "_name", None)):
        if isinstance(candidate, str) and getattr(module, candidate, None) is value:
            return module.__name__, candidate
    return None
