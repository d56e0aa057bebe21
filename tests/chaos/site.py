"""The system that a storm is about: a database, servers on it, bots, and a proxy before each bot and each client.

Everything is real and of this storm alone: a durable database server on a free port, server and bot processes that run
a copy of the sources, and a small disk for the files of the servers and another one for those of the first bot. The
copy has wall clocks that can be set (``server_clock``, ``bot_clock``), and a bug if one is to be planted.

Processes are started from the main thread only: the kernel ends them when the thread that started them ends.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests import servers
from tests.bot.bots import BotProcess, a_bot, alive, wait_for
from tests.bot.test_chaos import IMPATIENT
from tests.chaos.proxy import Chaos, chaos
from tests.live import LiveServer, live_server, replace_once
from tests.planted.bugs import Bug
from tests.wrong_clock import WrongClock

POOL = "default"
"""The pool of all bots and tasks: the one that the SDK uses."""
SETTINGS: dict[str, Any] = {
    "sweep_s": 0.5,
    "shortest_lease_s": 1,
    "heartbeat_s": 0.5,
    "poll_s": 2.0,
    "start_within_s": 15,
    "dead_after_s": 60,
    "webhooks": {"allowed_networks": ["127.0.0.0/8"], "max_backlog": 1_000_000},
}
"""Times are short, so that a storm of two minutes has many of them. The lease of a task is LEASE_S."""
LEASE_S = 8
FEW_FAULTS = 0.02
MIB = 1 << 20
STARTS = 3
"""How often a server is started again that ends while it starts."""


class Site:
    """Made by ``a_site``. ``counts`` has what ended by itself and was started again."""

    def __init__(self, stack: ExitStack, kind: str, folder: Path, *, num_servers: int, num_bots: int, disk_mb: int):
        self.kind = kind
        self.folder = folder
        self.notes = folder / "notes"
        """The folder that commands and functions write to."""
        self.notes.mkdir()
        self.stack = stack
        self.counts: Counter[str] = Counter()
        self.small_disks = [
            disk
            for name, size in (("disk", disk_mb), ("bots/bot1", 64))
            if (disk := stack.enter_context(_a_small_disk(folder / name, size)))
        ]
        self.disk = folder / "disk"
        self.bot_clock = WrongClock(folder / "clock")
        self.source = self.bot_clock.bot_source()
        self.server_clock = WrongClock(self.source)
        self.broker = servers.rabbitmq() if servers.why_no_rabbitmq() is None else None
        if self.broker is not None:
            stack.callback(self.broker.stop)
        self.database: servers.Server | None = None
        if kind != "sqlite":
            self.database = servers.KINDS[kind](durable=True)
            stack.callback(self.database.stop)
            self.database.prepare()
            self.database.start()
        self.url = self.database.new_database() if self.database else f"sqlite:///{self.disk}/server1/myrmidon.db"
        self._num_servers = num_servers if self.database else 1
        self._num_bots = num_bots
        self.servers: list[LiveServer] = []
        self.down: set[LiveServer] = set()
        """Servers that a fault has ended and will start again."""
        self.ways: list[Chaos] = []
        self.bots: list[BotProcess] = []
        self._bot_stacks: list[ExitStack] = []

    def start(self, bug: Bug | None) -> None:
        """Start the servers and the bots; with the bug, if there is one."""
        for name, old, new in IMPATIENT:
            self._change(name, old, new)
        if bug is not None:
            self._change(bug.file, bug.old, bug.new)
        amqp = {"amqp": {"url": self.broker.url}} if self.broker else {}
        for number in range(1, self._num_servers + 1):
            folder = self.disk / f"server{number}"
            folder.mkdir()
            if self.servers:
                (folder / "admin.token").write_text(self.servers[0].token)
            server = self.stack.enter_context(
                live_server(
                    self.url,
                    folder=folder,
                    source=self.source,
                    durable=True,
                    files={"folder": str(self.disk / "files")},
                    **SETTINGS,
                    **amqp,
                )
            )
            self.servers.append(server)
        for number in range(1, self._num_bots + 1):
            self._bot_stacks.append(self.stack.enter_context(ExitStack()))
            self._introduce(self.folder / "bots" / f"bot{number}")

    def _change(self, name: str, old: str, new: str) -> None:
        file = self.source / "myrmidon" / name
        file.write_text(replace_once(file.read_text(), old, new))

    # -- ways to the servers ------------------------------------------------------------------------------------

    def new_way(self) -> Chaos:
        """A proxy to a server that lives, and to another one when that is killed, as a balancer would be."""
        number = len(self.ways)
        way = self.stack.enter_context(
            chaos(self.servers[number % len(self.servers)].url, seed=number, rate=FEW_FAULTS)
        )
        self.ways.append(way)
        return way

    def route(self) -> None:
        """Send everybody to the servers that live; to their own, if all are down."""
        up = [server for server in self.servers if server not in self.down] or self.servers
        for number, way in enumerate(self.ways):
            way.turn_to(up[number % len(up)].url)

    # -- bots ---------------------------------------------------------------------------------------------------

    def _introduce(self, folder: Path) -> None:
        token = self.servers[0].new_token("bot-bootstrap")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bot.zip").write_bytes(self.servers[0].call("GET", "/bot/v1/zip", token=token).data)
        (folder / "token").write_text(token)
        self.bots.append(self._start_bot(len(self.bots), folder, self.new_way().url))
        wait_for(lambda: self.servers[0].get(f"/api/v1/bots/{folder.name}")[0] == 200, f"{folder.name}'s handshake")

    def _start_bot(self, number: int, folder: Path, url: str = "") -> BotProcess:
        flags = ("--pool", POOL, "--slots", "2", *(("--server", url) if url else ()))
        return self._bot_stacks[number].enter_context(a_bot(self.servers[0].url, folder, *flags, token=""))

    def kill_bot(self, number: int, *, supervisor: bool, worker: bool) -> None:
        """SIGKILL; ``tend`` starts what does not come back by itself."""
        bot = self.bots[number]
        pid = worker_of(bot) if worker else 0
        if supervisor:
            bot.kill()
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start_server(self, server: LiveServer) -> None:
        """Start a server, and again if it ends while it starts, as a service manager does, but not for ever."""
        for _ in range(STARTS):
            try:
                server.start()
            except AssertionError as error:
                self.counts["servers that ended while they started"] += 1
                print(error, file=sys.stderr)
            else:
                return
        server.start()

    def tend(self) -> None:
        """What the service manager of a machine does: start again what has ended."""
        for server in self.servers:
            assert server.process is not None
            if server not in self.down and server.process.poll() is not None:
                self.counts["servers that ended by themselves"] += 1
                self.start_server(server)
        for number, bot in enumerate(self.bots):
            if bot.process.poll() is not None and not alive(worker_of(bot) or 0):
                self._bot_stacks[number].close()
                (bot.folder / "bot.pid").unlink(missing_ok=True)
                self.bots[number] = self._start_bot(number, bot.folder)

    def release_bots(self) -> None:
        """What an administrator does with a bot on which many runs have failed, once the reason is gone."""
        for bot in self.bots:
            status, told = self.servers[0].get(f"/api/v1/bots/{bot.folder.name}")
            if status == 200 and told["quarantined"]:
                self.counts["bots released from quarantine"] += 1
                self.servers[0].post(f"/api/v1/bots/{bot.folder.name}/quarantine", {"reason": None})


def worker_of(bot: BotProcess) -> int | None:
    """The process of a bot that does the work; None while there is none."""
    with contextlib.suppress(OSError, ValueError):
        return int((bot.folder / "bot.pid").read_text())
    return None


@contextmanager
def _a_small_disk(folder: Path, size_mb: int) -> Iterator[Path | None]:
    """A file system of its own at a folder; None, and a usual folder, where nothing may be mounted."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=755", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def a_site(kind: str, *, num_servers: int, num_bots: int, disk_mb: int, bug: Bug | None) -> Iterator[Site]:
    """A running site, removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="myrmidon-chaos-"))
    folder.chmod(0o755)
    try:
        with ExitStack() as stack:
            site = Site(stack, kind, folder, num_servers=num_servers, num_bots=num_bots, disk_mb=disk_mb)
            site.start(bug)
            yield site
    finally:
        shutil.rmtree(folder, ignore_errors=True)
