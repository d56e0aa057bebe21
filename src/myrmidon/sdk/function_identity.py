"""The identity of a function: a digest of all that can change what it returns, as far as its code shows it.

Equal identities promise equal results, so that after an edit only those functions run again whose identity it changes.
Names are followed from the function to the statements that bind them, also through imports. A statement that may do
more than define names *runs* (module_statements.py): it counts for everything in its module and in the modules that
import it. What is not understood counts as a whole: a module that is used as a value, with all that it imports; the
whole code, so that there is no identity, where eval, importlib, pickle, ``__file__``, frames or native libraries are
used.

Functions run again although nothing has changed for them:
- all of a module, if an edited statement of it runs: a call, a branch, a loop, an import of an installed package, a
  function or class with a decorator, base or default that is not known here;
- all of the code, if an edited file is not Python;
- those with a text that is the name of an edited class, or the path of edited code (``"lib.tools.make"``).

An equal identity does not cover: line numbers; what earlier calls have left behind in a process; the versions of
installed packages, which belong to the environment; effects of the options of ``@task``; code that an installed package
finds by a name that is not in the sources as a whole, or in a pickle.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import io
import zipfile
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

from myrmidon.functions import shipped_libraries
from myrmidon.functions.task_function import TaskFunction
from myrmidon.functions.types import module_name
from myrmidon.sdk.code_zip import CodeZip
from myrmidon.sdk.module_statements import Chain, Function, Import, Module, Statement, is_text

_VERSION: Final = b"2"
_NATIVE: Final = (".so", ".pyd", ".dll", ".dylib", ".pyc", ".pyx")

# What finds code in ways that the sources do not show.
_NAMES_OF_THE_MODULE: Final = frozenset({"globals", "vars", "dir", "locals"})
_DYNAMIC_NAMES: Final = frozenset({"eval", "exec", "compile", "breakpoint"})
_KNOWN_DUNDERS: Final = frozenset({"__name__", "__class__", "__debug__", "__qualname__", "__module__"})
_DYNAMIC_ATTRIBUTES: Final = frozenset(
    {"__subclasses__", "__globals__", "__code__", "__loader__", "__spec__", "__builtins__", "__import__", "__file__",
     "__path__", "__doc__", "f_globals", "f_locals", "f_back", "f_builtins", "tb_frame", "gi_frame", "cr_frame",
     "ag_frame", "read_pickle", "allow_pickle"}
)  # fmt: skip
_DYNAMIC_MODULES: Final = frozenset(
    {"importlib", "pkgutil", "runpy", "inspect", "gc", "pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal",
     "copyreg", "ctypes", "cffi", "zipimport", "imp", "builtins", "mock", "code", "ast", "tokenize", "linecache",
     "pydoc", "doctest", "unittest.mock", "multiprocessing.managers", "__main__", "sys.modules", "sys.path",
     "sys.meta_path", "sys.path_hooks", "sys._getframe", "sys.argv", "sys.settrace", "sys.setprofile"}
)  # fmt: skip


class Unknown(Exception):
    """The sources do not tell what a function reaches."""


class CodeIdentities:
    """The identities of the functions of one zip of code."""

    def __init__(self, packed: CodeZip) -> None:
        with zipfile.ZipFile(io.BytesIO(packed.data)) as archive:
            self._code = _Code({name: archive.read(name) for name in archive.namelist()})
        self._found: dict[tuple[str, str], str] = {}

    def of(self, function: TaskFunction[Any, Any]) -> str:
        """Return 64 hex characters, or nothing if only the digest of the whole code tells."""
        return self.identity(module_name(function.function.__module__), function.function.__qualname__)

    def identity(self, module: str, qualname: str) -> str:
        """Do the same by the name that the module has on bots, and by the function's name in it."""
        key = module, qualname.partition(".")[0]
        if key not in self._found:
            try:
                text = "\n".join([*self._code.other_files, *_Reach(self._code, *key).texts()])
            except (Unknown, SyntaxError, ValueError, RecursionError):
                self._found[key] = ""
            else:
                self._found[key] = hashlib.sha256(_VERSION + text.encode(errors="surrogatepass")).hexdigest()
        return self._found[key]


@lru_cache(maxsize=8)
def identities(packed: CodeZip) -> CodeIdentities:
    """Return those of a zip; kept for the last few, because a client sends the same code again and again."""
    return CodeIdentities(packed)


class _Code:
    """The files of a zip; its modules are read when they are needed."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self._contents = contents
        sources = [name for name in contents if name.endswith(".py")]
        self._folders = {name[:i] for name in sources for i, char in enumerate(name) if char == "/"}
        self._modules: dict[str, Module] = {}
        self.has_native = any(name.endswith(_NATIVE) for name in contents)
        others = [name for name in sorted(contents) if not name.endswith(".py") and name != shipped_libraries.FILE]
        self.other_files = [f"{name} {hashlib.sha256(contents[name]).hexdigest()}" for name in others]

    def has(self, module: str) -> bool:
        path = module.replace(".", "/")
        return bool(module) and (f"{path}.py" in self._contents or path in self._folders)

    def read(self, module: str) -> Module:
        if module not in self._modules:
            path = module.replace(".", "/")
            files = [name for name in (f"{path}/__init__.py", f"{path}.py") if name in self._contents]
            if len(files) > 1 or not self.has(module):
                raise Unknown(module)
            source = self._contents[files[0]] if files else b""
            package = module.rpartition(".")[0] if files == [f"{path}.py"] else module
            self._modules[module] = Module(module, package, source, self.has)
        return self._modules[module]

    def below(self, module: str) -> list[str]:
        """Return the modules of a package, itself included."""
        names = [name[:-3].removesuffix("/__init__").replace("/", ".") for name in self._contents if name[-3:] == ".py"]
        return [module, *(name for name in sorted(names) if name.startswith(f"{module}."))]


class _Reach:
    """Everything that is reached from one function."""

    def __init__(self, code: _Code, module: str, name: str) -> None:
        if code.has_native:
            raise Unknown("native code")
        self._code = code
        self._executed: list[tuple[str, Statement | None]] = []
        """Every statement in the order in which the imports execute it; None where a module begins."""
        self._loaded: set[str] = set()
        self._named: set[str] = {""}
        """The modules that reached statements name: it counts that they exist, and when they are imported."""
        self._followed: set[tuple[str, Chain]] = set()
        self._found: set[Statement] = set()
        self._values: set[str] = set()
        """The names that are not only called: code that has a function as a value can read its docstring."""
        self._pending: list[tuple[Module, Statement]] = []
        self._load(module)
        self._executed.append(("", None))  # the modules after it are imported when a function is called
        self._use(module, (name,))
        while self._pending:
            self._follow(*self._pending.pop())

    def texts(self) -> Iterator[str]:
        """Yield what is reached, in the order in which it is executed."""
        for module, statement in self._executed:
            if statement is None and module in self._named:
                yield f"module {module}"
            elif statement is not None and statement in self._found:
                node = statement.node
                if isinstance(node, Function) and node.name not in self._values and not node.decorator_list:
                    node = copy.copy(node)
                    node.body = [one for one in node.body if not is_text(one)]
                yield ast.dump(node)

    def _load(self, module: str) -> Module:
        """Import a module: its statements that run, the packages around it, and what they import."""
        if outer := module.rpartition(".")[0]:
            self._load(outer)
        found = self._code.read(module)
        if module not in self._loaded:
            self._loaded.add(module)
            self._executed.append((module, None))
            for statement in found.statements:
                for imported in filter(self._code.has, statement.imports):
                    self._load(imported)
                self._executed.append((module, statement))
                if statement.runs:
                    self._add(found, statement)
        return found

    def _add(self, module: Module, statement: Statement) -> None:
        if statement not in self._found:
            self._found.add(statement)
            self._pending.append((module, statement))

    def _use(self, module: str, chain: Chain) -> None:
        """Reach a name of a module, with the attributes that are read of it."""
        if (module, chain) in self._followed:
            return
        self._followed.add((module, chain))
        self._named.add(module)
        found, inner = self._load(module), f"{module}.{chain[0]}"
        bound = found.by_name.get(chain[0], ())
        targets = [target for statement in bound for target in statement.targets.get(chain[0], ())]
        for statement in bound:
            self._add(found, statement)
        for origin, name in targets:
            self._read(origin, (*name, *chain[1:]))
        if self._code.has(inner) and (chain[1:] or {origin for origin, _name in targets} != {inner}):
            self._read(inner, chain[1:])  # the module of this name, unless the package has replaced it by a name of it
        if not bound and (not self._code.has(inner) or "__getattr__" in found.by_name):
            self._whole(module)  # the name is made in a way that is not seen

    def _read(self, origin: str, chain: Chain) -> None:
        """Reach what is read of a module. Of a module that is used as a value anything may be read."""
        if not self._code.has(origin):
            path = ".".join((origin, *chain))
            if path == "sys" or any(f"{path}.".startswith(f"{name}.") for name in _DYNAMIC_MODULES):
                raise Unknown(path)
        elif chain:
            self._use(origin, chain)
        else:
            self._whole(origin)

    def _whole(self, module: str) -> None:
        """Reach everything in a module, below a package, and in what they import."""
        for name in self._code.below(module):
            if (name, ()) not in self._followed:
                self._followed.add((name, ()))
                self._named.add(name)
                found = self._load(name)
                self._values.update(found.by_name)
                for statement in found.statements:
                    self._add(found, statement)
                    self._follow_imports(statement, statement.targets)

    def _follow_imports(self, statement: Statement, names: Iterable[str]) -> None:
        """Reach all that these names of imports in a statement stand for."""
        for origin, chain in [one for name in names for one in statement.targets.get(name, ())]:
            self._values.update(chain)
            if self._code.has(origin):
                self._read(origin, chain)

    def _follow(self, module: Module, statement: Statement) -> None:
        """Reach the names that a statement uses, those in its texts, and its imports."""
        if isinstance(statement.node, Import):
            self._follow_imports(statement, "*")  # its names are followed where they are used
            if isinstance(statement.node, ast.ImportFrom) and statement.node.names[0].asname:
                self._values.add(statement.node.names[0].name)
            return
        self._follow_imports(statement, statement.targets)
        for chain, is_called, is_global in statement.uses:
            self._values.update(chain[:-1] if is_called else chain)
            if not _DYNAMIC_ATTRIBUTES.isdisjoint(chain):
                raise Unknown(".".join(chain))
            for origin, inner in statement.targets.get(chain[0], ()):
                self._read(origin, (*inner, *chain[1:]))
            if is_global:
                self._follow_name(module, chain)
        for chain in statement.texts:
            self._values.update(chain)
            if chain[-1] in _DYNAMIC_ATTRIBUTES:
                raise Unknown(chain[-1])
            if any(not isinstance(one.node, Function) for one in module.by_name.get(chain[0], ())):
                self._use(module.name, chain)
            if chain[1:] and self._code.has(chain[0]):
                self._read(chain[0], chain[1:])

    def _follow_name(self, module: Module, chain: Chain) -> None:
        root = chain[0]
        if root in module.by_name:
            self._use(module.name, chain)
        elif root in _NAMES_OF_THE_MODULE:
            self._whole(module.name)
        elif root in _DYNAMIC_NAMES or (root[:2] == "__" and root not in _KNOWN_DUNDERS):
            raise Unknown(root)
