"""What the import contract cannot say: where SQL, clocks, randomness and the framework may be; the documents."""

from __future__ import annotations

import ast
import re
import sys

import pytest

from myrmidon.model.errors import NOT_FOUND_ADVICE
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
        "views/overview",
        "views/search",
        "views/task_count",
        "views/task_search",
    )
}
REPAIRED_IN = {
    "httptools": (0, 8),  # a URL of more than 64 KiB was cut; before 0.6.3 CVE-2024-27982
    "PyMySQL": (1, 1, 1),  # CVE-2024-36039
    "starlette": (0, 49, 1),  # CVE-2025-62727
    "urllib3": (2, 7),  # CVE-2026-44431, CVE-2026-44432
}
"""The first releases of dependencies without faults that concern a server or its clients."""
MAY_READ_A_CLOCK = {"store/engine/db.py", "store/engine/group_commit.py", "store/engine/migrate.py"}


def test_the_import_contract_holds():
    """The layers of ARCHITECTURE.md; `make check` shows more of a broken one."""
    from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

    config = str(source.ROOT / "pyproject.toml")
    assert lint_imports(config_filename=config, no_cache=True) == EXIT_STATUS_SUCCESS


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
    reads_yaml = "cli/graph_file.py"  # with the safe loader
    assert found == {
        (runs_hooks, "exec"), (runs_hooks, "compile"), (checks_hooks, "compile"), (reads_yaml, "yaml"),
        (reads_yaml, "yaml.SafeLoader"), (reads_yaml, "yaml.YAMLError"), (reads_yaml, "yaml.Node"),
        (reads_yaml, "yaml.MappingNode"), (reads_yaml, "yaml.SequenceNode"), (reads_yaml, "yaml.ScalarNode"),
    }  # fmt: skip


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
    own = ("myrmidon.bot.", "myrmidon.executor.", "myrmidon.functions.")
    foreign = [
        (file, name)
        for file in zipped_files()
        for name in source.imported_names(file)
        if name.split(".")[0] not in sys.stdlib_module_names and not f"{name}.".startswith(own)
    ]
    assert foreign == []


def test_the_bot_is_written_in_the_syntax_of_python_3_8():
    for file in zipped_files():
        ast.parse((source.PACKAGE / file).read_text(), filename=file, feature_version=(3, 8))


def zipped_files():
    return [file for part in ("bot", "executor", "functions") for file in source.files(part)]


@pytest.mark.parametrize("library", ["starlette", "uvicorn"])
def test_only_the_http_side_of_the_server_knows_the_web_framework(library):
    knows = {file for file in source.files() for name in source.imported_names(file) if name.split(".")[0] == library}
    assert knows
    assert [file for file in knows if not file.startswith("server/asgi/") and file != "server/process.py"] == []


def test_stored_log_bytes_leave_through_the_reader_that_masks_secrets():
    reads = {"myrmidon.store.tables.log.read", "myrmidon.store.tables.log.stored"}
    readers = [file for file in source.files() if reads & source.calls_of(source.PACKAGE / file)]
    assert readers == ["server/usecases/logs.py"]


def test_every_public_verb_is_called_by_a_test():
    called = {name for path in (source.ROOT / "tests").rglob("*.py") for name in source.calls_of(path)}
    verbs = [
        f"myrmidon.{file.removesuffix('.py').replace('/', '.')}.{verb}"
        for file in source.files("scheduler")
        for verb in source.verbs(file)
    ]
    assert verbs
    assert [verb for verb in verbs if verb not in called] == []


def test_no_release_with_a_known_fault_can_be_installed():
    text = (source.ROOT / "pyproject.toml").read_text()
    bounds = re.findall(r'^  "([\w-]+)(?:\[\w+\])?>=([0-9.]+)', text, re.MULTILINE)
    least = {name: tuple(int(number) for number in version.split(".")) for name, version in bounds}
    assert {name: least[name] for name, repaired in REPAIRED_IN.items() if least[name] < repaired} == {}


def test_every_error_says_what_to_do_next():
    """Kinds of objects have their advice in a table; other messages say it after a semicolon or colon."""
    files = [file for part in ("model", "store", "scheduler", "server") for file in source.files(part)]
    kinds = {kind for file in files for kind in source.raised(file, "NotFound")} - {"..."}
    assert kinds == set(NOT_FOUND_ADVICE)
    messages = [
        (file, message)
        for file in files
        for name in ("Forbidden", "WrongState", "Conflict")
        for message in source.raised(file, name)
        if message != "..."
    ]
    assert len(messages) > 30
    assert [(file, message) for file, message in messages if not re.search("[;:] ", message)] == []


def test_every_error_code_is_documented():
    documented = set(re.findall(r"`([a-z_.]+)`", (source.ROOT / "docs" / "errors.md").read_text()))
    codes = source.error_codes()
    assert codes, "model/errors.py has no codes"
    assert set(codes) - documented == set()
