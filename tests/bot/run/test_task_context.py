"""What a command finds around it: the variables, the context, and the words that are put into its own."""

from __future__ import annotations

import json
import os
import stat
import time
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from myrmidon.bot.commands.task_files import TaskFiles, expand_text, has_placeholders, last_started_tasks
from myrmidon.bot.run.isolation import Isolation
from tests.bot.bots import BotProcess, a_bot
from tests.bot.runs import a_task
from tests.bot.stub import Stub

SHELL = "/bin/sh"


def _lines(fleet: Stub, script: str, **fields: Any) -> list[str]:
    run = fleet.submit(SHELL, "-c", script, **fields)
    assert fleet.result(run)["exit_code"] == 0, fleet.log(run, 1)
    return fleet.log(run).decode().splitlines()


def test_the_variables_that_tasks_of_swarming_know_are_set(fleet: Stub):
    run = fleet.submit("/usr/bin/env")
    fleet.result(run)
    seen = dict(line.split("=", 1) for line in fleet.log(run).decode().splitlines())
    assert (seen["SWARMING_HEADLESS"], seen["SWARMING_BOT_ID"], seen["SWARMING_TASK_ID"]) == ("1", "b1", run)
    assert seen["SWARMING_SERVER"] == fleet.url
    assert seen["TMPDIR"] == seen["TMP"] == seen["TEMP"]
    assert os.path.isfile(seen["LUCI_CONTEXT"])


OF_THE_BOT = {
    "LUCI_CONTEXT", "MYRMIDON_BOT_FOLDER", "MYRMIDON_BOT_ID", "MYRMIDON_SERVER", "MYRMIDON_TASK_ID", "SWARMING_BOT_ID",
    "SWARMING_HEADLESS", "SWARMING_SERVER", "SWARMING_TASK_ID", "TEMP", "TMP", "TMPDIR",
}  # fmt: skip
PASSED = {
    "PATH": "/usr/bin:/bin", "HOME": "/root", "USER": "u", "LOGNAME": "u", "SHELL": "/bin/sh", "LANG": "C.UTF-8",
    "LC_TIME": "C", "TZ": "UTC", "SSL_CERT_FILE": "/c", "https_proxy": "http://p", "NO_PROXY": "x", "DISPLAY": ":1",
}  # fmt: skip
PRIVATE = {
    "MAKELEVEL": "1", "MAKEFLAGS": "-j", "PWD": "/here", "OLDPWD": "/there", "SSH_AUTH_SOCK": "/agent", "EDITOR": "vi",
    "AWS_SECRET_ACCESS_KEY": "k", "PYTHONPATH": "/nowhere", "MYRMIDON_TOKEN": "t", "my_proxy": "x", "VIRTUAL_ENV": "/v",
}  # fmt: skip


@pytest.mark.parametrize("further", [(), ("EDITOR", "MISSING")])
def test_a_task_gets_an_environment_that_does_not_depend_on_who_started_its_bot(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, further: tuple[str, ...]
):
    for name in os.environ:
        monkeypatch.delenv(name)
    flags = [word for name in further for word in ("--pass-env", name)]
    with a_bot(stub.url, tmp_path / "b1", *flags, env={**PASSED, **PRIVATE}):
        run = stub.submit("/usr/bin/env")
        assert stub.result(run)["exit_code"] == 0
    seen = dict(line.split("=", 1) for line in stub.log(run).decode().splitlines())
    assert set(seen) == {*OF_THE_BOT, *PASSED, *({"EDITOR"} if further else ())}
    assert {name: seen[name] for name in PASSED} == PASSED


def test_every_task_finds_its_own_context(fleet: Stub):
    before = time.time() - 0.001  # the deadline is rounded to milliseconds
    runs = [fleet.submit(SHELL, "-c", "cat $LUCI_CONTEXT", execution_timeout_s=50 + n) for n in range(5)]
    for n, run in enumerate(runs):
        fleet.result(run)
        told = json.loads(fleet.log(run))
        assert told["swarming"]["task"]["server"] == fleet.url
        assert told["swarming"]["task"]["task_id"] == run[:-2] + "00"
        assert "id:b1" in told["swarming"]["task"]["bot_dimensions"]
        ends_at = told["deadline"]["soft_deadline"]
        assert round(before, 3) + 49.999 + n <= ends_at <= time.time() + 50.001 + n, "in whole milliseconds"
        assert told["deadline"]["grace_period"] == 1
        assert "secret_bytes" not in told["swarming"]
        assert "realm" not in told


def test_the_id_and_the_realm_that_the_server_names_are_told(fleet: Stub):
    (line,) = _lines(fleet, "cat $LUCI_CONTEXT", task_id="5cee00", realm='lab:"try"')
    told = json.loads(line)
    assert (told["swarming"]["task"]["task_id"], told["realm"]) == ("5cee00", {"name": 'lab:"try"'})


def test_secret_bytes_are_in_a_private_context_only_and_gone_afterwards(fleet: Stub, folder: Path):
    script = "stat -c %a $LUCI_CONTEXT; echo $LUCI_CONTEXT; cat $LUCI_CONTEXT; echo; env | grep -c c2VjcmV0 || true"
    mode, path, text, in_env = _lines(fleet, script, secret_bytes=b64encode(b"secret").decode())
    assert (mode, in_env) == ("600", "0")
    assert json.loads(text)["swarming"]["secret_bytes"] == b64encode(b"secret").decode()
    assert not os.path.exists(path)
    (text,) = _lines(fleet, "cat $LUCI_CONTEXT")
    assert "secret_bytes" not in text
    assert stat.S_IMODE((folder / "context" / "context.json").stat().st_mode) == 0o600
    assert sorted(path.name for path in (folder / "work").iterdir()) == ["run", "tmp"]


@pytest.mark.parametrize(
    "harm",
    ["rm $LUCI_CONTEXT", "mv $LUCI_CONTEXT $LUCI_CONTEXT.x", "head -c 99999 /dev/zero >> $LUCI_CONTEXT",
     "echo evil > $LUCI_CONTEXT", "rm $LUCI_CONTEXT; ln -s /etc/passwd $LUCI_CONTEXT",
     "rm $LUCI_CONTEXT; mkdir $LUCI_CONTEXT", "cd $(dirname $LUCI_CONTEXT)/..; rm -r context; ln -s /tmp context"],
)  # fmt: skip
def test_a_task_that_spoils_its_context_spoils_no_other(exposed: tuple[Stub, BotProcess], harm: str):
    fleet = exposed[0]
    _lines(fleet, harm)
    (text,) = _lines(fleet, "cat $LUCI_CONTEXT")
    assert json.loads(text)["swarming"]["task"]["server"] == fleet.url


def test_words_in_arguments_and_variables_are_replaced(fleet: Stub, folder: Path):
    script = 'echo "$0" "$1" "$2" "$FILE" "$NAME"; cat ${SWARMING_BOT_FILE}'
    run = fleet.submit(
        SHELL, "-c", script, "${SWARMING_BOT_FILE}/a", "x${EXECUTABLE_SUFFIX}", "${SWARMING_TASK_ID}",
        env={"FILE": "${SWARMING_BOT_FILE}", "NAME": "${SWARMING_TASK_ID}"},
    )  # fmt: skip
    assert fleet.result(run)["exit_code"] == 0, fleet.log(run, 1)
    first, second = fleet.log(run).decode().splitlines()
    file = folder / "work" / "bot_file.json"
    assert first == f"{file}/a x {run} {file} ${{SWARMING_TASK_ID}}"
    assert second == "{}"
    assert sorted(path.name for path in (folder / "work").iterdir()) == ["run", "tmp"]


def test_a_folder_of_results_that_nobody_would_store_is_an_error(fleet: Stub):
    report = fleet.run(SHELL, "-c", "echo x > ${ISOLATED_OUTDIR}/file")
    assert (report["exit_code"], report["start_failed"]) == (1, True)
    assert report["message"].startswith("${ISOLATED_OUTDIR} cannot be used: the server does not store folders")


def test_a_shells_own_variables_are_left_alone(fleet: Stub):
    assert _lines(fleet, "X=1; echo ${X} ${ISOLATED_OUTDIRS:-none}") == ["1 none"]


def test_paths_that_are_put_in_are_separated_as_the_system_does():
    places = {"SWARMING_BOT_FILE": r"C:\out", "EXECUTABLE_SUFFIX": ".exe"}
    assert expand_text("${SWARMING_BOT_FILE}/a/b", places, "\\") == r"C:\out\a\b"
    assert expand_text("a/b${EXECUTABLE_SUFFIX}", places, "\\") == "a/b.exe"
    assert expand_text("a/b", places, "\\") == "a/b"
    assert (has_placeholders(["a", "$b"]), has_placeholders(["a", "${b}"])) == (False, True)


def test_what_an_earlier_process_had_begun_is_told_by_what_it_has_left(tmp_path: Path):
    task = a_task("5cee01")
    assert last_started_tasks(str(tmp_path)) == []
    (tmp_path / "work").mkdir()
    around = TaskFiles(str(tmp_path), str(tmp_path / "work"), Isolation(), "http://s")
    around.write_context(task)
    assert last_started_tasks(str(tmp_path)) == ["5cee00"]
    around.write_context(a_task("5cef02", secret_bytes=b""))
    assert last_started_tasks(str(tmp_path)) == ["5cee00", "5cef00"]
    (tmp_path / "context" / "context.json").write_text("[1]")
    assert last_started_tasks(str(tmp_path)) == ["5cef00"]


def test_a_context_grows_with_what_the_bot_offers(tmp_path: Path):
    around = TaskFiles(str(tmp_path), str(tmp_path / "work"), Isolation(), "http://s")
    task = a_task("5cee01")
    for count in (1, 300, 2):
        around.set_dimensions({"k": [f"value-{n}" for n in range(count)]})
        told = json.loads(Path(around.write_context(task)).read_text())
        assert len(told["swarming"]["task"]["bot_dimensions"]) == count


def test_caches_are_told_with_their_sizes_and_where_the_time_went(fleet: Stub):
    caches = [{"name": "one", "path": "c1"}, {"name": "two", "path": "c2"}]
    run = fleet.submit(SHELL, "-c", "printf 12345 > c1/x", caches=caches, cache_hints={"two": 1000})
    result = fleet.result(run)
    assert result["caches"] == {"one": 5}
    told = {"bot_overhead", "named_caches_install", "named_caches_uninstall", "cache_trim", "cleanup"}
    assert told == set(result["stats"])


def test_a_quick_run_tells_its_overhead_and_cost_too_but_no_caches(fleet: Stub):
    result = fleet.run("/bin/true")
    assert set(result["stats"]) == {"bot_overhead", "cache_trim", "cleanup"}
    assert result["stats"]["bot_overhead"] > 0
    assert result["cost_usd"] > 0
    assert "caches" not in result


def test_a_cache_becomes_a_dimension(fleet: Stub):
    fleet.run(SHELL, "-c", "printf 12345 > c1/x", caches=[{"name": "one", "path": "c1"}])
    news = lambda: [b for _, path, b in fleet.calls if "one" in b.get("dimensions", {}).get("caches", [])]  # noqa: E731
    fleet.until(news, "the cache among the dimensions")


def test_a_bot_inside_another_task_shows_its_own_task_only(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1", env={"SWARMING_TASK_ID": "outer", "MYRMIDON_TASK_ID": "outer"}):
        run = stub.submit("/usr/bin/env")
        stub.result(run)
        ids = [line for line in stub.log(run).decode().splitlines() if "_TASK_ID=" in line]
    assert sorted(ids) == [f"MYRMIDON_TASK_ID={run}", f"SWARMING_TASK_ID={run}"]
