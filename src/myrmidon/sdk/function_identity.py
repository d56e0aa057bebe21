"""The identity of a function: a digest of its source and of everything that it reaches in the code that is sent.

An edit that can change what the function returns changes its identity; an edit of a function that it does not reach
does not. It is found by reading the sources: names are followed to what binds them, through imports too. Every module
that is imported on the way counts with the statements that do more than define something (module_units.py). Where the
sources do not tell what is reached, the whole module counts, or the whole code: then there is no identity.

That a module can be imported at all is not examined: it was imported here. What is installed on bots belongs to their
environment, not to the code.
"""

from __future__ import annotations

import ast
import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from myrmidon.functions.task_function import TaskFunction
from myrmidon.functions.types import module_name
from myrmidon.sdk.code_zip import CodeZip
from myrmidon.sdk.module_units import ModuleUnits, Unit, read_module
from myrmidon.sdk.used_names import Chain, used_names

_VERSION: Final = b"1"
_NATIVE: Final = (".so", ".pyd", ".dll", ".dylib", ".pyc", ".pyx")
_DYNAMIC_NAMES: Final = frozenset(
    {"eval", "exec", "compile", "__import__", "__builtins__", "__file__", "__path__", "__spec__", "__loader__",
     "__doc__", "__package__"}
)  # fmt: skip
_DYNAMIC_ATTRIBUTES: Final = frozenset(
    {"__subclasses__", "__globals__", "__code__", "f_globals", "__loader__", "__spec__", "__builtins__", "__import__",
     "__file__", "__path__", "__doc__"}
)  # fmt: skip
_DYNAMIC_MODULES: Final = frozenset(
    {"importlib", "pkgutil", "runpy", "inspect", "gc", "pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal",
     "copyreg", "ctypes", "cffi", "zipimport", "imp", "builtins", "mock", "code", "ast", "tokenize", "linecache"}
)  # fmt: skip
"""Modules that find code by names which the sources do not show."""
_DYNAMIC_MEMBERS: Final = frozenset(
    {("sys", "modules"), ("sys", "path"), ("sys", "meta_path"), ("sys", "path_hooks"), ("sys", "_getframe"),
     ("sys", "argv"), ("unittest", "mock"), ("multiprocessing", "managers"), ("sys", "settrace"), ("sys", "setprofile")}
)  # fmt: skip


class Unknown(Exception):
    """The sources do not tell what a function reaches."""


class CodeIdentities:
    """The identities of the functions of one zip of code."""

    def __init__(self, packed: CodeZip) -> None:
        with zipfile.ZipFile(io.BytesIO(packed.data)) as archive:
            self._sources = _Sources({name: archive.read(name) for name in archive.namelist()})
        self._known: dict[tuple[str, str], str] = {}

    def of(self, function: TaskFunction[Any, Any]) -> str:
        """64 hex characters; empty if only the whole code tells."""
        return self.identity(module_name(function.function.__module__), function.function.__qualname__)

    def identity(self, module: str, qualname: str) -> str:
        """As ``of``, by the name of the module on bots and the function's name in it."""
        found = self._known.get((module, qualname))
        if found is None:
            found = self._known[module, qualname] = self._identity(module, qualname)
        return found

    def _identity(self, module: str, qualname: str) -> str:
        reach = _Reach(self._sources)
        try:
            reach.name(module, qualname.partition(".")[0])
            reach.follow()
        except (Unknown, SyntaxError, ValueError, RecursionError):
            return ""
        digest = hashlib.sha256(_VERSION)
        for name, unit in reach.in_order():
            digest.update(f"\n{name}\n{ast.dump(unit.node)}".encode(errors="surrogatepass"))
        return digest.hexdigest()


@lru_cache(maxsize=8)
def identities(packed: CodeZip) -> CodeIdentities:
    """Those of a zip; kept for the last few, because a client sends the same code again and again."""
    return CodeIdentities(packed)


class _Sources:
    """The modules of a zip, read when they are needed."""

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self.contents = contents
        self.has_native = any(name.endswith(_NATIVE) for name in contents)
        self._folders = {name[:i] for name in contents for i, char in enumerate(name) if char == "/"}
        self._modules: dict[str, ModuleUnits | None] = {}

    def has(self, module: str) -> bool:
        path = module.replace(".", "/")
        return bool(module) and (f"{path}.py" in self.contents or path in self._folders)

    def read(self, module: str) -> ModuleUnits | None:
        """A module of the zip; None for a folder without ``__init__.py``."""
        if module not in self._modules:
            path = module.replace(".", "/")
            files = [name for name in (f"{path}/__init__.py", f"{path}.py") if name in self.contents]
            if len(files) > 1:
                raise Unknown(module)
            self._modules[module] = (
                read_module(
                    module,
                    self.contents[files[0]],
                    is_package=files[0].endswith("/__init__.py"),
                    is_shipped=lambda name: self.has(name.partition(".")[0]),
                )
                if files
                else None
            )
        return self._modules[module]

    def below(self, module: str) -> Iterator[str]:
        """The modules of a package, itself included."""
        path = module.replace(".", "/")
        for name in self.contents:
            if name == f"{path}.py" or (name.startswith(f"{path}/") and name.endswith(".py")):
                yield name[:-3].removesuffix("/__init__").replace("/", ".")


class _Reach:
    """What is reached from one function."""

    def __init__(self, sources: _Sources) -> None:
        self._sources = sources
        self._loaded: set[str] = set()
        self._chains: set[tuple[str, Chain]] = set()
        self._found: dict[Unit, str] = {}
        self._pending: list[tuple[ModuleUnits, Unit]] = []

    def in_order(self) -> Iterator[tuple[str, Unit]]:
        """Every unit that was reached, with its module, in the order of the sources."""
        for name in sorted(set(self._found.values())):
            module = self._sources.read(name)
            yield from ((name, unit) for unit in (module.units if module else ()) if unit in self._found)

    def follow(self) -> None:
        """Follow everything that is reached until nothing is added."""
        if self._sources.has_native:
            raise Unknown("native code")
        while self._pending:
            module, unit = self._pending.pop()
            _Uses(self, self._sources, module).follow(unit.node)

    def is_new(self, module: ModuleUnits, chain: Chain) -> bool:
        """Whether a chain of names was not followed yet from this module."""
        before = len(self._chains)
        self._chains.add((module.name, chain))
        return len(self._chains) > before

    # -- what is reached

    def name(self, module: str, name: str) -> None:
        """A name of a module. One that the module does not bind is made in a way that is not seen."""
        units = self.load(module)
        bound = units.by_name.get(name, []) if units is not None else []
        if bound:
            for unit in bound:
                self.add(units, unit)
        elif self._sources.has(f"{module}.{name}"):
            self.load(f"{module}.{name}")
        else:
            self.whole(module)

    def load(self, module: str) -> ModuleUnits | None:
        """Import a module: its statements that run, those of the packages around it and of what they import."""
        if not self._sources.has(module):
            raise Unknown(module)
        outer = module.rpartition(".")[0]
        if outer:
            self.load(outer)
        units = self._sources.read(module)
        if module not in self._loaded:
            self._loaded.add(module)
            for unit in units.units if units is not None else ():
                if unit.runs:
                    self.add(units, unit)
                for imported in _imported(units, unit.node):
                    if self._sources.has(imported):
                        self.load(imported)
        return units

    def whole(self, module: str) -> None:
        """Everything in a module, and below a package."""
        for name in self._sources.below(module):
            units = self.load(name)
            for unit in units.units if units is not None else ():
                self.add(units, unit)

    def add(self, module: ModuleUnits | None, unit: Unit) -> None:
        if module is not None and unit not in self._found:
            self._found[unit] = module.name
            self._pending.append((module, unit))


class _Uses:
    """What is used in one module: its own names, and attributes of modules that it imports."""

    def __init__(self, reach: _Reach, sources: _Sources, module: ModuleUnits) -> None:
        self.reach = reach
        self.sources = sources
        self.module = module

    def follow(self, node: ast.AST) -> None:
        """Follow all that a unit of the module uses."""
        local = list(_imports_in(node))
        for statement in local:
            self._import(statement)
        for chain in used_names(node):
            self.chain(chain)
            for statement in local:
                self._member(statement, chain)

    def _import(self, statement: ast.Import | ast.ImportFrom) -> None:
        """An import in the unit: of what it names, and of the modules on the way to it."""
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                if self.sources.has(alias.name):
                    self.reach.load(alias.name)
            return
        origin = self.module.absolute(statement)
        for alias in statement.names if self.sources.has(origin) else ():
            if alias.name == "*":
                self.reach.whole(origin)
            else:
                self.reach.name(origin, alias.name)

    def chain(self, chain: Chain) -> None:
        """A name of the module with the attributes that are read of it."""
        if not self.reach.is_new(self.module, chain):
            return
        root = chain[0]
        if root in _DYNAMIC_NAMES or not _DYNAMIC_ATTRIBUTES.isdisjoint(chain):
            raise Unknown(".".join(chain))
        if root in ("globals", "vars", "dir"):
            self.reach.whole(self.module.name)
        for unit in self.module.by_name.get(root, ()):
            self.reach.add(self.module, unit)
            for statement in _imports_in(unit.node):
                self._member(statement, chain)

    def _member(self, statement: ast.Import | ast.ImportFrom, chain: Chain) -> None:
        """What a chain reads of the module that its root stands for, if this import has bound it."""
        for alias in statement.names:
            if (alias.asname or alias.name.partition(".")[0]) != chain[0]:
                continue
            if isinstance(statement, ast.Import):
                self._attributes(alias.name if alias.asname else chain[0], chain[1:])
            else:
                self._attributes(self.module.absolute(statement), (alias.name, *chain[1:]))

    def _attributes(self, module: str, rest: Chain) -> None:
        """The attributes that are read of a module, as far as they name parts of the code."""
        if not self.sources.has(module):
            _check_member(".".join([module, *rest[:1]]))
        elif not rest:
            self.reach.whole(module)  # used as a value: any of its names may be read
        else:
            units = self.reach.load(module)
            inner, bound = f"{module}.{rest[0]}", units is not None and rest[0] in units.by_name
            if units is not None and bound:
                _Uses(self.reach, self.sources, units).chain(rest)
            if self.sources.has(inner) and (rest[1:] or not bound):
                self._attributes(inner, rest[1:])  # also if both are possible: a package may import its own module
            elif not bound:
                self.reach.whole(module)


def _imports_in(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Import, ast.ImportFrom)):
            yield inner


def _imported(module: ModuleUnits | None, node: ast.AST) -> Iterator[str]:
    """The modules that a statement imports when the module is imported; not those of functions in it."""
    rest = [node]
    while rest and module is not None:
        inner = rest.pop()
        if isinstance(inner, ast.Import):
            yield from (alias.name for alias in inner.names)
        elif isinstance(inner, ast.ImportFrom):
            origin = module.absolute(inner)
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in inner.names)
        elif not isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            rest += ast.iter_child_nodes(inner)


def _check_member(path: str) -> None:
    parts = path.split(".")
    if parts[0] in _DYNAMIC_MODULES or tuple(parts[:2]) in _DYNAMIC_MEMBERS:
        raise Unknown(path)
