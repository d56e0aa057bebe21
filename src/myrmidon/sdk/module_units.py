"""The top-level statements of a module as units: what each binds, and whether running it may change anything else.

A unit that only defines something (a function, a class, a constant) matters to those who use it. Any other one *runs*
when the module is imported, and may change what other units have made: it matters to everything in the module. In doubt
a unit runs.
"""

from __future__ import annotations

import ast
import builtins
import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

_CHANGEABLE = (ast.List, ast.Dict, ast.Set, ast.Call)
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)

_DECORATORS: Final = frozenset(
    {
        "builtins.staticmethod", "builtins.classmethod", "builtins.property", "functools.wraps", "functools.lru_cache",
        "functools.cache", "functools.cached_property", "functools.total_ordering", "dataclasses.dataclass",
        "contextlib.contextmanager", "contextlib.asynccontextmanager", "abc.abstractmethod", "typing.overload",
        "typing.final", "typing.override", "typing.runtime_checkable", "enum.unique", "myrmidon.task",
    }
)  # fmt: skip
_BASES: Final = frozenset(
    {
        "typing.NamedTuple", "typing.TypedDict", "typing.Protocol", "typing.Generic", "enum.Enum", "enum.IntEnum",
        "enum.StrEnum", "enum.Flag", "enum.IntFlag", "abc.ABC", "msgspec.Struct",
    }
)  # fmt: skip
_CALLS: Final = frozenset(
    {
        "re.compile", "logging.getLogger", "pathlib.Path", "pathlib.PurePath", "datetime.timedelta",
        "datetime.datetime", "datetime.date", "decimal.Decimal", "fractions.Fraction", "typing.TypeVar",
        "typing.NewType", "typing.ParamSpec", "collections.namedtuple", "collections.OrderedDict",
        "collections.Counter", "collections.deque", "dataclasses.field", "enum.auto", "os.environ.get", "os.getenv",
        "os.path.join", "math.sqrt", "math.log", "math.radians", "struct.Struct", "string.Template",
        *(f"builtins.{name}" for name in (
            "abs", "bool", "bytes", "complex", "dict", "divmod", "float", "frozenset", "int", "len", "list", "max",
            "min", "object", "pow", "range", "round", "set", "sorted", "str", "sum", "tuple",
        )),
    }
)  # fmt: skip
"""Calls that only make a value of their arguments."""
_QUIET_MODULES: Final = frozenset({"functools", "time", "typing", "contextlib", "math", "collections", "dataclasses"})
"""What a decorator may use and still change nothing but the function that it decorates."""
_TAKES_FUNCTIONS: Final = frozenset(
    {"functools.wraps", "functools.partial", "functools.update_wrapper", "functools.lru_cache", "functools.cache"}
    | {f"builtins.{name}" for name in ("callable", "isinstance", "getattr", "setattr", "hasattr", "id", "type")}
)
"""What may be given a function without calling it."""
_TYPING: Final = ("typing.", "collections.abc.", "builtins.", "collections.")


@dataclass(eq=False)
class Unit:
    """One top-level statement, or one name of an import."""

    node: ast.stmt
    binds: frozenset[str]
    runs: bool


@dataclass(eq=False)
class ModuleUnits:
    """A module: its units in order, and those that bind a name."""

    name: str
    is_package: bool
    units: list[Unit] = field(default_factory=list)
    by_name: dict[str, list[Unit]] = field(default_factory=dict)

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that a from-import names."""
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        kept = len(parts) - node.level + (1 if self.is_package else 0)
        return ".".join([*parts[: max(kept, 0)], *([node.module] if node.module else [])])


def read_module(name: str, source: bytes, *, is_package: bool, is_shipped: Callable[[str], bool]) -> ModuleUnits:
    """The units of a source. Raises SyntaxError or ValueError if it is none.

    ``is_shipped`` tells which modules are sent together with this one: what importing them does is known.
    """
    module = ModuleUnits(name, is_package)
    reader = _Reader(module, is_shipped)
    for statement in ast.parse(source).body:
        for node in _pieces(statement):
            unit = Unit(without_task(node, reader), frozenset(_bound(node)), reader.runs(node))
            module.units.append(unit)
            for bound in unit.binds:
                module.by_name.setdefault(bound, []).append(unit)
            reader.learn(unit)
    return module


def _pieces(statement: ast.stmt) -> Iterator[ast.stmt]:
    """A statement, an import name by name; nothing for what is not run on a bot or has no meaning there."""
    if isinstance(statement, ast.Import):
        yield from (ast.Import([alias]) for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom):
        yield from (ast.ImportFrom(statement.module, [alias], statement.level) for alias in statement.names)
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return
    elif isinstance(statement, ast.If) and _is_main_guard(statement.test):
        yield from statement.orelse
    else:
        yield statement


def _is_main_guard(test: ast.expr) -> bool:
    """Whether a condition is ``__name__ == "__main__"``: bots import the module under another name."""
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        return False
    sides = [test.left, test.comparators[0]]
    names = [side.id for side in sides if isinstance(side, ast.Name)]
    texts = [side.value for side in sides if isinstance(side, ast.Constant)]
    return names == ["__name__"] and texts == ["__main__"]


def _bound(node: ast.stmt) -> Iterator[str]:
    """Every name that a statement may bind in its module; also those of inner scopes, which does no harm."""
    if isinstance(node, (*_Function, ast.ClassDef)):
        yield node.name
        return
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and not isinstance(inner.ctx, ast.Load):
            yield inner.id
        elif isinstance(inner, (*_Function, ast.ClassDef)):
            yield inner.name
        elif isinstance(inner, (ast.Import, ast.ImportFrom)):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in inner.names)
        elif isinstance(inner, (ast.MatchAs, ast.MatchStar, ast.ExceptHandler)) and inner.name:
            yield inner.name


def without_task(node: ast.stmt, reader: _Reader) -> ast.stmt:
    """A function without ``@task``: its options are in the request, and say nothing about the result."""
    if not isinstance(node, (*_Function, ast.ClassDef)):
        return node
    made = copy.copy(node)
    made.decorator_list = [one for one in node.decorator_list if reader.origin(_callee(one)) != "myrmidon.task"]
    if isinstance(made, ast.ClassDef):
        made.body = [without_task(inner, reader) for inner in made.body]
    return made


def _callee(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


class _Reader:
    """Decides of each statement of a module, in order, whether it runs."""

    def __init__(self, module: ModuleUnits, is_shipped: Callable[[str], bool]) -> None:
        self.module = module
        self.is_shipped = is_shipped
        self._origins: dict[str, str] = {}
        """What the names of imports stand for."""
        self._plain: set[str] = set()
        """Names of constants: literals, and what is computed of them."""
        self._fixed: set[str] = set()
        """Those of them that nothing can change."""
        self._quiet: set[str] = set()
        """Functions that change nothing but what they are given, and classes that may be derived from."""
        self._bound: set[str] = set()

    def learn(self, unit: Unit) -> None:
        """Note what the names of a unit are, for the statements after it."""
        again, node = unit.binds & self._bound, unit.node
        self._bound |= unit.binds
        for names in (self._plain, self._fixed, self._quiet):
            names -= again
        for name in again:
            self._origins[name] = "?"
        if again:
            return
        if isinstance(node, ast.Import):
            alias = node.names[0]
            self._origins[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )
        elif isinstance(node, ast.ImportFrom):
            alias = node.names[0]
            self._origins[alias.asname or alias.name] = f"{self.module.absolute(node)}.{alias.name}"
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and not unit.runs and _plain_value(node, self):
            self._plain |= unit.binds
            if not any(isinstance(one, _CHANGEABLE) for one in ast.walk(node)) and self._names_fixed(node):
                self._fixed |= unit.binds
        elif not unit.runs and self._is_quiet(node):
            self._quiet |= unit.binds

    def origin(self, node: ast.expr) -> str:
        """The full name of what an expression stands for, such as ``functools.cache``; empty if it is not known."""
        if isinstance(node, ast.Attribute):
            base = self.origin(node.value)
            return f"{base}.{node.attr}" if base else ""
        if not isinstance(node, ast.Name):
            return ""
        if node.id in self._origins:
            return self._origins[node.id]
        return f"builtins.{node.id}" if node.id not in self._bound and hasattr(builtins, node.id) else ""

    # -- statements

    def runs(self, node: ast.stmt) -> bool:
        """Whether a statement may do more than bind its names."""
        if isinstance(node, _Function):
            return not self._defines(node)
        if isinstance(node, ast.ClassDef):
            return not self._is_quiet_class(node)
        if isinstance(node, ast.Assign):
            return not (all(map(_is_name_target, node.targets)) and self.is_value(node.value))
        if isinstance(node, ast.AnnAssign):
            named = isinstance(node.target, ast.Name)
            return not (named and self.is_annotation(node.annotation) and self.is_value(node.value))
        if isinstance(node, ast.Import):
            return not self._is_quiet_import(node.names[0].name)
        if isinstance(node, ast.ImportFrom):
            return node.names[0].name == "*" or not self._is_quiet_import(self.module.absolute(node))
        return not isinstance(node, ast.Pass)

    def _is_quiet_import(self, module: str) -> bool:
        """Whether an import changes nothing that is not known: that of an installed package may do anything.

        ``__future__`` changes the module itself.
        """
        top = module.partition(".")[0]
        known = top in sys.stdlib_module_names or top == "myrmidon" or self.is_shipped(module)
        return known and module != "__future__"

    def _defines(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        given = node.args
        defaults = [*given.defaults, *[one for one in given.kw_defaults if one is not None]]
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        annotations = [one.annotation for one in every if one is not None]
        return (
            all(map(self._is_quiet_decorator, node.decorator_list))
            and all(map(self.is_value, defaults))
            and all(map(self.is_annotation, [*annotations, node.returns]))
        )

    def _is_quiet_decorator(self, node: ast.expr) -> bool:
        arguments = [*node.args, *[one.value for one in node.keywords]] if isinstance(node, ast.Call) else []
        called = _callee(node)
        origin = self.origin(called)
        if origin == "myrmidon.task":
            return True
        quiet = origin in _DECORATORS or (isinstance(called, ast.Name) and called.id in self._quiet)
        accessor = isinstance(called, ast.Attribute) and called.attr in ("setter", "getter", "deleter")
        return (quiet or accessor) and all(map(self.is_plain, arguments))

    def _is_quiet_class(self, node: ast.ClassDef) -> bool:
        keywords = all(one.arg != "metaclass" and self.is_plain(one.value) for one in node.keywords)
        return (
            keywords
            and all(map(self._is_quiet_decorator, node.decorator_list))
            and all(map(self._is_quiet_base, node.bases))
            and all(map(self._is_quiet_member, node.body))
        )

    def _is_quiet_base(self, node: ast.expr) -> bool:
        base = node.value if isinstance(node, ast.Subscript) else node
        origin = self.origin(base)
        return (
            origin in _BASES
            or origin.startswith("builtins.")
            or (isinstance(base, ast.Name) and base.id in self._quiet)
        )

    def _is_quiet_member(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.Expr):
            return isinstance(node.value, ast.Constant)
        return isinstance(node, (*_Function, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.Pass)) and not self.runs(node)

    def _names_fixed(self, node: ast.stmt) -> bool:
        used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
        return used <= self._fixed

    def _is_quiet(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.ClassDef):
            return not _has_hook(node)
        return isinstance(node, _Function) and self._changes_nothing(node)

    def _changes_nothing(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        """Whether a function uses nothing of its module that it could change."""
        own = {inner.arg for inner in ast.walk(node) if isinstance(inner, ast.arg)} | set(_stored(node)) | {node.name}
        for inner in ast.walk(node):
            if isinstance(inner, (ast.Global, ast.Import, ast.ImportFrom)):
                return False
            if not isinstance(inner, ast.Name) or inner.id in own or inner.id in self._fixed | self._quiet:
                continue
            origin = self.origin(inner)
            if origin in DYNAMIC_BUILTINS or origin.partition(".")[0] not in _QUIET_MODULES | {"builtins"}:
                return False
        return not _calls_arguments(node, self)

    # -- expressions

    def is_annotation(self, node: ast.expr | None) -> bool:
        """Whether evaluating an annotation only names types."""
        return node is None or not any(isinstance(one, (ast.Call, ast.NamedExpr, ast.Await)) for one in ast.walk(node))

    def is_value(self, node: ast.expr | None) -> bool:
        """Whether evaluating an expression only makes a value."""
        if node is None or self.is_plain(node) or isinstance(node, (ast.Name, ast.Lambda)):
            return True
        if isinstance(node, ast.Attribute):
            return bool(self.origin(node)) and self.origin(node) != "?"
        if isinstance(node, ast.Subscript):
            return self.origin(node.value).startswith(_TYPING) and self.is_annotation(node.slice)
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            return all(map(self.is_value, node.elts))
        if isinstance(node, ast.Dict):
            return all(map(self.is_value, [*node.keys, *node.values]))
        return False

    def is_plain(self, node: ast.expr | None) -> bool:
        """Whether an expression is a constant, or computed of constants by operators and calls that change nothing."""
        if node is None or isinstance(node, ast.Constant):
            return True
        if isinstance(node, ast.Name):
            return node.id in self._plain or node.id == "__name__" or self.origin(node) in _CALLS
        if isinstance(node, ast.Call):
            arguments = [*node.args, *[one.value for one in node.keywords]]
            return self.origin(node.func) in _CALLS and all(map(self.is_plain, arguments))
        if isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare,
                             ast.IfExp, ast.JoinedStr, ast.FormattedValue, ast.Starred, ast.Subscript)):  # fmt: skip
            return all(self.is_plain(one) for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr))
        return False


def _calls_arguments(node: ast.FunctionDef | ast.AsyncFunctionDef, reader: _Reader) -> bool:
    """Whether a decorator may call what it decorates before anyone calls the result."""
    arguments = {inner.arg for inner in ast.walk(node) if isinstance(inner, ast.arg)}
    rest: list[ast.AST] = [node]
    while rest:
        inner = rest.pop()
        wrapped = isinstance(inner, _Function) and any(
            reader.origin(_callee(one)) == "functools.wraps" for one in inner.decorator_list
        )
        if wrapped:
            continue  # the wrapper itself: it runs when the result is called
        if isinstance(inner, ast.Call) and reader.origin(inner.func) not in _TAKES_FUNCTIONS:
            used = {one.id for one in ast.walk(inner) if isinstance(one, ast.Name)}
            if used & arguments:
                return True
        rest += ast.iter_child_nodes(inner)
    return False


def _plain_value(node: ast.Assign | ast.AnnAssign, reader: _Reader) -> bool:
    return node.value is not None and reader.is_plain(node.value)


def _is_name_target(node: ast.expr) -> bool:
    if isinstance(node, (ast.Tuple, ast.List)):
        return all(map(_is_name_target, node.elts))
    return isinstance(node, ast.Name)


def _has_hook(node: ast.ClassDef) -> bool:
    """Whether a class may run code when another one derives from it."""
    return any(isinstance(one, _Function) and one.name == "__init_subclass__" for one in node.body)


def _stored(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id
        elif isinstance(inner, (*_Function, ast.ClassDef)):
            yield inner.name


DYNAMIC_BUILTINS: Final = frozenset(f"builtins.{name}" for name in ("eval", "exec", "compile", "__import__", "globals"))
