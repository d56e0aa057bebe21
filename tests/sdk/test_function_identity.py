"""An equal identity promises an equal result: programs are imported and called before and after small edits."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from myrmidon.functions import shipped_libraries
from myrmidon.sdk.code_zip import zip_files
from myrmidon.sdk.function_identity import CodeIdentities

Files = Mapping[str, str]
Case = tuple[str, str, str]
"""A program, a text that it contains once, and what becomes of it."""
FOLDER = Path(__file__).parent / "identity"


def sections(file: str) -> dict[str, str]:
    """What follows each line ``=== TITLE``."""
    _, *found = re.split(r"^=== (.+)\n", (FOLDER / file).read_text(), flags=re.MULTILINE)
    return {title: text.strip("\n") + "\n" for title, text in zip(found[::2], found[1::2], strict=True)}


PROGRAMS = sections("programs.txt")
SMALL = PROGRAMS["small"]


def cases(file: str) -> dict[str, Case]:
    """Programs, each with its edit: lines with ``-`` and ``+`` at its end."""
    found = {}
    for title, text in sections(file).items():
        lines = re.sub(r"^program: (\w+)\n", lambda named: PROGRAMS[named[1]], text).splitlines()
        old, new = ([one[2:] for one in lines if one[:2].strip() == sign] for sign in "-+")
        program = "".join(f"{one}\n" for one in lines if one[:2].strip() not in ("-", "+"))
        found[title] = program, "\n".join(old), "\n".join(new)
    return found


CHANGES, KEEPS, RUNS_AGAIN = cases("changes.txt"), cases("keeps.txt"), cases("runs_again.txt")


def files_of(program: str) -> dict[str, str]:
    """``app.py``, and the files that follow each line ``--- PATH``."""
    first, *others = re.split(r"^--- (\S+)\n", program, flags=re.MULTILINE)
    return {"app.py": first, **dict(zip(others[::2], others[1::2], strict=True))}


def edited(case: Case) -> dict[str, str]:
    program, old, new = case
    assert program.count(old) == 1, old
    return files_of(program.replace(old, new))


def identity(files: Files, function: str = "f", module: str = "app") -> str:
    packed = zip_files({name: text.encode() for name, text in files.items()})
    return CodeIdentities(packed).identity(module, function)


def is_same(one: Files, two: Files, function: str = "f") -> bool:
    """Whether a result of the first code answers a call with the second; without an identity none does."""
    return identity(one, function) == identity(two, function) != ""


class Place:
    """Folders from which programs are imported, each one once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = 0

    def result(self, files: Files, function: str = "f") -> Any:
        """What the function returns or raises, as text; None if the module cannot be imported."""
        self.number += 1
        root = self.folder / str(self.number)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        known = set(sys.modules)
        sys.path.insert(0, str(root))
        try:
            module = importlib.import_module("app")
            try:
                found = repr(getattr(module, function)(7))
            except Exception as error:  # noqa: BLE001 - a result too
                found = repr(error)
        except Exception:  # noqa: BLE001 - whatever an edit has broken: whoever submits it notices
            return None
        finally:
            sys.path.remove(str(root))
            for name in [name for name in sys.modules if name.partition(".")[0] in _tops(files) and name not in known]:
                del sys.modules[name]
        return re.sub(r" at 0x\w+|/\d+/", "", found)


def _tops(files: Files) -> set[str]:
    return {name.partition("/")[0].removesuffix(".py") for name in files}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    library = types.ModuleType("library_of_tests")  # stands for an installed package
    library.read = lambda name: pkgutil.get_data(name, "data.txt")  # type: ignore[attr-defined]
    library.doc = lambda function: function.__doc__  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, library.__name__, library)
    return Place(tmp_path)


@pytest.mark.parametrize("case", CHANGES.values(), ids=CHANGES)
def test_an_edit_that_changes_the_result_changes_the_identity(case: Case, place: Place):
    before, after = files_of(case[0]), edited(case)
    results = place.result(before), place.result(after)
    assert results[0] != results[1]
    assert None not in results
    assert not is_same(before, after)


@pytest.mark.parametrize("case", KEEPS.values(), ids=KEEPS)
def test_an_edit_of_anything_else_keeps_the_identity(case: Case, place: Place):
    before, after = files_of(case[0]), edited(case)
    assert place.result(before) == place.result(after) is not None
    assert is_same(before, after)


class _Edit(ast.NodeTransformer):
    """Changes the constant with one number, or swaps or deletes the statement with one number."""

    def __init__(self, kind: str, wanted: int) -> None:
        self.kind = kind
        self.left = wanted

    def visit(self, node: ast.AST) -> Any:
        if self.kind == "constant" and isinstance(node, ast.Constant):
            self.left -= 1
            changed = node.value
            if type(changed) is int:
                changed += 1
            elif isinstance(changed, str):
                changed += "'"
            return ast.Constant(changed) if self.left == -1 else node
        for statements in [getattr(node, "body", None), getattr(node, "orelse", None)]:
            if self.kind != "constant" and isinstance(statements, list):
                for number in range(len(statements)):
                    self.left -= 1
                    if self.left == -1 and self.kind == "delete":
                        statements[number : number + 1] = [] if len(statements) > 1 else [ast.Pass()]
                        break
                    if self.left == -1:
                        statements[number - 1], statements[number] = statements[number], statements[number - 1]
        return self.generic_visit(node)


def edits(files: Files) -> Iterator[dict[str, str]]:
    """The files with one small edit after the other."""
    for name in [name for name in files if name.endswith(".py")]:
        for kind in ("constant", "delete", "swap"):
            for number in range(200):
                edit = _Edit(kind, number)
                tree = ast.fix_missing_locations(edit.visit(ast.parse(files[name])))
                if edit.left >= 0:
                    break
                yield {**files, name: ast.unparse(tree)}


def functions(files: Files) -> list[str]:
    return [name for name in ("f", "g", "h") if re.search(rf"^def {name}\(x\)", files["app.py"], re.MULTILINE)]


@pytest.mark.parametrize("program", sorted({*PROGRAMS.values(), *(case[0] for case in CHANGES.values())}))
def test_no_small_edit_changes_a_result_and_keeps_the_identity(program: str, place: Place):
    before = files_of(program)
    results = {name: place.result(before, name) for name in functions(before)}
    for after in edits(before):
        for name, result in results.items():
            if place.result(after, name) not in (None, result):
                assert not is_same(before, after, name), after


@pytest.mark.parametrize("case", RUNS_AGAIN.values(), ids=RUNS_AGAIN)
def test_an_edit_that_is_not_understood_changes_the_identity(case: Case, place: Place):
    before, after = files_of(case[0]), edited(case)
    assert place.result(before) == place.result(after) is not None
    assert not is_same(before, after)


@pytest.mark.parametrize("title", ["helpers and constants", "classes", "closures and generators"])
def test_functions_of_a_module_change_one_by_one(title: str):
    before = files_of(ast.unparse(ast.parse(PROGRAMS[title])))
    alone = set()
    for after in edits(before):
        changed = [name for name in functions(before) if not is_same(before, after, name)]
        alone.update(changed if len(changed) == 1 else [])
    assert len(alone) >= 2


@pytest.mark.parametrize(
    "files",
    [
        {"app.py": "def f(x): return 1", "fast.so": "elf"},
        {"app.py": "def f(x: return 1"},
        {"app.py": "\x00"},
        {"other.py": ""},
        {"app.py": "def f(x): 1", "app/__init__.py": ""},
        {"app.py": "def f(x): return open(__file__)"},
        {"app.py": "import importlib.resources\ndef f(x): return importlib.resources.files('app')"},
    ],
)
def test_where_the_sources_do_not_tell_there_is_no_identity(files: Files):
    assert identity(files) == ""


def test_a_function_keeps_its_identity_beside_one_that_has_none():
    files = {"app.py": "import inspect, joblib\ndef g(x): return inspect.getsource(g)\ndef f(x): return x"}
    assert (identity(files, "g"), identity(files) != "") == ("", True)


def test_a_static_method_counts_as_its_class():
    program = "class Tasks:\n    n = 1\n    @staticmethod\n    def f(x): return Tasks.n\ndef g(): return 'g'"
    assert is_same(files_of(program), edited((program, "'g'", "'h'")), "Tasks.f")
    assert not is_same(files_of(program), edited((program, "n = 1", "n = 2")), "Tasks.f")


def test_two_modules_with_the_same_function_differ():
    files = {"a.py": "def f(x): return x", "b.py": "def f(x): return x"}
    assert identity(files, module="a") != identity(files, module="b")


def test_the_list_of_shipped_libraries_does_not_count():
    """A library that was built again has changed for the functions that it contains, not for those that submit them."""
    files = files_of(SMALL)
    assert is_same({**files, shipped_libraries.FILE: "1"}, {**files, shipped_libraries.FILE: "2"})
