"""Two servers on one database, with one folder of files, a bot and a client on each: any of them may be killed.

Bots and clients reach their server through a proxy, as through a balancer that can send them to the other one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from myrmidon.sdk.new_job import NewJob
from tests.bot.bots import BotProcess, wait_for
from tests.chaos.proxy import chaos
from tests.functions.live import a_client, function_bot
from tests.graphs.live import checked
from tests.server.test_two_servers import a_pair

QUICK: dict[str, Any] = {"sweep_s": 0.2, "poll_s": 1.0, "heartbeat_s": 0.3}


class Site:
    """Made by ``a_site``. ``clients`` and ``bots`` are in the order of ``servers``."""

    def __init__(self, stack: ExitStack, database: str, folder: Path) -> None:
        self.folder = folder
        self.stack = stack
        self.servers = a_pair(stack, database, folder, files={"folder": str(folder / "files")}, **QUICK)
        self.ways = [stack.enter_context(chaos(server.url, rate=0.0)) for server in self.servers]
        self.clients = [
            stack.enter_context(a_client(server, way.url)) for server, way in zip(self.servers, self.ways, strict=True)
        ]
        self.bots: list[BotProcess] = []
        self._killed: set[int] = set()
        self._bots = [ExitStack(), ExitStack()]
        for number in (0, 1):
            stack.callback(self._bots[number].close)
            self.bots.append(self._start_bot(number))

    def _start_bot(self, number: int) -> BotProcess:
        server, way = self.servers[number], self.ways[number]
        folder = self.folder / "bots" / f"bot{number}"
        return self._bots[number].enter_context(function_bot(server, folder, "--server", way.url))

    def kill_bot(self, number: int) -> None:
        """Kill the bot, its supervisor first, and all that it runs."""
        worker = self.bots[number].worker()
        self.bots[number].kill()
        os.kill(worker, signal.SIGKILL)
        self._bots[number].close()
        (self.folder / "bots" / f"bot{number}" / "bot.pid").unlink(missing_ok=True)

    def start_bot(self, number: int) -> None:
        self.bots[number] = self._start_bot(number)

    def kill_server(self, number: int) -> None:
        """Kill a server; its bot and its client are sent to the other one."""
        self.servers[number].kill()
        self._killed.add(number)
        self.ways[number].turn_to(self.servers[1 - number].url)

    def start_servers(self) -> None:
        """Start those that were killed."""
        for number in sorted(self._killed):
            self.servers[number].start()
            self.ways[number].turn_to(self.servers[number].url)
        self._killed.clear()

    def new_job(self, name: str, *, through: int = 0, max_num_retries: int = 0, fail_fast: bool = True) -> NewJob:
        """A job whose failed part runs again so many times."""
        job = self.clients[through].new_job(name, fail_fast=fail_fast)
        job._fields["max_num_retries"] = max_num_retries
        return job

    def runs(self, job_id: str) -> dict[str, list[Any]]:
        """The runs of each task of a job, without those that a bot has given back before they began."""
        found: dict[str, list[Any]] = {}
        cursor = ""
        while True:
            status, page = self.servers[0].get(f"/api/v1/jobs/{job_id}/tasks?limit=1000{cursor}")
            assert status == 200, page
            for task in page["tasks"]:
                told = self.servers[0].get(f"/api/v1/tasks/{task['task_id']}")[1]
                found[task["label"]] = [run for run in told["runs"] if run["reason"] != "given_back"]
            if page["cursor"] is None:
                return found
            cursor = f"&cursor={page['cursor']}"

    def check(self) -> None:
        """All invariants hold; nothing may be running."""
        checked(self.servers[0])


@contextmanager
def a_site(database: str, folder: Path) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, database, folder)


def executors_of(bot: BotProcess) -> list[int]:
    """The processes of a bot that run functions."""
    worker = str(bot.worker())
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if parent == worker and b"--control-in" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def processes_behind(gate: Path, count: int) -> list[int]:
    """The processes that wait for a file, once there are so many (fault_tasks.gate)."""
    names = f"{gate.name}.*"
    wait_for(
        lambda: sum(path.suffix != ".new" for path in gate.parent.glob(names)) >= count,
        f"{count} processes at the gate",
    )
    return [int(path.read_text()) for path in sorted(gate.parent.glob(names))]
