"""Hooks: what they are called with, what they may do, and that nothing they do wrong ends a bot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from myrmidon.bot.hooks import default_bot_config, loader
from myrmidon.bot.hooks.api import Bot
from myrmidon.bot.hooks.loader import HookFailed, Hooks
from myrmidon.bot.machine import settings, status
from tests.bot.bots import a_bot, wait_for, zip_files
from tests.bot.stub import Stub
from tests.deadline import HANG_S

DEFAULT = Path(default_bot_config.__file__).read_text()
NOTE = """
import json, os
def note(bot, name, *args):
    with open(os.path.join(os.path.dirname(bot.base_dir), "notes"), "a") as file:
        file.write(json.dumps([name, *args]) + "\\n")
"""
EVERY = (
    NOTE
    + """
def get_dimensions(bot):
    note(bot, "get_dimensions", bot.id, bot.dimensions["id"])
    return {**bot.dimensions, "floor": ["3"]}
def get_state(bot):
    note(bot, "get_state")
    return {**bot.state, "mood": "good"}
def get_settings(bot):
    note(bot, "get_settings")
    return {"caches": {"named": {"items": 3}}}
def get_authentication_headers(bot):
    note(bot, "get_authentication_headers")
    return {"X-Proxy-Pass": "let me in"}, 0
def on_bot_startup(bot):
    note(bot, "on_bot_startup", bot.server, bot.bot_version, bot.session_id, bot.swarming_bot_zip, bot.base_dir)
    note(bot, "found", bot.config_dir, bot.attributes["version"], sorted(bot.attributes), bot.get_pseudo_rand(1.0))
def on_handshake(bot): note(bot, "on_handshake", bot.dimensions["floor"])
def on_before_poll(bot): note(bot, "on_before_poll")
def on_after_poll(bot, cmd): note(bot, "on_after_poll", cmd)
def on_bot_idle(bot, since_last_action): note(bot, "on_bot_idle", since_last_action >= 0)
def on_before_task(bot, bot_file, runner_cmd, runner_env):
    note(bot, "on_before_task", runner_cmd)
    with open(bot_file, "w") as file:
        json.dump({"device": 7}, file)
    runner_cmd.append("; echo $FROM_HOOK")
    runner_cmd[-2:] = ["".join(runner_cmd[-2:])]
    runner_env["FROM_HOOK"] = "hello"
def on_after_task(bot, failure, internal_failure, task_dimensions, summary):
    note(bot, "on_after_task", failure, internal_failure, task_dimensions, summary)
def on_bot_shutdown(bot): note(bot, "on_bot_shutdown")
def setup_bot(bot):
    note(bot, "setup_bot")
    return True
"""
)


def hooked(stub: Stub, text: str, **changed: str) -> dict[str, bytes]:
    """The files of a zip with these hooks."""
    return {**zip_files(stub.url, **changed), loader.ZIP_PATH: text.encode()}


def _notes(tmp_path: Path) -> list[list[Any]]:
    path = tmp_path / "notes"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# ---------------------------------------------------------------- layers, in this process


def _hooks(general: str | None = None, script: str = "") -> tuple[Hooks, list[str]]:
    said: list[str] = []
    made = Hooks(said.append)
    made.load_zip_hooks(general)
    made.load_group_script(script, "script.py")
    return made, said


def test_the_default_file_has_all_hooks_and_none_of_them_costs_a_call():
    assert set(loader.load(DEFAULT, "bot_config")) == set(loader.HOOKS)
    assert len(loader.HOOKS) == 13
    made, said = _hooks(DEFAULT, DEFAULT)
    assert (made.functions, said) == ({}, [])


@pytest.mark.parametrize("body", ["return 5", "return 'x'", "return not bot", "bot()", "raise ValueError", "return ()"])
def test_a_hook_that_does_anything_at_all_is_called(body: str):
    for text in (f"def on_handshake(bot): {body}\n", f'def on_handshake(bot):\n    "text"\n    {body}\n'):
        assert _hooks(text)[0].has("on_handshake")


LAYERS = """
import builtins
def {name}(*args):
    args[0].append("{layer}")
    return "{layer}"
"""


@pytest.mark.parametrize("name", loader.HOOKS)
def test_two_layers_are_called_by_the_rule_of_each_hook(name: str):
    both, said = _hooks(LAYERS.format(name=name, layer="general"), LAYERS.format(name=name, layer="injected"))
    only, _ = _hooks(LAYERS.format(name=name, layer="general"))
    calls: list[str] = []
    if name.startswith("get_"):
        assert (both.query(name, calls), only.query(name, calls)) == ("injected", "general")
        assert calls == ["injected", "general"]
    elif name == "setup_bot":
        assert (both.query(name, calls), calls) == ("general", ["general"])
    else:
        both.call(name, calls)
        replaced = name in ("on_before_poll", "on_after_poll")
        assert calls == (["injected"] if replaced else ["general", "injected"])
    assert said == []


def test_an_error_in_one_layer_does_not_keep_the_other_from_being_called():
    both, said = _hooks("def on_handshake(bot): bot.nonsense()", LAYERS.format(name="on_handshake", layer="injected"))
    calls: list[str] = []
    assert not both.call("on_handshake", calls)
    assert calls == ["injected"]
    assert "on_handshake of bot_config.py failed: AttributeError" in said[0]


@pytest.mark.parametrize(
    "body", ["raise SystemExit(3)", "raise KeyboardInterrupt", "import os; os.no_such_thing", "1/0"]
)
def test_whatever_a_hook_raises_is_told_and_no_more(body: str):
    made, said = _hooks(f"def on_bot_idle(bot, s):\n    {body}\n")
    assert not made.call("on_bot_idle", None, 1)
    assert len(said) == 1
    with pytest.raises(HookFailed):
        _hooks(f"def get_state(bot):\n    {body}\n")[0].query("get_state", None)


@pytest.mark.untraced  # an exception that is thrown into a thread can meet the tracer in it
def test_a_hook_that_does_not_come_back_is_left_told_and_skipped_until_it_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loader, "HOOK_TIMEOUT_S", 0.05)
    made, said = _hooks("def on_handshake(bot): bot.wait()\ndef on_bot_idle(bot, s): bot.set()\n")
    gate = threading.Event()
    assert not made.call("on_handshake", gate)
    assert not made.call("on_handshake", gate)
    assert "timed out after 0.05 s" in said[0]
    assert "skipped" in said[1]
    monkeypatch.setattr(loader, "HOOK_TIMEOUT_S", HANG_S)  # those that follow come back, if slowly
    assert made.call("on_bot_idle", gate, 1)  # others are not held up, and this one ends the wait
    for thread in made.hung_threads.values():
        thread.join(HANG_S)
    assert made.call("on_handshake", gate)
    assert len(said) == 2


@pytest.mark.untraced  # an exception that is thrown into a thread can meet the tracer in it
def test_a_hook_that_spins_is_broken_off(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(loader, "HOOK_TIMEOUT_S", 0.05)
    made, _ = _hooks("def on_handshake(bot):\n    while True: pass\n")
    assert not made.call("on_handshake", None)
    (thread,) = made.hung_threads.values()
    thread.join(HANG_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("text", ["def broken(:", "import no_such_module", "raise SystemExit"])
def test_a_file_that_cannot_be_loaded_is_told(text: str):
    made, said = _hooks()
    assert made.load_zip_hooks(text)
    assert made.load_group_script(text, "x.py") is None
    assert len(said) == 2
    assert made.functions == {}


# ---------------------------------------------------------------- what hooks may answer


@pytest.mark.parametrize(
    "value",
    [
        [], "x", 3, {"a": "b"}, {"a": []}, {"a": [1]}, {"a": ["b", "b"]}, {1: ["b"]}, {"a b": ["c"]}, {"a": [" b"]},
        {"a": ["x" * 257]}, {"a": [""]}, {"id": ["other"]}, {"id": ["me", "you"]}, {"a": ["b|c"]}, {"x" * 65: ["a"]},
        {"a": [str(n) for n in range(17)]}, {"a": ("b",)}, {"a": None},
    ],
)  # fmt: skip
def test_dimensions_that_make_no_sense_are_recognised(value: object):
    assert status.dimensions_problem(value, "me")


def test_dimensions_that_make_sense_pass():
    assert status.dimensions_problem({"id": ["me"], "os": ["a", "b"], "quarantined": "broken screen"}, "me") is None


DEEP: Any = {"a": json.loads("[" * 24 + "]" * 24)}


@pytest.mark.parametrize(
    "value", [None, [], "x", {"a": {1, 2}}, {"a": float("nan")}, {"a": object()}, {"a": b"x"}, DEEP]
)
def test_a_state_that_json_cannot_hold_is_recognised(value: object):
    assert status.state_problem(value)


@pytest.mark.parametrize(
    "value",
    [3, "ab", ({},), ({"a\r\nb": "c"}, 0), ({"a": "b\r\nc: d"}, 0), ({"a": "b"}, "later")],
)
def test_headers_that_could_do_harm_are_not_sent(value: object):
    with pytest.raises(ValueError):
        status.parse_headers(value)


def test_headers_are_written_as_lines_with_the_time_to_ask_again():
    assert status.parse_headers(None) == ("", float("inf"))
    assert status.parse_headers(({"X-A": "1", "X-B": "2"}, 123)) == ("X-A: 1\r\nX-B: 2\r\n", 123.0)
    assert status.parse_headers(({}, None)) == status.parse_headers((None, None)) == ("", float("inf"))
    assert status.parse_headers(({"authorization": "x", "Host": "y", "X-A": "1"}, 1)) == ("X-A: 1\r\n", 1.0)


def test_a_bot_on_somebodys_own_machine_minds_neither_a_crowded_temp_nor_a_disk_that_is_nearly_full(monkeypatch):
    usual = settings.defaults()
    monkeypatch.setenv("MYRMIDON_BOT_LOCAL", "1")
    at_home = settings.defaults()
    terabyte = 1 << 40
    assert settings.required_free(terabyte, usual["free_partition"]["bot"]) > 70 << 30
    assert settings.required_free(terabyte, at_home["free_partition"]["bot"]) == 1 << 30
    assert at_home["temp"]["items"] > 1_000_000
    assert at_home["caches"] == usual["caches"]


def test_settings_are_laid_over_the_defaults_and_nonsense_is_told():
    problems: list[str] = []
    given = {
        "caches": {"named": {"items": 7, "age_s": "old"}}, "free_partition": 5, "cost_usd_hour": 0.5,
        "temp": {"items": -1, "item": 1}, "unknown": 1,
    }  # fmt: skip
    found = settings.merge(settings.DEFAULTS, given, problems)
    assert found["caches"]["named"] == {**settings.DEFAULTS["caches"]["named"], "items": 7}
    assert (found["free_partition"], found["cost_usd_hour"]) == (settings.DEFAULTS["free_partition"], 0.5)
    assert len(problems) == 4
    assert settings.merge(settings.DEFAULTS, [], problems) == settings.DEFAULTS


@pytest.mark.parametrize(
    ("total", "required"),
    [(20 << 30, 3 << 30), (40 << 30, 4 << 30), (1000 << 30, 70 << 30), (1 << 20, int((1 << 20) * 0.15))],
)
def test_so_much_of_a_disk_must_be_free(total: int, required: int):
    assert settings.required_free(total, settings.DEFAULTS["free_partition"]["bot"]) == required


def test_a_bot_has_a_number_of_its_own_and_knows_what_an_event_is():
    class Told:
        bot_id, server, folder = "b1", "http://s", "/b"

    said: list[tuple[str, str]] = []
    bot = Bot(Told(), session=1, version="v", request_action=lambda *_: True, post_event=lambda *a: said.append(a))  # type: ignore[arg-type]
    assert bot.get_pseudo_rand(4.0) == bot.get_pseudo_rand(4.0)
    assert -4.0 <= bot.get_pseudo_rand(4.0) <= 4.0
    bot.update_snapshot({"a": ["b"]}, {"c": {}})
    bot.dimensions["a"].append("changed")
    bot.state["c"]["d"] = 1
    assert bot.attributes == {"dimensions": {"a": ["b"]}, "state": {"c": {}}, "version": "v"}
    bot.post_event("bot_log", "hello")
    bot.post_error("oh")
    assert said == [("bot_log", "hello"), ("bot_error", "oh")]
    with pytest.raises(ValueError, match="one of"):
        bot.post_event("task_completed", "x")


# ---------------------------------------------------------------- in real bots


def test_all_thirteen_hooks_are_called_with_what_they_are_promised(stub: Stub, interpreter: str, tmp_path: Path):
    stub.poll_s = 0.2
    stub.gives = {"config": "v7"}
    env = {"MYRMIDON_BOT_CONFIG_DIR": "/etc/fleet"}
    with a_bot(stub.url, tmp_path / "b1", files=hooked(stub, EVERY), python=interpreter, env=env) as bot:
        run = stub.submit("/bin/sh", "-c", "cat ${SWARMING_BOT_FILE}")
        result = stub.result(run)
        wait_for(lambda: [note for note in _notes(tmp_path) if note[0] == "on_bot_idle"], "an idle bot")
        wait_for(lambda: ["on_after_poll", "sleep"] in _notes(tmp_path), "a poll that brings nothing")
        assert bot.end() == 0
    names = [note[0] for note in _notes(tmp_path)]
    assert set(names) == {*loader.HOOKS, "found"}
    order = [
        "setup_bot",
        "get_settings",
        "on_bot_startup",
        "get_dimensions",
        "get_state",
        "on_handshake",
        "on_before_poll",
    ]
    assert sorted(order, key=names.index) == order
    assert names[-1] == "on_bot_shutdown"
    assert (result["exit_code"], stub.log(run)) == (0, b'{"device": 7}hello\n')
    told = {note[0]: note[1:] for note in _notes(tmp_path)}
    assert told["get_dimensions"] == ["b1", ["b1"]]
    url, version, session, zipped, base_dir = told["on_bot_startup"]
    assert (url, version, session) == (stub.url, stub.hellos[0]["version"], str(stub.hellos[0]["session"]))
    assert (base_dir, zipped) == (str(tmp_path / "b1"), str(tmp_path / "b1" / "bot.zip"))
    assert told["found"][:3] == ["/etc/fleet", version, ["dimensions", "state", "version"]]
    assert told["on_handshake"] == [["3"]]
    failure, internal, _, summary = told["on_after_task"]
    assert (failure, internal, summary["exit_code"], summary["task_id"]) == (False, False, 0, run)
    assert {note[1] for note in _notes(tmp_path) if note[0] == "on_after_poll"} == {"run", "sleep"}
    hello = stub.hellos[0]
    assert (hello["dimensions"]["floor"], hello["state"]["mood"]) == (["3"], "good")
    assert all(seen["X-Proxy-Pass"] == "let me in" for seen in stub.headers)
    assert {body["config"] for _, path, body in stub.calls if path.endswith("exchange")} == {"v7"}
    assert stub.says("bot_error") == []


def test_hooks_that_import_what_swarming_has_are_at_home(stub: Stub, tmp_path: Path):
    text = """
from api import os_utilities, platforms
def get_dimensions(bot): return {**os_utilities.get_dimensions(), "gce": [str(platforms.is_gce())]}
def get_state(bot): return {**os_utilities.get_state(), "up": os_utilities.get_uptime(),
    "d": os_utilities.get_disks_info(),
    "all": [os_utilities.get_hostname_short(), os_utilities.get_num_processors(), os_utilities.get_physical_ram()]}
"""
    with a_bot(stub.url, tmp_path / "b1", files=hooked(stub, text)) as bot:
        stub.until(lambda: stub.hellos, "a handshake")
        zipped = str(bot.folder / "bot.zip")
        assert subprocess.run([sys.executable, "-I", zipped, "self-test"], check=False).returncode == 0
    hello = stub.hellos[0]
    assert (hello["dimensions"]["gce"], hello["dimensions"]["id"]) == (["False"], ["b1"])
    assert hello["state"]["up"] > 0
    assert hello["state"]["d"]["/"]["size_mb"] > 1
    assert "quarantined" not in hello


RAISES = "".join(f"def {name}(*args): raise RuntimeError('{name} is broken')\n" for name in loader.HOOKS)
HANGS = "import time\n" + "".join(f"def {name}(*args):\n    while True: time.sleep(0.01)\n" for name in loader.HOOKS)
RUBBISH = "".join(f"def {name}(*args): return object()\n" for name in loader.HOOKS if name != "on_before_task") + (
    "def on_before_task(bot, bot_file, runner_cmd, runner_env):\n"
    "    runner_cmd[:] = [7]\n    runner_env[1] = None\n    open(bot_file, 'w').write('{rubbish')\n"
)


def _blamed(stub: Stub, said: str) -> list[str]:
    """The hooks of which the server has heard this."""
    return [name for name in loader.HOOKS if [m for m in stub.says("bot_error") if said.format(name) in m]]


def test_hooks_that_raise_cost_no_task_and_are_told_once(stub: Stub, tmp_path: Path):
    stub.poll_s = 0.1
    names = [name for name in loader.HOOKS if name != "on_bot_shutdown"]
    with a_bot(stub.url, tmp_path / "b1", files=hooked(stub, RAISES), env={"MYRMIDON_BOT_REFRESH_S": "0.1"}) as bot:
        runs = [stub.submit("/bin/true") for _ in range(5)]
        assert {stub.result(run)["exit_code"] for run in runs} == {0}
        stub.until(lambda: _blamed(stub, "{} is broken") == names, "a complaint of each")
        polls = len(stub.calls)
        stub.until(lambda: len(stub.calls) > polls + 6, "some more polls")
        stub.until(lambda: "get_dimensions is broken" in (stub.hellos[-1].get("quarantined") or ""), "quarantine")
        assert "get_state is broken" in stub.hellos[-1]["quarantined"]
        assert bot.end() == 0
    for name in loader.HOOKS:
        assert len([m for m in stub.says("bot_error") if f"{name} is broken" in m]) == 1, name


def test_hooks_that_hang_cost_no_task_and_are_told(stub: Stub, tmp_path: Path):
    stub.poll_s = 0.1
    env = {"MYRMIDON_BOT_HOOK_S": "0.05"}
    late = "hook {} of bot_config.py timed out"
    with a_bot(stub.url, tmp_path / "b1", files=hooked(stub, HANGS), env=env) as bot:
        runs = [stub.submit("/bin/true") for _ in range(3)]
        assert {stub.result(run)["exit_code"] for run in runs} == {0}
        stub.until(lambda: len(_blamed(stub, late)) == 12, "a complaint of each but the last")
        stub.until(lambda: "get_state" in (stub.hellos[-1].get("quarantined") or ""), "quarantine")
        assert "get_dimensions" in stub.hellos[-1]["quarantined"]
        assert bot.end() == 0
    assert _blamed(stub, late) == list(loader.HOOKS)


def test_hooks_that_return_rubbish_cost_no_task_and_are_told(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1", files=hooked(stub, RUBBISH)) as bot:
        run = stub.submit("/bin/sh", "-c", "echo as sent")
        assert (stub.result(run)["exit_code"], stub.log(run)) == (0, b"as sent\n")
        answered = ["get_dimensions", "get_state", "get_settings", "get_authentication_headers", "on_before_task"]
        stub.until(lambda: _blamed(stub, "{}") == answered, "a complaint of each whose answer counts")
        assert {"get_dimensions", "get_state"} <= set(stub.hellos[0]["quarantined"].split())
        assert stub.hellos[0]["dimensions"]["id"] == ["b1"]
        assert bot.end() == 0


@pytest.mark.parametrize("name", ["get_dimensions", "get_state"])
@pytest.mark.parametrize("rubbish", ["42", "[1, 2]", "'text'", "{'a': {1}}"])
def test_rubbish_quarantines_until_it_is_none_any_more(tmp_path: Path, name: str, rubbish: str):
    made = a_standing(tmp_path)
    text = f"good = []\ndef {name}(bot): return None if good else {rubbish}\n"
    made.hooks.load_zip_hooks(text)
    made.refresh()
    assert made.quarantine_reason is not None
    assert name in made.quarantine_reason
    assert (
        made.handshake_fields()["quarantined"]
        == made.handshake_fields()["state"]["quarantined"]
        == made.quarantine_reason
    )
    made.hooks.zip_hooks[name].__globals__["good"].append(1)
    made.refresh()
    assert made.quarantine_reason is None


def a_standing(tmp_path: Path, said: list[tuple[str, str]] | None = None) -> status.BotStatus:
    from myrmidon.bot.install.startup_config import StartupConfig, prepare
    from myrmidon.bot.machine.named_caches import NamedCaches

    folder = prepare(["--dir", str(tmp_path / "b"), "--server", "http://s", "--bot-id", "b1"])
    told: list[tuple[str, str]] = [] if said is None else said
    return status.BotStatus(
        StartupConfig(folder), NamedCaches(str(tmp_path / "b" / "c")), session=1, version="v",
        post_event=lambda kind, text: told.append((kind, text)), wake=lambda: None,
    )  # fmt: skip


def test_a_hook_may_put_its_bot_into_quarantine_or_maintenance(tmp_path: Path):
    made = a_standing(tmp_path)
    made.hooks.load_zip_hooks("def get_dimensions(bot): return {**bot.dimensions, 'quarantined': 'no screen'}")
    made.refresh()
    assert made.health_reasons() == ("no screen", None)
    assert "quarantined" not in made.dimensions
    made.hooks.load_zip_hooks(
        "def get_state(bot): return {**bot.state, 'maintenance': 'new disk', 'quarantined': True}"
    )
    made.refresh()
    assert made.health_reasons() == ("set by a hook without a reason", "new disk")
    assert made.handshake_fields()["maintenance"] == "new disk"


def test_only_what_lasts_is_news_and_only_once(tmp_path: Path):
    made = a_standing(tmp_path)
    made.refresh()
    made.handshake_fields()
    made.config = "v1"
    assert made.changes() == {}
    made.refresh()
    assert made.changes() == {}
    made.hooks.load_zip_hooks("def get_state(bot): return {**bot.state, 'mood': 'new'}")
    made.refresh()
    assert set(made.changes()) == {"state"}
    made.quarantine_reasons["disk"] = "full"
    made.hooks.load_zip_hooks("def get_state(bot): return {**bot.state, 'mood': 'newer', 'maintenance': 'oil'}")
    made.refresh()
    said = made.changes()["state"]
    assert (said["mood"], said["quarantined"], said["maintenance"]) == ("newer", "full", "oil")
    made.reported_at -= status.REPORT_INTERVAL_S + 1
    assert made.changes() == {}  # nobody has looked since
    made.refresh()
    assert set(made.changes()) == {"state"}
    made.forced = {"pool": ["other"]}
    made.refresh()
    assert made.changes()["dimensions"]["pool"] == ["other"]
    assert made.changes() == {}


def test_the_names_of_caches_are_dimensions_and_their_sizes_are_shown(tmp_path: Path):
    made = a_standing(tmp_path)
    made.refresh()
    made.caches.install("team", "ccache", str(tmp_path / "x"))
    (tmp_path / "x" / "file").write_text("1234")
    made.caches.put_back("team", "ccache", str(tmp_path / "x"))
    made.check(made.refreshed_at)
    assert (made.dimensions["caches"], made.state["named_caches"]) == (["ccache"], {"ccache": 4})


def test_the_time_of_a_hook_is_not_the_time_of_the_command(stub: Stub, tmp_path: Path):
    text = NOTE + (
        "import time\ndef on_before_task(bot, *args):\n    time.sleep(1.2)\n    note(bot, 'before', time.monotonic())\n"
    )
    with a_bot(stub.url, tmp_path / "b1", files=hooked(stub, text)):
        result = stub.run("/bin/sleep", "0.05")
        (_, hook_ended), ended = _notes(tmp_path)[0], time.monotonic()
        assert 0.04 < result["duration"] < ended - hook_ended, "the command ran between the two"
        assert result["stats"]["bot_overhead"] > 1.0


@pytest.mark.full
def test_an_event_waits_for_a_server_that_is_away(stub: Stub, tmp_path: Path):
    stub.fault("/bot/v1/event", "refused", "refused")
    text = "def on_bot_startup(bot): bot.post_event('bot_log', 'hello')\n"
    with a_bot(stub.url, tmp_path / "b1", files=hooked(stub, text)):
        assert stub.run("/bin/true")["exit_code"] == 0
        stub.until(lambda: stub.says("bot_log") == ["hello"], "the event")


def test_a_script_of_the_group_comes_with_the_handshake_and_wins(stub: Stub, tmp_path: Path):
    stub.poll_s = 0.2
    script = NOTE + (
        "def get_dimensions(bot): return {**bot.dimensions, 'floor': ['9']}\n"
        "def on_before_poll(bot): note(bot, 'injected poll')\n"
        "def on_handshake(bot): note(bot, 'injected handshake')\n"
    )
    stub.gives = {
        "config": "v1", "script": script, "script_name": "lab.py",
        "dimensions": {"pool": ["lab"], "rack": ["r1", "r2"]}, "settings": {"cost_usd_hour": 36000.0},
    }  # fmt: skip
    news = lambda: [body for _, path, body in stub.calls if path.endswith("exchange") and "dimensions" in body]  # noqa: E731
    with a_bot(stub.url, tmp_path / "b1", files=hooked(stub, EVERY)):
        result = stub.run("/bin/sh", "-c", "sleep 0.05")
        wait_for(lambda: [note for note in _notes(tmp_path) if note[0] == "on_bot_idle"], "an idle bot")
        stub.until(news, "the news of the group")
    names = [note[0] for note in _notes(tmp_path)]
    assert names.index("on_handshake") < names.index("injected handshake")
    assert "injected poll" in names
    assert "on_before_poll" not in names
    assert "get_state" in names
    expected = {"floor": ["9"], "pool": ["lab"], "rack": ["r1", "r2"]}
    assert {key: news()[0]["dimensions"][key] for key in expected} == expected
    assert result["cost_usd"] == pytest.approx(result["duration"] * 10, rel=0.01)


def test_a_script_that_cannot_be_loaded_quarantines_its_bot(stub: Stub, tmp_path: Path):
    stub.gives = {"config": "v1", "script": "def broken(:", "script_name": "lab.py"}
    with a_bot(stub.url, tmp_path / "b1"):
        stub.until(
            lambda: "lab.py" in (stub.hellos[-1].get("quarantined") or "") if stub.hellos else False, "quarantine"
        )
        stub.until(lambda: [m for m in stub.says("bot_error") if "SyntaxError" in m], "the reason")


def test_hooks_that_cannot_be_loaded_quarantine_their_bot_and_it_still_works(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1", files=hooked(stub, "import no_such_module")):
        assert stub.run("/bin/true")["exit_code"] == 0
        assert "no_such_module" in stub.hellos[0]["quarantined"]


# ---------------------------------------------------------------- reboots and restarts


REBOOT = """
def on_after_task(bot, failure, internal_failure, task_dimensions, summary):
    bot.post_event("bot_log", "asked: %s" % bot.host_reboot("the task wants it"))
"""


def _host(tmp_path: Path, **more: str) -> dict[str, str]:
    rebooted = tmp_path / "rebooted"
    return {"MYRMIDON_BOT_HOST_DIR": str(tmp_path / "host"), "MYRMIDON_BOT_REBOOT": f"touch {rebooted}", **more}


def test_a_machine_is_rebooted_when_a_hook_asks_for_it_and_nothing_runs(stub: Stub, tmp_path: Path):
    with a_bot(stub.url, tmp_path / "b1", files=hooked(stub, REBOOT), env=_host(tmp_path)) as bot:
        assert stub.run("/bin/true")["exit_code"] == 0
        wait_for((tmp_path / "rebooted").exists, "a reboot")
        stub.until(lambda: stub.says("bot_rebooting"), "the event")
        assert stub.says("bot_rebooting") == ["the task wants it"]
        assert bot.end() == 0  # what the system does next
    assert stub.says("bot_shutdown") == []
    assert stub.says("bot_log") == ["asked: True"]


def test_a_reboot_that_does_not_happen_is_tried_again_and_then_quarantines(stub: Stub, tmp_path: Path):
    env = _host(tmp_path, MYRMIDON_BOT_REBOOT_S="0.05", MYRMIDON_BOT_REBOOT=f"sh -c 'echo x >> {tmp_path}/rebooted'")
    with a_bot(stub.url, tmp_path / "b1", files=hooked(stub, REBOOT), env=env):
        assert stub.run("/bin/true")["exit_code"] == 0
        stub.until(lambda: "when requested: the task" in (stub.hellos[-1].get("quarantined") or ""), "quarantine")
    assert (tmp_path / "rebooted").read_text() == "x\n" * 3


def test_a_machine_with_another_bot_is_not_rebooted(stub: Stub, tmp_path: Path):
    env = _host(tmp_path)
    with a_bot(stub.url, tmp_path / "b2", env=env):
        stub.until(lambda: stub.hellos, "the neighbour")
        stub.down = False
        with a_bot(stub.url, tmp_path / "b1", files=hooked(stub, REBOOT), env=env):
            stub.until(lambda: len(stub.hellos) == 2, "the bot")
            wait_for(
                lambda: stub.run("/bin/true") and [m for m in stub.says("bot_error") if "not rebooted" in m],
                "the bot with the hook to get a task",
            )
            assert str(tmp_path / "b2") in stub.says("bot_error")[0]
    assert not (tmp_path / "rebooted").exists()


def test_a_bot_restarts_when_a_hook_asks_for_it(stub: Stub, tmp_path: Path):
    text = "import os\ndef on_after_task(bot, *args): bot.bot_restart('enough')\n"
    with a_bot(stub.url, tmp_path / "b1", files=hooked(stub, text)):
        assert stub.run("/bin/true")["exit_code"] == 0
        stub.until(lambda: len(stub.hellos) == 2, "the return")
        assert stub.says("bot_shutdown") == ["restarting: enough"]
        assert stub.run("/bin/true")["exit_code"] == 0


def test_setup_may_ask_for_a_reboot_and_is_skipped_when_somebody_else_does_it(stub: Stub, tmp_path: Path):
    text = "def setup_bot(bot): return False\n"
    with a_bot(stub.url, tmp_path / "b1", files=hooked(stub, text), env=_host(tmp_path)):
        wait_for((tmp_path / "rebooted").exists, "a reboot")
    (tmp_path / "rebooted").unlink()
    env = _host(tmp_path, SWARMING_EXTERNAL_BOT_SETUP="1")
    with a_bot(stub.url, tmp_path / "b2", files=hooked(stub, text), env=env):
        assert stub.run("/bin/true")["exit_code"] == 0
    assert not os.path.exists(tmp_path / "rebooted")
