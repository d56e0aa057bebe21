"""Tests that guard the reader: the reading order, the walls between the parts, and the documents."""

from __future__ import annotations

import re
import sys

import pytest

from tests.architecture import source

SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE)\s")
CHANCE = re.compile(
    r"(datetime\.)?(datetime|date)\.(now|utcnow|today)|time\.(time|time_ns|monotonic|monotonic_ns)"
    r"|os\.(urandom|getrandom)|(random|uuid|secrets)(\..*)?"
)
LIVELY = re.compile(r"(pickle|marshal|shelve|dill|yaml|tarfile)(\..*)?|eval|exec|compile|shutil\.unpack_archive")
CONSTANT = re.compile(r"(\w+\.)?_?[A-Z][A-Z0-9_]*(\.\w+)?")
MAY_WRITE_SQL = {
    f"store/{name}.py"
    for name in (
        "engine/sql",
        "engine/driver",
        "engine/sqlite",
        "engine/postgresql",
        "engine/mariadb",
        "engine/db",
        "engine/migrate",
        "engine/table_copy",
        "views/listings",
        "views/task_search",
    )
}
MAY_READ_A_CLOCK = {"store/engine/db.py", "store/engine/group_commit.py", "store/engine/migrate.py"}


def test_every_file_is_listed_exactly_once():
    order = source.reading_order()
    assert len(order) == len(set(order)), "STORY.md lists a file twice"
    assert set(source.files()) - set(order) == set(), "STORY.md does not list these files"


def test_every_listed_file_exists():
    assert set(source.reading_order()) - set(source.files()) == set(), "STORY.md lists files that do not exist"


def test_a_file_imports_only_what_the_reader_has_read():
    order = source.reading_order()
    ahead = [
        f"{file} imports {imported}, which comes later"
        for position, file in enumerate(order)
        if file in source.files()
        for imported in source.imported_files(file)
        if imported not in order[:position]
    ]
    assert ahead == []


def test_sql_lives_in_the_store_only():
    outside = [file for file in source.files() if not file.startswith("store/")]
    found = [(file, text) for file in outside for text in source.strings(file) if SQL.match(text)]
    assert found == []


def test_statements_are_put_together_from_constants_only():
    """What varies is a parameter; only the files that know the drivers, and the filters, write SQL."""
    found = [
        (file, hole)
        for file in source.files("store")
        if file not in MAY_WRITE_SQL
        for start, holes in source.filled_in(file)
        if SQL.match(start)
        for hole in holes
        if not CONSTANT.fullmatch(hole)
    ]
    assert found == []


def test_nothing_that_was_sent_is_ever_code():
    """Values are bytes and JSON, whoever they come from; only a bot runs code, and only that of its owner's hooks."""
    runs_hooks, checks_hooks = "bot/hooks/loader.py", "server/config/config_folder.py"
    found = {
        (file, name)
        for file in source.files()
        for name in [*source.imported_names(file), *source.used_names(file), *source.called_names(file)]
        if LIVELY.fullmatch(name)
    }
    assert found == {(runs_hooks, "exec"), (runs_hooks, "compile"), (checks_hooks, "compile")}


@pytest.mark.parametrize("part", ["model", "store", "scheduler"])
def test_the_core_reads_no_clock_and_no_chance(part):
    files = [file for file in source.files(part) if file not in MAY_READ_A_CLOCK]
    found = [
        (file, name)
        for file in files
        for name in [*source.imported_names(file), *source.used_names(file)]
        if CHANCE.fullmatch(name)
    ]
    assert found == []


def test_the_bot_stands_alone():
    """A bot runs where nothing is installed: its files import the standard library and each other."""
    foreign = [
        (file, name)
        for file in source.files("bot")
        for name in source.imported_names(file)
        if name.split(".")[0] not in sys.stdlib_module_names and not name.startswith("myrmidon.bot.")
    ]
    assert foreign == []


@pytest.mark.parametrize(("library", "only"), [("starlette", "server/asgi/app.py"), ("uvicorn", "server/process.py")])
def test_only_one_file_knows_the_web_framework_and_one_the_listener(library, only):
    knows = {file for file in source.files() for name in source.imported_names(file) if name.split(".")[0] == library}
    assert knows == {only}


def test_every_public_verb_has_a_test_bearing_its_name():
    tests = "\n".join(path.read_text() for path in (source.ROOT / "tests").rglob("*.py"))
    words = set(re.findall(r"\w+", tests))
    untested = [
        f"{file}: {name}" for file in source.files("scheduler") for name in source.verbs(file) if name not in words
    ]
    assert untested == []


def test_every_error_code_is_documented():
    documented = set(re.findall(r"`([a-z_.]+)`", (source.ROOT / "docs" / "errors.md").read_text()))
    codes = source.error_codes()
    assert codes, "model/errors.py has no codes"
    assert set(codes) - documented == set()
