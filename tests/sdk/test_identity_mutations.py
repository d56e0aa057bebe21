"""Programs are run before and after every small edit: if the result of a function changes, so does its identity."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from myrmidon.sdk.code_zip import zip_files
from myrmidon.sdk.function_identity import CodeIdentities

FUNCTIONS = ("f", "g", "h")
PROGRAMS = {
    "helpers and constants": """
BASE = 10
SCALE = BASE * 2
NAMES = ["a", "b"]
NAMES.append("c")

def double(x): return x * 2
def triple(x, by=3): return x * by
def choose(x): return {"d": double, "t": triple}["t" if x > 4 else "d"](x)

def f(x): return choose(x) + SCALE
def g(x): return len(NAMES) + x + 4
def h(x): return triple(x) - 1
""",
    "classes": """
class Base:
    offset = 1
    def go(self, x): return self.step(x) + self.offset
    def step(self, x): return x

class Child(Base):
    def step(self, x): return x + 5

class Other:
    size = 7
    @property
    def twice(self): return self.size * 2
    @staticmethod
    def plain(x): return x - 4

def f(x): return Child().go(x)
def g(x): return Base().go(x)
def h(x): return Other().twice + Other.plain(x)
""",
    "registries": """
REGISTRY = {}
ORDER = []

def register(name, weight=2):
    def inner(function):
        REGISTRY[name] = function
        ORDER.append(weight)
        return function
    return inner

@register("one")
def one(x): return x + 1

@register("two", weight=9)
def two(x): return x + 2

def f(x): return REGISTRY["two"](x)
def g(x): return sum(ORDER)
def h(x): return x + 30
""",
    "closures and generators": """
import functools

def adder(n):
    def add(x): return x + n
    return add

add_five = adder(5)

def logged(function):
    @functools.wraps(function)
    def wrapper(*args): return function(*args) + 100
    return wrapper

@logged
def f(x): return add_five(x)

@logged
def g(x): return sum(i * 2 for i in range(x))

@functools.lru_cache(maxsize=4)
def h(x): return [y + 3 for y in (1, 2)][0] + x
""",
    "rebinding and state": """
LEVEL = 1
LEVEL = LEVEL + 1
STATE = {"n": 4}
for key in ("p", "q"):
    STATE[key] = len(STATE)
if LEVEL > 1:
    MODE = "fast"
else:
    MODE = "slow"

def bump():
    global LEVEL
    LEVEL += 3

def f(x):
    bump()
    return LEVEL
def g(x): return STATE["p"] + STATE["n"]
def h(x): return MODE
""",
    "dataclasses and matches": """
from dataclasses import dataclass, field
from enum import Enum

class Kind(Enum):
    SMALL = 1
    LARGE = 8

@dataclass
class Item:
    kind: Kind = Kind.SMALL
    parts: list = field(default_factory=lambda: [1, 2])

def weigh(item):
    match item:
        case Item(kind=Kind.LARGE): return item.kind.value * 2
        case _: return len(item.parts) + 6

def f(x): return weigh(Item())
def g(x): return weigh(Item(Kind.LARGE))
def h(x): return Kind(8 if x else 1).name
""",
}


class _Edit(ast.NodeTransformer):
    """Changes the constant with one number."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.seen = 0

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        self.seen += 1
        if self.seen - 1 != self.wanted:
            return node
        value = node.value
        changed = value + 1 if type(value) is int else f"{value}'" if isinstance(value, str) else value
        return ast.copy_location(ast.Constant(changed), node)


def edits(source: str) -> Iterator[str]:
    """The source with one constant after the other changed."""
    count = sum(isinstance(node, ast.Constant) for node in ast.walk(ast.parse(source)))
    for number in range(count):
        yield ast.unparse(ast.fix_missing_locations(_Edit(number).visit(ast.parse(source))))


def results(source: str) -> dict[str, Any] | None:
    """What the functions return; None if the module cannot be imported, which the submitter would notice."""
    found = {}
    for name in FUNCTIONS:
        module = types.ModuleType("app")
        sys.modules["app"] = module
        try:
            exec(compile(source, "app.py", "exec"), vars(module))
        except Exception:  # noqa: BLE001 - whatever the edit has broken
            return None
        finally:
            sys.modules.pop("app", None)
        try:
            found[name] = repr(vars(module)[name](7))
        except Exception as error:  # noqa: BLE001 - a result too
            found[name] = repr(error)
    return found


def identities(source: str) -> dict[str, str]:
    packed = CodeIdentities(zip_files({"app.py": source.encode()}))
    return {name: packed.identity("app", name) for name in FUNCTIONS}


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_edit_that_changes_a_result_keeps_the_identity(program):
    source = ast.unparse(ast.parse(PROGRAMS[program]))
    before, known = results(source), identities(source)
    assert before is not None
    num_changed = 0
    for edited in edits(source):
        after, now = results(edited), identities(edited)
        for name in FUNCTIONS if after is not None else ():
            if after is not None and after[name] != before[name]:
                num_changed += 1
                assert now[name] != known[name] or now[name] == "", f"{name} returns {after[name]}:\n{edited}"
    assert num_changed > 3


@pytest.mark.parametrize("program", ["helpers and constants", "classes", "closures and generators"])
def test_edits_of_one_function_leave_the_identities_of_others(program):
    """There are edits that change the result and the identity of one function only."""
    source = ast.unparse(ast.parse(PROGRAMS[program]))
    before, known = results(source), identities(source)
    alone = set()
    for edited in edits(source):
        after, now = results(edited), identities(edited)
        if before is None or after is None:
            continue
        changed = [name for name in FUNCTIONS if now[name] != known[name]]
        if len(changed) == 1 and after[changed[0]] != before[changed[0]]:
            alone.add(changed[0])
    assert len(alone) >= 2, alone
