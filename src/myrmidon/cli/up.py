"""`up`: a server and a few bots on this machine, on an embedded database, until Ctrl-C.

Everything is a child process, the same that runs on a fleet: `myrmidon server`, and bots from the zip that this server
gives out. Stopping goes the other way round, bots first, so that they can still report.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import click

from myrmidon.cli import child_processes, exit_codes, output, server_discovery
from myrmidon.cli.bots import bot_command, bot_environment
from myrmidon.cli.context import CliContext, json_option
from myrmidon.sdk.errors import CallFailed, NotAllowed

_STARTS_S: Final = 30.0
_BOTS_COME_S: Final = 30.0
_BOT_FINISHES_S: Final = 2.0
"""A bot that is told to stop first ends its task; told again, it stops that too."""
_BOT_STOPS_S: Final = 15.0
_SERVER_STOPS_S: Final = 12.0
_LOOK_S: Final = 0.2
_AGAIN_S: Final = 5.0
_LISTENS: Final = re.compile(rb"listens on (\S+)\n")


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--bots", "-n", "count", type=click.IntRange(0, 256), default=2, show_default=True, help="How many bots.")
@click.option(
    "--data-dir", type=click.Path(), metavar="DIR", help="Where everything lies. Default: ~/.local/share/myrmidon."
)
@click.option("--port", type=click.IntRange(0, 65_535), help="The server's port; 0 takes any free one. Default: 8910.")
@click.option("--host", metavar="ADDRESS", help="The address to listen on. Default: 127.0.0.1.")
@click.option("--public-url", metavar="URL", help="How other machines reach the server.")
@click.option("--tls-certificate", type=click.Path(), metavar="FILE", help="Certificate chain for HTTPS.")
@click.option("--tls-key", type=click.Path(), metavar="FILE", help="The certificate's key.")
@click.option("--plain-http", is_flag=True, help="Allow other machines to come without HTTPS.")
@click.option("--config", type=click.Path(), metavar="FILE", help="Further settings of the server in TOML.")
@json_option
@click.option("--once", is_flag=True, help="Stop everything when COMMAND has ended, and exit with its code.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def up(
    count: int, data_dir: str | None, command: tuple[str, ...], *, once: bool, as_json: bool, **settings: Any
) -> int:
    """Start a server and bots on this machine, and stay up until Ctrl-C.

    With a COMMAND, that is run on a bot as the first task. With --json there is one object on stdout when everything
    is up, and the rest goes to stderr.
    """
    if once and not command:
        raise click.UsageError("--once needs a command to wait for.")
    folder = Path(data_dir).expanduser().resolve() if data_dir else server_discovery.default_data_dir()
    cluster = LocalCluster(folder, count, settings, as_json=as_json)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's `up &` starts with SIGINT ignored
        signal.signal(number, _interrupt)
    try:
        cluster.start()
        cluster.tell()
        code = cluster.run_first(command) if command else exit_codes.OK
        if once:
            return code
        cluster.suggest()
        return cluster.stay()
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED if once else exit_codes.OK  # without --once, that is how it ends
    finally:
        cluster.stop()


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


class LocalCluster:
    """A server and its bots, as children of this process."""

    def __init__(self, folder: Path, count: int, settings: dict[str, Any], *, as_json: bool) -> None:
        self.as_json = as_json
        self.folder = folder
        self.count = count
        self.settings = settings
        self.url = ""
        self.server: subprocess.Popen[bytes] | None = None
        self.bots: dict[int, subprocess.Popen[bytes]] = {}
        self.bootstrap = ""
        self.is_up = False
        self._not_before: dict[int, float] = {}

    @cached_property
    def cli(self) -> CliContext:
        """As the administrator; there once the server has started."""
        return CliContext(self.url, (self.folder / server_discovery.TOKEN_FILE).read_text().strip(), as_json=False)

    def say(self, text: str = "") -> None:
        """What this process is doing. A program that reads stdout gets only the one object there."""
        click.echo(text, err=self.as_json)

    # -- up -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        for running in server_discovery.local_servers():
            if running.get("data_dir") == str(self.folder):
                raise click.ClickException(f"Myrmidon is up on this folder already, at {running['server']}.")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.say(f"Starting a server on {show_path(self.folder)} ...")
        self._start_server()
        server_discovery.register_local_server(self.url, self.folder)
        if self.count:
            self.say(f"Starting {output.plural(self.count, 'bot')} ...")
            self.bootstrap = self._bootstrap_token()
            for number in range(1, self.count + 1):
                self._start_bot(number)
            self._wait_for_bots()

    def _start_server(self) -> None:
        log = self.folder / "server.log"
        start = child_processes.log_size(log)
        given = [
            _flag(name, value) for name, value in self.settings.items() if value is not None and value is not False
        ]
        words = [sys.executable, "-m", "myrmidon", "server", f"--data-dir={self.folder}", *given]
        self.server = child_processes.start(words, log=log)
        until = time.monotonic() + _STARTS_S
        while not (found := _LISTENS.search(log.read_bytes()[start:])):
            if self.server.poll() is not None or time.monotonic() > until:
                told = child_processes.log_tail(log, start)
                hint = "\nnext: `--port 0` takes any free port." if "already in use" in told else ""
                raise click.ClickException(f"The server did not start.\n{told}{hint}")
            time.sleep(0.02)
        self.url = self.settings.get("public_url") or found[1].decode().replace("//0.0.0.0:", "//127.0.0.1:")
        self.cli.client.ready()

    def _bootstrap_token(self) -> str:
        """One for all bots of this folder, made at the first start."""
        file = self.folder / "bot-bootstrap.token"
        if not file.exists() or not self._is_good(file.read_text().strip()):
            made = self.cli.client.create_token("bots of myrmidon up", role="bot-bootstrap")
            server_discovery.write_private(file, made["token"])
        return file.read_text().strip()

    def _is_good(self, token: str) -> bool:
        """It may have been revoked, or the data may have been put back to before it was made."""
        try:
            CliContext(self.url, token, as_json=False).client.server()
        except NotAllowed:
            return False
        return True

    def _start_bot(self, number: int) -> None:
        newcomer = CliContext(self.url, self.bootstrap, as_json=False)
        words = bot_command(newcomer, self.folder / "bots" / str(number), bot_id=f"{socket.gethostname()}-{number}")
        env = {**bot_environment(newcomer), "MYRMIDON_BOT_AT_HOME": "1"}
        self.bots[number] = child_processes.start(words, log=self._bot_log(number), env=env)

    def _bot_log(self, number: int) -> Path:
        return self.folder / "bots" / f"{number}.log"

    def _wait_for_bots(self) -> None:
        """A first task should not have to ask why it waits."""
        until = time.monotonic() + _BOTS_COME_S
        while self._alive() < self.count:
            for number, child in self.bots.items():
                if child.poll() is not None:
                    told = child_processes.log_tail(self._bot_log(number))
                    raise click.ClickException(f"Bot {number} did not start.\n{told}")
            if time.monotonic() > until:
                output.note("Not all bots have come yet; `myrmidon bots` shows them when they do.")
                return
            time.sleep(0.05)

    def _alive(self) -> int:
        return sum(1 for one in self.cli.client.bots(limit=1000)["bots"] if one["alive"])

    def tell(self) -> None:
        """What there is now, and what to do with it."""
        self.is_up = True
        if self.as_json:
            output.print_json({"server": self.url, "data_dir": str(self.folder), "bots": self.count})
        self.say()
        self.say(f"{click.style('Myrmidon is up', bold=True)} at {self.url} with {output.plural(self.count, 'bot')}.")
        self.say(f"  data  {show_path(self.folder)}")
        self.say(f"  logs  {show_path(self.folder)}/server.log, bots/*.log")
        self.say()

    def suggest(self) -> None:
        """The first things to try, by the name under which this program is found."""
        myrmidon = own_name()
        self.say("In another terminal, try:")
        self.say(f"  {myrmidon} run -- sh -c 'echo hello from $(hostname)'")
        self.say(f"  {myrmidon} bots")
        self.say("\nEverything stays up; Ctrl-C stops it.")

    def run_first(self, command: Sequence[str]) -> int:
        """The first task, through the same command that a user would type."""
        self.say(f"$ myrmidon run -- {output.command_line(command)}")
        sys.stdout.flush()
        env = {**os.environ, "MYRMIDON_SERVER": self.url, "MYRMIDON_TOKEN": self.cli.endpoint.token or ""}
        words = [sys.executable, "-m", "myrmidon", "run", "--", *command]
        out = sys.stderr if self.as_json else None
        code = subprocess.run(words, env=env, stdout=out, check=False).returncode  # noqa: S603
        self.say()
        return code

    # -- stay, and down ---------------------------------------------------------------------------------------

    def stay(self) -> int:
        """Until Ctrl-C, or until the server ends by itself. A bot that ends is started again."""
        waiting = threading.Event()
        while not waiting.wait(_LOOK_S):
            if self.server is not None and self.server.poll() is not None:
                self.say(f"The server has ended.\n{child_processes.log_tail(self.folder / 'server.log')}")
                return exit_codes.SERVER_ERROR
            for number, child in list(self.bots.items()):
                if child.poll() is not None:
                    self._replace_bot(number, child.returncode)
        return exit_codes.OK

    def _replace_bot(self, number: int, code: int) -> None:
        """One that was told to end is gone; any other comes back, but not faster than it can be looked at."""
        if code == 0:
            self.say(f"Bot {number} has ended, as it was told to.")
            del self.bots[number]
        elif time.monotonic() >= self._not_before.get(number, 0.0):
            self.say(f"Bot {number} has ended with {code}; starting it again.")
            self._not_before[number] = time.monotonic() + _AGAIN_S
            with contextlib.suppress(CallFailed):  # tried again in a while
                self._start_bot(number)

    def stop(self) -> None:
        """Bots first, so that they can still report; then the server. A second Ctrl-C does not cut this short."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            if self.is_up:
                self.say("\nStopping ..." if sys.stdout.isatty() else "Stopping ...")
            child_processes.stop(list(self.bots.values()), again_s=_BOT_FINISHES_S, within_s=_BOT_STOPS_S)
            if self.server is not None:
                child_processes.stop([self.server], within_s=_SERVER_STOPS_S)
            if self.is_up:
                self.say("Everything has stopped; the data stays where it is.")
        finally:
            server_discovery.unregister_local_server()
            signal.signal(signal.SIGINT, before)


def _flag(name: str, value: object) -> str:
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag}={value}"


def own_name() -> str:
    """What to type to call this program: its name, its path where the shell would not find it, or as a module."""
    if shutil.which("myrmidon"):
        return "myrmidon"
    beside = Path(sys.executable).with_name("myrmidon")
    return os.path.relpath(beside) if beside.exists() else f"{show_path(Path(sys.executable))} -m myrmidon"


def show_path(path: Path) -> str:
    """With ~ for the home folder."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)
