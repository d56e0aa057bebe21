"""The names that a piece of source takes from its module, each with the attributes that are read of it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

Chain: TypeAlias = tuple[str, ...]
"""A name and the attributes that follow it: ``os.path.join`` is ("os", "path", "join")."""

_Function = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_Comprehension = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def used_names(node: ast.AST) -> Iterator[Chain]:
    """Every name that is not one of a function's own, also in functions inside of the node.

    An expression that is not a name gives the attributes that are read of it, after an empty name. Names of imports
    inside of functions are not left out: they stand for what they import.
    """
    yield from _used(node, frozenset())
    for name in _names_in_texts(node):
        yield (name,)


def _used(node: ast.AST, own: frozenset[str]) -> Iterator[Chain]:
    """``own``: the names of the functions around the node."""
    rest: list[ast.AST] = [node]
    while rest:
        inner = rest.pop()
        attributes: list[str] = []
        while isinstance(inner, ast.Attribute):
            attributes.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name):
            if inner.id not in own:
                yield (inner.id, *reversed(attributes))
            continue
        if attributes:
            yield ("", *reversed(attributes))
        if isinstance(inner, ast.Global):
            yield from ((name,) for name in inner.names)
        elif isinstance(inner, _Function):
            outside, inside = _parts(inner)
            rest += outside
            names = _own_names(inner)
            for part in inside:
                yield from _used(part, (own | names) - _globals(inner))
        elif isinstance(inner, _Comprehension):
            rest.append(inner.generators[0].iter)
            names = frozenset(_stored(one.target for one in inner.generators))
            for part in ast.iter_child_nodes(inner):
                yield from _used(part, own | names)
        else:
            rest += ast.iter_child_nodes(inner)


def _parts(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> tuple[list[ast.AST], list[ast.AST]]:
    """What of a function belongs to the scope around it (decorators, defaults, annotations), and its body."""
    given = node.args
    outside: list[Any] = [*given.defaults, *[one for one in given.kw_defaults if one is not None]]
    if isinstance(node, ast.Lambda):
        return outside, [node.body]
    outside += [*node.decorator_list, *[one.annotation for one in _arguments(given) if one.annotation is not None]]
    if node.returns is not None:
        outside.append(node.returns)
    outside += getattr(node, "type_params", [])
    return outside, list(node.body)


def _arguments(given: ast.arguments) -> list[ast.arg]:
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [one for one in every if one is not None]


def _own_names(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> frozenset[str]:
    """The names that are a function's own: its arguments, and what is assigned in its body."""
    body = [node.body] if isinstance(node, ast.Lambda) else node.body
    return frozenset([one.arg for one in _arguments(node.args)]) | frozenset(_stored(body))


def _globals(node: ast.AST) -> frozenset[str]:
    return frozenset(name for inner in ast.walk(node) if isinstance(inner, ast.Global) for name in inner.names)


def _stored(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that these nodes assign in their own scope; not those of imports."""
    rest = list(nodes)
    while rest:
        inner = rest.pop()
        if isinstance(inner, ast.Name):
            if not isinstance(inner.ctx, ast.Load):
                yield inner.id
        elif isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield inner.name
        elif isinstance(inner, _Comprehension):
            for one in inner.generators:
                rest += [one.iter, *one.ifs]
            rest += [inner.key, inner.value] if isinstance(inner, ast.DictComp) else [inner.elt]
        elif not isinstance(inner, ast.Lambda):
            if isinstance(inner, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and inner.name:
                yield inner.name
            rest += ast.iter_child_nodes(inner)


def _names_in_texts(node: ast.AST) -> Iterator[str]:
    """The names in annotations that are written as texts."""
    annotations: list[ast.expr | None] = []
    for inner in ast.walk(node):
        if isinstance(inner, (ast.arg, ast.AnnAssign)):
            annotations.append(inner.annotation)
        elif isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)):
            annotations.append(inner.returns)
    for text in [text for one in annotations if one is not None for text in _texts(one)]:
        try:
            parsed = ast.parse(text, mode="eval")
        except (SyntaxError, ValueError):
            continue
        yield from (inner.id for inner in ast.walk(parsed) if isinstance(inner, ast.Name))


def _texts(annotation: ast.expr) -> Iterator[str]:
    for inner in ast.walk(annotation):
        if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
            yield inner.value
