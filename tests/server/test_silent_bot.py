"""A bot that falls silent with a run: what the API and the command line tell until the run is given up."""

from __future__ import annotations

from tests.cli.terminal import Terminal
from tests.live import a_source, live_server
from tests.server.contexts import a_task
from tests.server.wire import WireBot, wait_for

SILENT_AFTER_1_S = ("scheduler/policy.py", "min(120 * SECOND, self.dead_after // 2)", "SECOND")


def status_of(server, bot_id):
    return server.get(f"/api/v1/bots/{bot_id}")[1]["status"]


def ids_of(server, state):
    return [bot["bot_id"] for bot in server.get(f"/api/v1/bots?state={state}")[1]["bots"]]


def test_a_silent_bot_is_shown_as_such_until_its_goodbye_ends_its_run(tmp_path):
    with live_server(source=a_source(tmp_path / "source", SILENT_AFTER_1_S), sweep_s=0.05) as server:
        bot = WireBot(server, "b1")
        bot.shake()
        _, reply = server.post("/api/v1/tasks", {"tasks": [a_task(lease_s=3600)]})
        task_id = reply["tasks"][0]["task_id"]
        [run] = bot.work()
        bot.start(run)
        wait_for(lambda: status_of(server, "b1") == "silent")
        wait_for(lambda: ids_of(server, "silent") == ["b1"])
        assert (ids_of(server, "dead"), ids_of(server, "alive")) == ([], ["b1"])
        [shown] = server.get(f"/api/v1/tasks/{task_id}")[1]["runs"]
        assert shown["given_up_at"] == shown["silent_since"] + 3600 * 1_000_000
        told = server.get(f"/api/v1/tasks/{task_id}/why")[1]
        assert (told["silent_since"], told["given_up_at"]) == (shown["silent_since"], shown["given_up_at"])
        shell = Terminal(tmp_path / "home", MYRMIDON_SERVER=server.url, MYRMIDON_TOKEN=server.token)
        assert "silent" in shell.ok("bots", "--state", "silent")
        assert "the run is given up in" in shell.ok("task", "why", task_id)
        assert "its run is given up at" in shell.ok("task", "show", task_id)
        status, _ = bot.call("/bot/v1/event", {"session": bot.session, "kind": "bot_shutdown", "ended": True})
        assert (status, status_of(server, "b1")) == (200, "dead")
        after = server.get(f"/api/v1/tasks/{task_id}")[1]
        assert (after["result"]["state"], after["runs"][0]["reason"]) == ("READY", "bot_stopped")
        assert after["runs"][0]["silent_since"] is None


def test_a_reboot_ends_the_runs_of_a_bot_at_once(tmp_path):
    with live_server(folder=tmp_path) as server:
        bot = WireBot(server, "b1")
        bot.shake()
        _, reply = server.post("/api/v1/tasks", {"tasks": [a_task(retries=0)]})
        [run] = bot.work()
        bot.start(run)
        bot.call("/bot/v1/event", {"session": bot.session, "kind": "bot_rebooting", "message": "by hand"})
        result = server.get(f"/api/v1/tasks/{reply['tasks'][0]['task_id']}")[1]["result"]
        assert (result["state"], result["reason"]) == ("BOT_DIED", "bot_rebooting")


def test_the_lease_of_a_task_that_requests_none_ends_before_its_bot_counts_as_dead(tmp_path):
    with live_server(folder=tmp_path, dead_after_s=31) as server:
        tasks = [a_task(), a_task(lease_s=600)]
        _, reply = server.post("/api/v1/tasks", {"tasks": tasks})
        leases = [server.get(f"/api/v1/tasks/{one['task_id']}")[1]["request"]["lease_s"] for one in reply["tasks"]]
        assert leases == [31, 600]
