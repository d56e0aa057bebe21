"""Which code a function needs, as a zip that is the same for the same files.

    code="auto"        the modules of this program that are not installed: beside the script, or its top packages
    code="./pkg"       a folder or a file: this and nothing else
    code="installed"   nothing: the package is installed on the bots

Imports are followed by reading the sources, also those inside functions, so the zip does not depend on what the program
has imported so far. A package is shipped as a whole.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import io
import os
import site
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Final

from myrmidon.functions.graph_errors import GraphError
from myrmidon.functions.types import module_name

INSTALLED: Final = "installed"
MAX_BYTES: Final = 64 << 20
_FILE_TIME: Final = (1980, 1, 1, 0, 0, 0)
_LEFT_OUT: Final = frozenset({"__pycache__", "node_modules"})
_OURS: Final = "myrmidon"


@dataclass(frozen=True)
class CodeZip:
    """A zip of sources. ``digest`` is the SHA-256 of ``data``; ``names`` are the paths in it."""

    digest: str
    data: bytes
    names: frozenset[str]

    def __hash__(self) -> int:
        return hash(self.digest)


def zip_files(contents: dict[str, bytes]) -> CodeZip:
    """The same contents give the same bytes: names sorted, times fixed, nothing compressed.

    Compressed data differs between versions of zlib, and then equal code would be uploaded and unpacked again.
    """
    size = sum(map(len, contents.values()))
    if size > MAX_BYTES:
        raise GraphError(f"the code has {size >> 20} MiB, more than {MAX_BYTES >> 20}; name a smaller folder by code=")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in sorted(contents.items()):
            entry = zipfile.ZipInfo(name, _FILE_TIME)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3
            archive.writestr(entry, content, zipfile.ZIP_STORED)
    data = buffer.getvalue()
    return CodeZip(hashlib.sha256(data).hexdigest(), data, frozenset(contents))


# -- one folder or file -------------------------------------------------------------------------------------------


def folder_contents(path: Path) -> dict[str, bytes]:
    """A package with its own name, the contents of any other folder, or one module."""
    path = path.expanduser()
    if path.is_file():
        return {path.name: path.read_bytes()}
    if not path.is_dir():
        raise GraphError(f"code={str(path)!r}: there is no such folder or file")
    path = path.resolve()
    root = path.parent if (path / "__init__.py").exists() else path
    return {str(file.relative_to(root)): file.read_bytes() for file in _files(path)}


def _files(folder: Path) -> Iterator[Path]:
    """All files below a folder, in order, without caches and hidden ones."""
    for entry in sorted(os.scandir(folder), key=lambda one: one.name):
        if entry.name.startswith(".") or entry.name in _LEFT_OUT or entry.name.endswith((".pyc", ".pyo")):
            continue
        if entry.is_dir():
            yield from _files(Path(entry.path))
        elif entry.is_file():
            yield Path(entry.path)


# -- what a module imports -----------------------------------------------------------------------------------------


def is_shipped(module: str) -> bool:
    """Whether a module is one of this program's own: neither installed nor a part of Python or of this library."""
    top = module.partition(".")[0]
    if top == _OURS or (top in sys.stdlib_module_names and top != "__main__"):
        return False
    if module == "__main__":
        return True
    spec = _spec(top)
    return spec is not None and any(not _is_installed(Path(place)) for place in _places(spec))


def module_contents(modules: Iterable[str]) -> dict[str, bytes]:
    """The sources of these modules and of all that they import, by their paths in the zip."""
    contents: dict[str, bytes] = {}
    seen: set[str] = set()
    pending = list(modules)
    while pending:
        module = pending.pop()
        top = module if module == "__main__" else module.partition(".")[0]
        if top in seen or not is_shipped(top):
            continue
        seen.add(top)
        found = _main_contents() if top == "__main__" else _top_contents(top)
        contents.update(found)
        for name, source in found.items():
            if name.endswith(".py"):
                pending += _imported(source)
    return contents


def _main_contents() -> dict[str, bytes]:
    """The script under the name by which bots import it; with ``python -m`` its whole package."""
    name = module_name("__main__")
    main = sys.modules["__main__"]
    if getattr(main, "__spec__", None) is not None:
        return _top_contents(name.partition(".")[0])
    file = getattr(main, "__file__", None)
    if file is None or not Path(file).is_file():
        raise GraphError(
            "this program was not read from a file, so its code cannot be sent; write it into a file, or use code="
        )
    return {f"{name}.py": Path(file).read_bytes()}


def _top_contents(top: str) -> dict[str, bytes]:
    """A module, or a package with all its files."""
    spec = _spec(top)
    if spec is None:
        return {}
    if spec.submodule_search_locations is None:
        return {f"{top}.py": Path(str(spec.origin)).read_bytes()} if _is_source(spec.origin) else {}
    contents: dict[str, bytes] = {}
    for place in spec.submodule_search_locations:
        root = Path(place)
        if not _is_installed(root):
            contents |= {f"{top}/{file.relative_to(root)}": file.read_bytes() for file in _files(root)}
    return contents


def _is_source(origin: str | None) -> bool:
    return origin is not None and origin.endswith(".py") and Path(origin).is_file()


@lru_cache(maxsize=4_096)
def _imported(source: bytes) -> tuple[str, ...]:
    """The top names of the absolute imports of a source, wherever they are in it."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.partition(".")[0])
    return tuple(sorted(names))


def _spec(top: str) -> ModuleSpec | None:
    loaded = sys.modules.get(top)
    if loaded is not None and getattr(loaded, "__spec__", None) is not None:
        return loaded.__spec__
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return None


def _places(spec: ModuleSpec) -> list[str]:
    if spec.submodule_search_locations is not None:
        return list(spec.submodule_search_locations)
    return [spec.origin] if _is_source(spec.origin) and spec.origin is not None else []


@lru_cache(maxsize=4_096)
def _is_installed(place: Path) -> bool:
    resolved = place.resolve()
    return any(resolved.is_relative_to(folder) for folder in _installed_folders())


@lru_cache(maxsize=1)
def _installed_folders() -> tuple[Path, ...]:
    """Folders of installed packages and of Python's own modules."""
    paths = {sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")}
    paths |= {*site.getsitepackages(), site.getusersitepackages()}
    paths |= {path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")}
    return tuple(Path(path).resolve() for path in paths if path)
