"""The identity of a function changes with every edit that can change its result, and with no other."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from myrmidon.sdk.code_zip import zip_files
from myrmidon.sdk.function_identity import CodeIdentities

Files = Mapping[str, str]


def identity(files: Files, function: str = "f", module: str = "app") -> str:
    packed = zip_files({name: text.encode() for name, text in files.items()})
    return CodeIdentities(packed).identity(module, function)


def app(body: str, **more: str) -> dict[str, str]:
    return {"app.py": body, **{name.replace("__", "/") + ".py": text for name, text in more.items()}}


SMALL = app("""
from myrmidon import task
LIMIT = 5
OTHER = 6

def helper(x):
    return x + LIMIT

def unrelated(x):
    return x * OTHER

@task(timeout="5m")
def f(x: int) -> int:
    return helper(x)
""")


def edited(files: Files, old: str, new: str) -> dict[str, str]:
    assert sum(text.count(old) for text in files.values()) == 1, old
    return {name: text.replace(old, new) for name, text in files.items()}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return helper(x)", "return helper(x) + 1"),
        ("x + LIMIT", "x - LIMIT"),
        ("LIMIT = 5", "LIMIT = 5.0"),
        ("def f(x: int)", "def f(x: int = 3)"),
        ("OTHER = 6", "OTHER = 6\nLIMIT = 7"),
        ("OTHER = 6", "OTHER = 6\nLIMIT -= 1"),
        ("OTHER = 6", "print(1)"),
        ("OTHER = 6", "import seaborn"),
        ("OTHER = 6", "helper.x = 3"),
        ("LIMIT = 5", "LIMIT = True"),
        ("return x + LIMIT", '"says"\n    return x + LIMIT'),
    ],
)
def test_an_edit_of_what_a_function_reaches_changes_it(old, new):
    assert identity(edited(SMALL, old, new)) != identity(SMALL)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x * OTHER", "x * OTHER * 2"),
        ("OTHER = 6", "OTHER = 7"),
        ("OTHER = 6", "OTHER = 6\nimport json, math"),
        ("def unrelated(x):\n    return x * OTHER\n", ""),
        ("OTHER = 6", "OTHER = 6  # comment"),
        ('timeout="5m"', "reruns=3"),
        ("return helper(x)", "return (\n        helper(x)  # formatted\n    )"),
        ("LIMIT = 5", "LIMIT  =  5"),
        ("OTHER = 6", "OTHER = 6\nclass Late:\n    x: int = 3\n    def g(self): return 1"),
        ("OTHER = 6", 'OTHER = 6\nif __name__ == "__main__":\n    print(f(3))'),
    ],
)
def test_an_edit_of_anything_else_does_not(old, new):
    assert identity(edited(SMALL, old, new)) == identity(SMALL) != ""


# Programs with one line "EDIT"; each is followed by what the edit may be. The function f must notice all of them.
SEEN = [
    # through a decorator, a default, a class, a base, a property, a string annotation
    ("def deco(g): return lambda x: g(x) + EDIT\n@deco\ndef f(x): return x", ["1", "2"]),
    ("STEP = EDIT\ndef f(x, step=STEP): return x + step", ["1", "2"]),
    ("class A:\n    n = EDIT\n    def go(self): return self.n\ndef f(x): return A().go()", ["1", "2"]),
    ("class B:\n    def go(self): return EDIT\nclass A(B): pass\ndef f(x): return A().go()", ["1", "2"]),
    (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int = EDIT\ndef f(p: 'P') -> int: return p.x",
        ["1", "2"],
    ),
    (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int = EDIT\ndef f(p: 'list[P]'): return 1",
        ["1", "2"],
    ),
    # tables of functions, lambdas, partials
    ("def a(): return EDIT\nTABLE = {'a': a}\ndef f(x): return TABLE[x]()", ["1", "2"]),
    ("RULE = lambda x: EDIT\ndef f(x): return RULE(x)", ["1", "2"]),
    ("from functools import partial\ndef g(a, b): return a\nG = partial(g, EDIT)\ndef f(x): return G(x)", ["1", "2"]),
    # registries: what registers is run when the module is imported
    (
        "R = {}\ndef add(g): R[g.__name__] = g; return g\n@add\ndef a(): return EDIT\ndef f(x): return R[x]()",
        ["1", "2"],
    ),
    ("R = []\ndef a(): return EDIT\nR.append(a)\ndef f(x): return R[0]()", ["1", "2"]),
    ("R = {}\ndef a(): return EDIT\nR['a'] = a\ndef f(x): return R['a']()", ["1", "2"]),
    ("R = []\nx = R.append(EDIT)\ndef f(x): return R", ["1", "2"]),
    ("R = []\nR += [EDIT]\ndef f(x): return R", ["1", "2"]),
    ("R = []\nS = R\nfor i in range(EDIT): S.append(i)\ndef f(x): return R", ["1", "2"]),
    (
        "class B:\n    k=[]\n    def __init_subclass__(c): B.k.append(c)\nclass A(B):\n    n=EDIT\ndef f(x): return B",
        ["1", "2"],
    ),
    (
        "class M(type):\n    def __new__(*a): return 1\nclass A(metaclass=M):\n    n = EDIT\ndef f(x): return M",
        ["1", "2"],
    ),
    ("class Base: pass\nclass A(Base):\n    n = EDIT\ndef f(x): return Base.__subclasses__()[0].n", ["1", "2"]),
    ("class P:\n    def __or__(self, o): self.n = o\np = P()\nq = p | EDIT\ndef f(x): return p.n", ["1", "2"]),
    ("R = []\ndef now(g): g(); return g\n@now\ndef a(): R.append(EDIT)\ndef f(x): return R", ["1", "2"]),
    (
        "R = []\ndef deco(g):\n    R.append(g)\n    return g\n@deco\ndef a(): return EDIT\ndef f(x): return R[0]()",
        ["1", "2"],
    ),
    # a name that is bound anew, in blocks, by a global statement
    ("N = 1\nif True:\n    N = EDIT\ndef f(x): return N", ["1", "2"]),
    ("try:\n    N = EDIT\nexcept ValueError:\n    N = 0\ndef f(x): return N", ["1", "2"]),
    ("N = 1\ndef set(): \n    global N\n    N = EDIT\ndef f(x): set(); return N", ["1", "2"]),
    ("(N := EDIT)\ndef f(x): return N", ["1", "2"]),
    # what cannot be followed: the whole module, or the whole code
    ("def a(): return EDIT\ndef f(x): return globals()[x]()", ["1", "2"]),
    ("def a(): return EDIT\ndef f(x): return eval(x)", ["1", "2"]),
    ("import sys\ndef a(): return EDIT\ndef f(x): return getattr(sys.modules[__name__], x)()", ["1", "2"]),
    (
        "import importlib\ndef a(): return EDIT\ndef f(x): return getattr(importlib.import_module('app'), x)()",
        ["1", "2"],
    ),
    ("import pickle\nclass A:\n    n = EDIT\ndef f(x): return pickle.loads(x).n", ["1", "2"]),
    ("'''EDIT'''\ndef f(x): return __doc__", ["one", "two"]),
    ("def a():\n    '''EDIT'''\ndef f(x): return a.__doc__", ["one", "two"]),
]


@pytest.mark.parametrize(("program", "edits"), SEEN)
def test_every_edit_that_can_change_the_result_is_seen(program, edits):
    """Without an identity the digest of the whole code is compared, which sees every edit."""
    first, second = (identity(app(program.replace("EDIT", edit))) for edit in edits)
    assert first != second or first == ""


PACKAGE = {
    "app.py": "import lib\nfrom lib import tools as t\nfrom lib.deep import inner\n"
    "from lib.deep.inner import leaf as renamed\ndef f(x): return lib.api(x)\ndef g(x): return t.tool(x)\n"
    "def h(x): return renamed(x)\ndef i(x): return inner.leaf(x)\n"
    "def j(x):\n    from lib.lazy import late\n    return late(x)\ndef k(x): return use(t)\ndef use(m): return m\n"
    "def m(x): return lib.deep.inner.leaf(x)\n",
    "lib/__init__.py": "from .api import api\nfrom . import deep\n",
    "lib/api.py": "from lib.tools import tool\ndef api(x): return 'api'\ndef other(): return 'other'\n",
    "lib/tools.py": "def tool(x): return 'tool'\ndef spare(x): return 'spare'\n",
    "lib/deep/__init__.py": "",
    "lib/deep/inner.py": "def leaf(x): return 'leaf'\ndef dry(x): return 'dry'\n",
    "lib/lazy.py": "def late(x): return 'late'\ndef later(x): return 'later'\n",
    "lib/unused.py": "def unused(): return 'unused'\n",
}


@pytest.mark.parametrize(
    ("text", "seen_by"),
    [
        ("api", "f"),
        ("other", ""),
        ("tool", "gk"),
        ("spare", "k"),
        ("leaf", "him"),
        ("dry", ""),
        ("late", "j"),
        ("later", ""),
        ("unused", ""),
    ],
)
def test_imports_are_followed_to_what_is_used(text, seen_by):
    changed = edited(PACKAGE, f"return '{text}'", f"return '{text} edited'")
    seen = {name for name in "fghijkm" if identity(changed, name) != identity(PACKAGE, name)}
    assert seen == set(seen_by)


@pytest.mark.parametrize(
    "statement",
    ["print('hello')", "import this_is_installed", "X = compute()", "import lib.tools\nlib.tools.tool = None"],
)
@pytest.mark.parametrize("module", ["lib/__init__.py", "lib/deep/__init__.py", "lib/deep/inner.py", "lib/tools.py"])
def test_what_an_imported_module_does_when_it_is_imported_counts(module, statement):
    changed = {**PACKAGE, module: PACKAGE[module] + statement + "\n"}
    assert {identity(changed, name) != identity(PACKAGE, name) for name in "fghijkm"} == {True}


def test_a_module_that_is_not_imported_does_not_count():
    changed = {**PACKAGE, "lib/unused.py": "print('hello')\n"}
    assert {identity(changed, name) == identity(PACKAGE, name) for name in "fghijkm"} == {True}


def test_a_star_import_counts_as_the_whole_module():
    files = app(
        "from lib import *\ndef f(x): return helper(x)", lib="def helper(x): return x\ndef far(x): return 'far'"
    )
    assert identity(files) != identity(edited(files, "'far'", "'near'"))


def test_a_module_with_a_getattr_of_its_own_counts_as_a_whole():
    files = app(
        "import lib\ndef f(x): return lib.helper", lib="def far(x): return 'far'\ndef __getattr__(name): return far"
    )
    assert identity(files) != identity(edited(files, "'far'", "'near'"))


def test_modules_may_import_each_other():
    files = app("import lib\ndef f(x): return lib.g(x)\nN = 1", lib="import app\ndef g(x): return app.N")
    assert "" != identity(files) != identity(edited(files, "N = 1", "N = 2"))


@pytest.mark.parametrize(
    "files",
    [
        {"app.py": "def f(x): return 1", "fast.so": "elf"},
        {"app.py": "def f(x: return 1"},
        {"app.py": "\x00"},
        {"other.py": ""},
        {"app.py": "def f(x): return open(__file__)"},
        {"app.py": "def f(x): 1", "app/__init__.py": ""},
        {"app.py": "import importlib.resources\ndef f(x): return importlib.resources.files('app')"},
    ],
)
def test_where_the_sources_do_not_tell_there_is_no_identity(files):
    assert identity(files) == ""


def test_a_function_that_only_another_one_cannot_be_told_keeps_its_identity():
    files = app("import inspect, joblib\ndef g(x): return inspect.getsource(g)\ndef f(x): return x")
    assert (identity(files, "g"), identity(files, "f") != "") == ("", True)


def test_a_decorator_that_only_wraps_does_not_make_the_module_one():
    files = app(
        "import functools\n"
        "def timed(g):\n    @functools.wraps(g)\n    def inner(*args): return g(*args)\n    return inner\n"
        "@timed\ndef g(x): return 'g'\n@timed\ndef f(x): return 'f'\n"
    )
    assert identity(files) == identity(edited(files, "'g'", "'h'"))
    assert identity(files) != identity(edited(files, "'f'", "'h'"))
    assert identity(files) != identity(edited(files, "return g(*args)", "return None"))


def test_a_static_method_counts_as_its_class():
    files = app("class Tasks:\n    n = 1\n    @staticmethod\n    def f(x): return Tasks.n\ndef g(): return 'g'")
    assert identity(files, "Tasks.f") == identity(edited(files, "'g'", "'h'"), "Tasks.f")
    assert identity(files, "Tasks.f") != identity(edited(files, "n = 1", "n = 2"), "Tasks.f")


def test_two_modules_with_the_same_function_differ():
    files = {"a.py": "def f(x): return x", "b.py": "def f(x): return x"}
    assert identity(files, module="a") != identity(files, module="b")


def test_a_module_that_another_one_has_imported_under_a_name_is_followed():
    files = {
        "app.py": "from lib import t\ndef f(x): return t.tool(x)",
        "lib/__init__.py": "import lib.tools as t",
        "lib/tools.py": "def tool(x): return 'tool'\ndef spare(x): return 'spare'",
    }
    assert identity(files) != identity(edited(files, "'tool'", "'hammer'"))
    assert identity(files) == identity(edited(files, "'spare'", "'hammer'"))


@pytest.mark.parametrize(
    ("body", "is_seen"),
    [
        ("def f(g): return g", False),
        ("def f(x):\n    g = x\n    return g", False),
        ("def f(x): return [g for g in x]", False),
        ("def f(x): return [g for g in x], g", True),
        ("def f(x, y=g): return y", True),
        ("def f(x): return (lambda g: g)(x)", False),
        ("def f(x): return (lambda y: g)(x)", True),
        ("def f(x):\n    def h(): return g\n    return h()", True),
        ("def f(x):\n    def h(): return g\n    g = 1\n    return h()", False),
        ("def f(x):\n    class g: pass", False),
        ("def f(x):\n    global g\n    g = g + 1", True),
        ("class A:\n    g = 1\n    def m(self): return g\ndef f(x): return A", True),
        ("def f(x):\n    for g in x: pass", False),
        ("def f(x):\n    return [y for y in g]", True),
        ("def f(x):\n    if (g := x): return g", False),
        ("def f(x: g): return 1", True),
        ("@g\ndef f(x): return 1", True),
    ],
)
def test_a_name_of_a_function_is_not_the_name_of_its_module(body, is_seen):
    files = app(f"def g(): return 'g'\n{body}\n")
    assert (identity(files) != identity(edited(files, "'g'", "'h'"))) == is_seen
