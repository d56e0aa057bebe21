"""Which code is sent with functions: scripts, packages, folders, and what was typed into a session."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import pytest

from myrmidon import GraphError
from myrmidon.functions.native_task import LIBRARY
from myrmidon.sdk.code_packages import CodePackages
from myrmidon.sdk.code_zip import folder_contents, is_shipped, module_contents, zip_files
from tests.deadline import HANG_S
from tests.functions import tasks

PRINT_CODE = """
import io, json, sys, zipfile
from myrmidon.functions.types import module_name
from myrmidon.sdk.code_packages import CodePackages

def show(*functions):
    zips = CodePackages("auto").collect(functions)
    found = {name: sorted(zipfile.ZipFile(io.BytesIO(packed.data)).namelist()) for name, packed in zips.items()}
    print(json.dumps([found, {name: packed.digest for name, packed in zips.items()}]))
"""


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__slash__", "/").replace("__dot__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


def run(folder: Path, *words: str, text: str | None = None) -> tuple[Any, Any]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=HANG_S, input=text
    )
    assert done.returncode == 0, done.stderr
    found, digests = json.loads(done.stdout)
    return found, digests


SCRIPT = """
    import json
    import helpers
    from myrmidon import task
    from show_code import show

    @task
    def f(x: int) -> int:
        import only_inside
        return helpers.g(x)

    if __name__ == "__main__":
        show(f, helpers.h)
"""
HELPERS = """
    import deeper.inner
    import msgspec
    from myrmidon import task

    @task
    def h(x: int) -> int:
        return x

    def g(x: int) -> int:
        return x
"""


def a_program(folder: Path) -> None:
    write(
        folder,
        show_code__dot__py=PRINT_CODE,
        script__dot__py=SCRIPT,
        helpers__dot__py=HELPERS,
        only_inside__dot__py="",
        unrelated__dot__py="",
        deeper__slash____init____dot__py="",
        deeper__slash__inner__dot__py="from . import other",
        deeper__slash__other__dot__py="",
        deeper__slash__data__dot__txt="data",
    )


def test_a_script_is_sent_under_another_name_with_all_that_it_imports(tmp_path: Path):
    a_program(tmp_path)
    found, digests = run(tmp_path, "script.py")
    assert found == {
        "main_script": [
            "deeper/__init__.py", "deeper/data.txt", "deeper/inner.py", "deeper/other.py", "helpers.py",
            "main_script.py", "only_inside.py", "show_code.py",
        ],
        "helpers": found["main_script"],
    }  # fmt: skip
    assert len(set(digests.values())) == 1, "one zip, so that one process runs all functions of the program"


def test_the_same_files_give_the_same_zip_wherever_and_whenever(tmp_path: Path):
    for name in ("one", "two"):
        a_program(tmp_path / name)
    os.utime(tmp_path / "two" / "helpers.py", (1, 1))
    (tmp_path / "two" / "deeper" / "__pycache__").mkdir()
    (tmp_path / "two" / "deeper" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (tmp_path / "two" / "deeper" / ".hidden").write_text("x")
    assert run(tmp_path / "one", "script.py") == run(tmp_path / "two", "script.py")
    (tmp_path / "two" / "deeper" / "data.txt").write_text("other")
    assert run(tmp_path / "one", "script.py")[1] != run(tmp_path / "two", "script.py")[1]


def test_a_program_started_with_m_is_sent_as_its_package(tmp_path: Path):
    body = SCRIPT.replace("import helpers\n", "from program import helpers\n").replace(
        "from show_code", "from program.show_code"
    )
    write(
        tmp_path,
        program__slash____init____dot__py="",
        program__slash__show_code__dot__py=PRINT_CODE,
        program__slash__start__dot__py=body,
        program__slash__helpers__dot__py=HELPERS.replace("import deeper.inner\n", "\n"),
    )
    found, digests = run(tmp_path, "-m", "program.start")
    assert set(found) == {"program.start", "program.helpers"}
    assert "program/start.py" in found["program.start"]
    assert len(set(digests.values())) == 1


def test_installed_packages_and_python_itself_are_not_sent():
    for installed in ("json", "msgspec", "myrmidon", "myrmidon.executor.builtins", "builtins", "pytest"):
        assert not is_shipped(installed), installed
    assert is_shipped("tests.functions.tasks")
    assert not is_shipped("there_is_no_such_module")
    assert CodePackages("auto").collect([]) == {}


def test_the_package_of_a_function_is_sent_if_the_program_itself_is_installed():
    packed = CodePackages("auto").collect([tasks.count])
    # The libraries that other tests have declared in modules of the same package are sent too.
    assert {name for name in packed if not name.startswith(LIBRARY)} == {"tests.functions.tasks"}
    assert "tests/functions/tasks.py" in packed["tests.functions.tasks"].names
    assert CodePackages("installed").collect([tasks.count]) == {}


def test_a_zip_is_deterministic_and_plain():
    packed = zip_files({"b.py": b"2", "a.py": b"1"})
    assert packed == zip_files({"a.py": b"1", "b.py": b"2"})
    assert packed.digest == hashlib.sha256(packed.data).hexdigest()
    with zipfile.ZipFile(io.BytesIO(packed.data)) as archive:
        assert archive.namelist() == ["a.py", "b.py"]
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}


def test_code_may_be_a_folder_a_package_or_a_file(tmp_path: Path):
    write(tmp_path, plain__slash__a__dot__py="1", pkg__slash____init____dot__py="", pkg__slash__b__dot__py="2")
    assert set(folder_contents(tmp_path / "plain")) == {"a.py"}
    assert set(folder_contents(tmp_path / "pkg")) == {"pkg/__init__.py", "pkg/b.py"}
    assert set(folder_contents(tmp_path / "plain" / "a.py")) == {"a.py"}
    with pytest.raises(GraphError, match="no such folder"):
        folder_contents(tmp_path / "nowhere")
    packed = CodePackages(tmp_path / "pkg").collect([tasks.count])
    assert packed["tests.functions.tasks"].names == {"pkg/__init__.py", "pkg/b.py"}


def test_code_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("myrmidon.sdk.code_zip.MAX_BYTES", 10)
    with pytest.raises(GraphError, match="code="):
        zip_files({"a.py": b"x" * 11})


def test_a_source_that_cannot_be_parsed_is_sent_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write(tmp_path, broken__dot__py="def (")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert module_contents(["broken"]) == {"broken.py": b"def ("}


# -- sessions -------------------------------------------------------------------------------------------------------

SESSION = """
import linecache, sys
sys.argv = [""]
main = sys.modules["__main__"]
vars(main).pop("__file__", None)

def cell(number, source):
    # As IPython does: the source of each cell is known to linecache.
    name = f"<cell {number}>"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    exec(compile(source, name, "exec"), vars(main))
"""


def session(folder: Path, *cells: str) -> subprocess.CompletedProcess[str]:
    body = SESSION + "".join(f"cell({number}, {textwrap.dedent(one)!r})\n" for number, one in enumerate(cells))
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    return subprocess.run(
        [sys.executable, "-"], input=body, cwd=folder, env=env, capture_output=True, text=True, timeout=HANG_S
    )


NAMES = """
    import math
    import os.path as p
    from dataclasses import dataclass
    from typing import Optional
    from myrmidon import task, context
    FACTOR = 3
    NAMES = ("a", ["b"], {"c": None})
    def helper(x):
        return [math.floor(y) for y in x if y is not unused]
    unused = None
    @dataclass
    class Point:
        x: int
"""
FUNCTIONS = """
    @task(reruns=1)
    def double(x: float) -> float:
        return x * FACTOR
    @task
    def f(x: Optional[float]) -> list[int]:
        def inside(y):
            return p.join("a", NAMES[0], str(y))
        local = 5
        return helper([double(x), local])
"""
SHOW = """
    import io, zipfile
    from myrmidon.sdk.code_packages import CodePackages
    packed = CodePackages("auto").collect([f])["main_notebook"]
    print(zipfile.ZipFile(io.BytesIO(packed.data)).read("main_notebook.py").decode())
"""


def test_functions_of_a_notebook_are_sent_with_what_they_use(tmp_path: Path):
    done = session(tmp_path, NAMES, FUNCTIONS, SHOW)
    assert done.returncode == 0, done.stderr
    source = done.stdout
    namespace: dict[str, Any] = {"__name__": "main_notebook"}
    exec(compile(source, "main_notebook.py", "exec"), namespace)
    assert namespace["f"](1.5) == [4, 5]
    assert "class Point" not in source, "only what is used"
    assert "import math as math" in source
    assert "FACTOR = 3" in source


HEAD = "@task\ndef f(x: int) -> int:\n"


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        (
            ["data = open('/dev/null')", "@task\ndef f(x: int) -> int:\n    return x + len(data.name)"],
            "data (an object of type",
        ),
        (["@task\ndef f(x: int) -> int:\n    return x + nowhere"], "nowhere (not defined)"),
        (
            ["import numpy\narray = numpy.zeros(3)", "@task\ndef f(x: int) -> int:\n    return array[x]"],
            "array (an object of type",
        ),
    ],
)
def test_what_a_notebook_cannot_send_is_named(tmp_path: Path, cells: list[str], problem: str):
    done = session(tmp_path, "from myrmidon import task", *cells, SHOW)
    assert done.returncode != 0
    assert problem in done.stderr, done.stderr
    assert "Pass such values as arguments" in done.stderr


def test_a_session_that_keeps_no_sources_is_told_what_to_do(tmp_path: Path):
    forget = "import linecache; linecache.cache.clear()"
    done = session(tmp_path, "from myrmidon import task", f"{HEAD}    return x", forget, SHOW)
    assert done.returncode != 0
    assert "the source of f is not known" in done.stderr
    assert "Write the functions into a file" in done.stderr


def test_a_session_sends_the_modules_beside_it(tmp_path: Path):
    write(tmp_path, beside__dot__py="def g(x):\n    return x\n")
    show = SHOW.replace('read("main_notebook.py").decode()', "namelist()")
    cells = ["import beside\nfrom myrmidon import task", "@task\ndef f(x: int) -> int:\n    return beside.g(x)", show]
    done = session(tmp_path, "import sys; sys.path.insert(0, '')", *cells)
    assert done.stdout.strip() == "['beside.py', 'main_notebook.py']", done.stderr


def test_a_constant_that_changes_in_a_session_changes_the_code(tmp_path: Path):
    check = """
        from myrmidon.sdk.code_packages import CodePackages
        packages = CodePackages("auto")
        first = packages.collect([f])["main_notebook"].digest
        LIMIT = 2
        second = packages.collect([f])["main_notebook"].digest
        LIMIT = 1
        print(first != second, packages.collect([f])["main_notebook"].digest == first)
    """
    cells = ["from myrmidon import task\nLIMIT = 1", f"{HEAD}    return x + LIMIT", check]
    done = session(tmp_path, *cells)
    assert done.stdout.strip() == "True True", done.stderr
