"""The statements of a module: which names each binds and reads, what it imports, and whether it runs.

A statement that only defines names (a function, a class, a constant, an import) matters to those who use the names. Any
other *runs*: it may change what others have defined. In doubt a statement runs. No other module is read for this.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import symtable
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, TypeAlias

Chain: TypeAlias = tuple[str, ...]
"""A name and the attributes that are read of it: ``os.path.join`` is ("os", "path", "join")."""
Function = (ast.FunctionDef, ast.AsyncFunctionDef)
Import = (ast.Import, ast.ImportFrom)

_DECORATORS: Final = frozenset(
    {"builtins.staticmethod", "builtins.classmethod", "builtins.property", "functools.lru_cache", "functools.cache",
     "functools.cached_property", "functools.total_ordering", "dataclasses.dataclass", "contextlib.contextmanager",
     "contextlib.asynccontextmanager", "abc.abstractmethod", "typing.overload", "typing.final", "enum.unique"}
)  # fmt: skip
_BASES: Final = frozenset(
    {"typing.NamedTuple", "typing.TypedDict", "typing.Protocol", "abc.ABC", "msgspec.Struct",
     "enum.Enum", "enum.IntEnum", "enum.StrEnum", "enum.Flag"}
)  # fmt: skip
_CALLS: Final = _DECORATORS | frozenset(
    {"re.compile", "logging.getLogger", "pathlib.Path", "datetime.timedelta", "datetime.datetime", "datetime.date",
     "decimal.Decimal", "typing.TypeVar", "collections.namedtuple", "collections.Counter", "collections.deque",
     "collections.OrderedDict", "os.getenv", "os.environ.get", "os.path.join", "dataclasses.field", "enum.auto",
     "builtins.abs", "builtins.bool", "builtins.bytes", "builtins.dict", "builtins.float", "builtins.frozenset",
     "builtins.int", "builtins.len", "builtins.list", "builtins.object", "builtins.range", "builtins.round",
     "builtins.set", "builtins.str", "builtins.sum", "builtins.tuple"}
)  # fmt: skip
_HOOKS: Final = frozenset({"__init_subclass__", "__class_getitem__"})
"""Methods of a class that are executed by statements which name the class."""
_CHANGEABLE = (ast.List, ast.Set, ast.Dict, ast.Call, ast.Lambda, ast.Attribute)
_OPERATORS = (ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.JoinedStr, ast.Subscript)
_HARMLESS = (
    ast.Assign, ast.AnnAssign, ast.Expr, ast.Pass, getattr(ast, "TypeAlias", ast.Pass), ast.Name, ast.Constant,
    ast.List, ast.Tuple, ast.Set, ast.Dict, ast.Lambda, ast.FormattedValue, ast.Slice, ast.arguments, ast.arg,
    ast.keyword, ast.alias, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop,
)  # fmt: skip
_PLAIN: Final = "a constant or a class"
_ENUM: Final = "an enumeration"
_WRAPPERS: Final = ("", "a decorator", "a decorator with options")
"""What names of the module stand for. A call of a decorator that only wraps defines a function and returns it."""


@dataclass(eq=False)
class Statement:
    """One statement at the top of a module; an import of several names is several statements."""

    node: ast.stmt
    runs: bool
    binds: set[str]
    imports: list[str]
    """The modules that it imports when it is executed; not those that functions in it import when they are called."""
    targets: dict[str, list[tuple[str, Chain]]]
    """What each name of all its imports stands for: a module, and a name in it. ``*`` stands for all names."""

    @cached_property
    def uses(self) -> list[tuple[Chain, bool, bool]]:
        """The names that it reads, whether they are only called, and whether they may be names of the module."""
        names, chains = _global_names(self.node) | set(self.targets), list(_chains(self.node))
        others = names - {chain[0] for chain, _is_called in chains}
        found = [(chain, is_called, chain[0] in names) for chain, is_called in chains]
        return [*found, *(((name,), False, True) for name in sorted(others))]

    @cached_property
    def texts(self) -> list[Chain]:
        """The names in its texts, which may stand for types (``list["Item"]``) or for what a library imports."""
        found: list[Chain] = []
        for one in ast.walk(self.node):
            if isinstance(one, ast.Constant) and isinstance(one.value, str):
                with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                    found += [chain for chain, _ in _chains(ast.parse(one.value.replace(":", "."), mode="eval"))]
        return found


class Module:
    """The statements of a module in order, and those that bind a name."""

    def __init__(self, name: str, package: str, source: bytes, is_shipped: Callable[[str], bool]) -> None:
        self.name = name
        self.statements: list[Statement] = []
        self.by_name: dict[str, list[Statement]] = {}
        self._package = package
        self._is_shipped = is_shipped
        self._meaning: dict[str, str] = {}
        """What the names stand for that are bound so far: "functools.cache", "an enumeration"; nothing if unknown."""
        for node in _pieces(ast.parse(source).body):
            statement = self._read(self._without_task(node))
            self.statements.append(statement)
            for bound in statement.binds:
                self.by_name.setdefault(bound, []).append(statement)
                self._meaning[bound] = "" if bound in self._meaning else self._meaning_of(statement, bound)
            if "*" in statement.targets:
                self._meaning = dict.fromkeys([*dir(builtins), *self._meaning], "")

    def _read(self, node: ast.stmt) -> Statement:
        executed = list(_executed(node))
        found = Statement(node, not all(map(self._is_harmless, executed)), set(), [], {})
        for one in [node] if isinstance(node, ast.ClassDef) else executed:
            if isinstance(one, (*Function, ast.ClassDef, ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and one.name:
                found.binds.add(one.name)
            elif isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load):
                found.binds.add(one.id)
            elif isinstance(one, Import):
                found.binds.update(name for name, _origin, _chain in self._targets(one))
        for one in ast.walk(node):
            if isinstance(one, ast.Global):
                found.binds.update(one.names)
            for name, origin, chain in self._targets(one):
                found.targets.setdefault(name, []).append((origin, chain))
        found.imports = [module for one in executed for module in self._imported(one)]
        return found

    def _targets(self, node: ast.AST) -> Iterator[tuple[str, str, Chain]]:
        """Yield each name of an import with what it stands for."""
        for alias in node.names if isinstance(node, Import) else ():
            top, *inner = alias.name.split(".")
            if isinstance(node, ast.ImportFrom):
                yield alias.asname or alias.name, self._origin(node), () if top == "*" else (alias.name,)
            else:
                yield alias.asname or top, top, tuple(inner) if alias.asname else ()

    def _imported(self, node: ast.AST) -> list[str]:
        if isinstance(node, ast.ImportFrom):
            return [self._origin(node), *(f"{self._origin(node)}.{alias.name}" for alias in node.names)]
        return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []

    def _origin(self, node: ast.ImportFrom) -> str:
        """Return the module that a from-import names."""
        around = self._package.split(".") if node.level else []
        around = around[: max(len(around) - node.level + 1, 0)]
        return ".".join([*around, *([node.module] if node.module else [])])

    def _without_task(self, node: ast.stmt) -> ast.stmt:
        """Return a function without ``@task``: its options are in the request, and say nothing about the result."""
        if not isinstance(node, (*Function, ast.ClassDef)):
            return node
        made = copy.copy(node)
        made.decorator_list = [one for one in node.decorator_list if self._stands_for(_callee(one)) != "myrmidon.task"]
        if isinstance(made, ast.ClassDef):
            made.body = [self._without_task(inner) for inner in made.body]
        return made

    def _stands_for(self, node: ast.AST) -> str:
        """Return the full name of what an expression stands for, such as ``functools.cache``; nothing if unknown."""
        if isinstance(node, ast.Attribute):
            base = self._stands_for(node.value)
            return "" if base in ("", _PLAIN, _ENUM) else f"{base}.{node.attr}"
        name = node.id if isinstance(node, ast.Name) else ""
        return self._meaning.get(name, f"builtins.{name}" if hasattr(builtins, name) else "")

    def _meaning_of(self, statement: Statement, name: str) -> str:
        node = statement.node
        if isinstance(node, Import):
            ((origin, chain),) = statement.targets[name]
            return ".".join((origin, *chain))
        if isinstance(node, Function):
            return _WRAPPERS[min(self._num_wraps(node), 2)]
        if statement.runs or not isinstance(node, (ast.ClassDef, ast.Assign, ast.AnnAssign)):
            return ""
        if isinstance(node, ast.ClassDef):
            is_enum = any(self._stands_for(one).startswith("enum.") for one in node.bases)
            return _ENUM if is_enum else _PLAIN if _HOOKS.isdisjoint(_methods(node)) else ""
        is_changeable = any(isinstance(one, _CHANGEABLE) for one in ast.walk(node))
        return _PLAIN if node.value and self._knows(node.value) and not is_changeable else ""

    def _num_wraps(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
        """Count the calls of a function, of its result and so on, that only define a function and return it."""
        inner, last = [None, *node.body][-2:]
        if node.decorator_list or len(node.body) - is_text(node.body[0]) != 2 or not isinstance(inner, Function):
            return 0
        is_result = isinstance(last, ast.Return) and isinstance(last.value, ast.Name) and last.value.id == inner.name
        is_wrapper = all(self._stands_for(_callee(one)) == "functools.wraps" for one in inner.decorator_list)
        plain = copy.copy(inner)
        plain.decorator_list = []
        only_defines = all(map(self._is_harmless, _executed(plain)))
        return 1 + self._num_wraps(plain) if is_result and is_wrapper and only_defines else 0

    def _knows(self, node: ast.AST) -> bool:
        """Whether all names in an expression stand for constants, classes, or something that is not of this code."""
        origins = {self._stands_for(one) for one in ast.walk(node) if isinstance(one, ast.Name)}
        return all(one in (_PLAIN, _ENUM) or (one and not self._is_shipped(one.partition(".")[0])) for one in origins)

    def _is_harmless(self, node: ast.AST) -> bool:
        """Whether a part of a statement does nothing but define or name something when it is executed."""
        if isinstance(node, Function):
            return all(map(self._is_known_decorator, node.decorator_list))
        if isinstance(node, ast.ClassDef):
            return self._is_plain_class(node)
        if isinstance(node, Import):
            origin = self._imported(node)[0]
            top = origin.partition(".")[0]  # importing an installed package may do anything
            is_known = top in sys.stdlib_module_names or top == "myrmidon" or self._is_shipped(origin)
            return is_known and origin != "__future__" and node.names[0].name != "*"
        if isinstance(node, ast.Attribute):
            is_module = self._is_shipped(self._stands_for(node.value))
            return isinstance(node.ctx, ast.Load) and (is_module or self._knows(node) or self._is_known_decorator(node))
        if isinstance(node, ast.Call):
            called = self._stands_for(node.func)
            return called in _WRAPPERS[1:] or (called in _CALLS and self._knows(node))
        if isinstance(node, _OPERATORS) or (isinstance(node, ast.Dict) and None in node.keys):
            return isinstance(getattr(node, "ctx", ast.Load()), ast.Load) and self._knows(node)
        is_unpacked = isinstance(node, (ast.Tuple, ast.List)) and not isinstance(node.ctx, ast.Load)
        return isinstance(node, _HARMLESS) and not is_unpacked

    def _is_known_decorator(self, node: ast.expr) -> bool:
        base = node.value if isinstance(node, ast.Attribute) and node.attr in ("setter", "getter", "deleter") else None
        if isinstance(base, ast.Name) and not {base.id, "*"} & self._meaning.keys():
            return True  # of a property of the class around it
        called = self._stands_for(_callee(node))
        return called in _DECORATORS or called == _WRAPPERS[2] or (called == _WRAPPERS[1] and _callee(node) is node)

    def _is_plain_class(self, node: ast.ClassDef) -> bool:
        bases = [self._stands_for(one.value if isinstance(one, ast.Subscript) else one) for one in node.bases]
        values = [one.value for one in node.body if isinstance(one, (ast.Assign, ast.AnnAssign)) and one.value]
        is_enum = any(one.startswith("enum.") for one in bases)  # its methods may make its members
        return (
            all(one in _BASES or one == _PLAIN or one.startswith("builtins.") for one in bases)
            and all(map(self._is_known_decorator, node.decorator_list))
            and all(one.arg not in ("metaclass", None) and self._knows(one.value) for one in node.keywords)
            and all(map(self._knows, values))  # others may be called by __set_name__
            and not (is_enum and (_methods(node) or _PLAIN in bases))
        )


def _pieces(statements: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements, imports name by name, without texts and without what is executed in the main program only."""
    for node in statements:
        if isinstance(node, ast.Import):
            yield from (ast.Import([alias]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (ast.ImportFrom(node.module, [alias], node.level) for alias in node.names)
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
            yield from _pieces(node.orelse)  # bots import the module under another name
        elif not is_text(node):
            yield node


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a statement that are executed with it, in order: not the bodies of functions."""
    yield node
    inner: Iterable[ast.AST | None] = ast.iter_child_nodes(node)
    if isinstance(node, (*Function, ast.Lambda)):
        inner = [*getattr(node, "decorator_list", ()), node.args, getattr(node, "returns", None)]
    for one in inner:
        yield from _executed(one) if one is not None else ()


def is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _methods(node: ast.ClassDef) -> set[str]:
    return {one.name for one in node.body if isinstance(one, Function)}


def _callee(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


def _global_names(node: ast.stmt) -> set[str]:
    """Return the names that a statement takes from its module, also in functions inside of it."""
    found: set[str] = set()
    top = symtable.symtable(ast.unparse(node), "code", "exec")
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        is_function = table.get_type() == "function"  # a class reads a name of its module until it has bound its own
        for symbol in table.get_symbols():
            if (symbol.is_global() and table is not top) or (symbol.is_referenced() and not is_function):
                found.add(symbol.get_name())
    for inner in ast.walk(node):
        for annotation in (getattr(inner, "annotation", None), getattr(inner, "returns", None)):
            found |= {one.id for one in ast.walk(annotation or ast.Pass()) if isinstance(one, ast.Name)}
    return found


def _chains(node: ast.AST) -> Iterator[tuple[Chain, bool]]:
    """Yield each name with the attributes that are read of it, and whether it is only called.

    An expression that is not a name gives the attributes that are read of it, after an empty name.
    """
    rest = [(node, False)]
    while rest:
        inner, is_called = rest.pop()
        attributes = [inner.arg] if isinstance(inner, ast.keyword) and inner.arg else []
        while isinstance(inner, ast.Attribute):
            attributes.insert(0, inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name):
            yield (inner.id, *attributes), is_called
            continue
        if attributes:
            yield ("", *attributes), False
        rest += [(one, isinstance(inner, ast.Call) and one is inner.func) for one in ast.iter_child_nodes(inner)]
