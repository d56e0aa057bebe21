"""`up`: a server and bots on this machine, as child processes, until Ctrl-C.

The children are the same programs as in a larger installation: `myrmidon server`, and bots from the zip that the server
serves. Bots are stopped before the server, so that they can report their results.
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
from urllib.parse import urlsplit

import click

from myrmidon.cli import child_processes, exit_codes, output
from myrmidon.cli.bot_start import bot_command, bot_environment
from myrmidon.cli.context import CliContext, json_option
from myrmidon.cli.open_page import page_url
from myrmidon.sdk import server_discovery
from myrmidon.sdk.errors import CallFailed

_SERVER_START_S: Final = 120.0
"""For a server that hangs, or that runs on a very busy machine; one that exits is noticed at once."""
_BOTS_START_S: Final = 30.0
_SECOND_SIGTERM_S: Final = 2.0
"""After the first SIGTERM a bot waits for its task to end; a second one stops the task too."""
_BOTS_STOP_S: Final = 15.0
_SERVER_STOP_S: Final = 12.0
_POLL_S: Final = 0.2
_LINK_S: Final = 600
_RESTART_INTERVAL_S: Final = 5.0
_LISTENS: Final = re.compile(rb"listens on (\S+)\n")


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--bots", "-n", "count", type=click.IntRange(0, 256), default=2, show_default=True, help="Number of bots."
)
@click.option(
    "--slots",
    type=click.IntRange(1, 1024),
    help="How many functions each bot runs at a time. Default: the processors, divided among the bots.",
)
@click.option("--data-dir", type=click.Path(), metavar="DIR", help="Data folder. Default: ~/.local/share/myrmidon.")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port of the server; 0 for any free port. Default: 8910.")
@click.option("--host", metavar="ADDRESS", help="Address to listen on. Default: 127.0.0.1.")
@click.option("--public-url", metavar="URL", help="URL at which other machines reach the server.")
@click.option("--tls-certificate", type=click.Path(), metavar="FILE", help="Certificate chain for HTTPS.")
@click.option("--tls-key", type=click.Path(), metavar="FILE", help="Private key of the certificate.")
@click.option("--plain-http", is_flag=True, help="Accept connections from other machines without HTTPS.")
@click.option("--config", type=click.Path(), metavar="FILE", help="TOML file with further server settings.")
@json_option
@click.option("--once", is_flag=True, help="Stop when COMMAND has ended, and exit with its exit code.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def up(
    count: int,
    slots: int | None,
    data_dir: str | None,
    command: tuple[str, ...],
    *,
    once: bool,
    as_json: bool,
    **settings: Any,
) -> int:
    """Start a server and bots on this machine; Ctrl-C stops them.

    COMMAND, if given, is run on a bot as the first task. With --json, one object is printed to stdout once everything
    has started, and all other output goes to stderr.
    """
    if once and not command:
        raise click.UsageError("--once needs a COMMAND.")
    folder = Path(data_dir).expanduser().resolve() if data_dir else server_discovery.default_data_dir()
    cluster = LocalCluster(folder, count, settings, as_json=as_json, slots=slots)
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's `up &` starts with SIGINT ignored
        signal.signal(number, _interrupt)
    try:
        cluster.start()
        cluster.print_summary()
        code = cluster.run_first(command) if command else exit_codes.OK
        if once:
            return code
        cluster.print_suggestions()
        return cluster.supervise()
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED if once else exit_codes.OK  # without --once, Ctrl-C is the normal end
    finally:
        cluster.stop()


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


class LocalCluster:
    """A server and its bots as child processes. ``slots``: for functions, of each bot."""

    def __init__(
        self, folder: Path, count: int, settings: dict[str, Any], *, as_json: bool, slots: int | None = None
    ) -> None:
        self.as_json = as_json
        self.slots = slots or max(1, (os.cpu_count() or 1) // max(1, count))
        self.folder = folder
        self.count = count
        self.settings = settings
        self.url = ""
        self.server: subprocess.Popen[bytes] | None = None
        self.bots: dict[int, subprocess.Popen[bytes]] = {}
        self.is_up = False
        self._next_restart_at: dict[str, float] = {}
        self._server_log_start = 0

    @cached_property
    def admin(self) -> CliContext:
        """A context with the administrator token, which the server creates at its first start."""
        return CliContext(self.url, (self.folder / server_discovery.TOKEN_FILE).read_text().strip(), as_json=False)

    def _echo(self, text: str = "") -> None:
        """Print progress: to stdout, or with --json to stderr, since stdout then holds only the JSON object."""
        output.echo_lines(text, err=self.as_json)

    # -- start ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        for running in server_discovery.local_servers():
            if running.get("data_dir") == str(self.folder):
                raise click.ClickException(f"A server is already running on this folder, at {running['server']}.")
        for folder in (self.folder, self.folder / "bots"):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._echo(f"Starting a server on {display_path(self.folder)} ...")
        self._start_server()
        server_discovery.register_local_server(self.url, self.folder, up=True)
        if self.count:
            self._echo(f"Starting {output.plural(self.count, 'bot')} ...")
            self._revoke_shared_token()
            for number in range(1, self.count + 1):
                self._start_bot(number)
            self._wait_for_bots()

    @property
    def _server_log(self) -> Path:
        return self.folder / "server.log"

    def _spawn_server(self) -> subprocess.Popen[bytes]:
        options = [
            _flag(name, value) for name, value in self.settings.items() if value is not None and value is not False
        ]
        words = [sys.executable, "-m", "myrmidon", "server", f"--data-dir={self.folder}", *options]
        return child_processes.start(words, log=self._server_log)

    def _start_server(self) -> None:
        """Start the server and wait until it works. Further starts use the same port, which bots and users know."""
        log = self._server_log
        start = self._server_log_start = child_processes.log_size(log)
        self.server = self._spawn_server()
        until = time.monotonic() + _SERVER_START_S
        while not (listening := _LISTENS.search(log.read_bytes()[start:])):
            if self.server.poll() is not None or time.monotonic() > until:
                tail = child_processes.log_tail(log, start)
                hint = "\nnext: use `--port 0` for any free port." if "already in use" in tail else ""
                raise click.ClickException(f"The server did not start.\n{tail}{hint}")
            time.sleep(0.02)
        address = listening[1].decode()
        self.settings["port"] = urlsplit(address).port
        self.url = self.settings.get("public_url") or address.replace("//0.0.0.0:", "//127.0.0.1:")
        self.admin.client.readiness()

    def _revoke_shared_token(self) -> None:
        """Revoke the token that all bots of this folder had before each got its own; tasks could read it."""
        file = self.folder / "bot-bootstrap.token"
        if file.exists():
            with contextlib.suppress(CallFailed):  # a restored backup may not contain it
                self.admin.client.revoke_token(file.read_text().split("_")[1])
            file.unlink()

    def _start_bot(self, number: int) -> None:
        bot_id = f"{socket.gethostname()}-{number}"
        words = bot_command(self.admin, self.folder / "bots" / str(number), bot_id=bot_id, slots=self.slots)
        env = {**bot_environment(), "MYRMIDON_BOT_LOCAL": "1"}
        self.bots[number] = child_processes.start(words, log=self._bot_log(number), env=env)

    def _bot_log(self, number: int) -> Path:
        return self.folder / "bots" / f"{number}.log"

    def _wait_for_bots(self) -> None:
        """Wait until the bots are connected, so that a first task starts at once."""
        until = time.monotonic() + _BOTS_START_S
        while self._num_alive_bots() < self.count:
            for number, child in self.bots.items():
                if child.poll() is not None:
                    tail = child_processes.log_tail(self._bot_log(number))
                    raise click.ClickException(f"Bot {number} did not start.\n{tail}")
            if time.monotonic() > until:
                output.note("Not all bots are connected yet; `myrmidon bots` lists those that are.")
                return
            time.sleep(0.05)

    def _num_alive_bots(self) -> int:
        return sum(1 for bot in self.admin.client.bots(limit=1000).bots if bot.alive)

    def print_summary(self) -> None:
        self.is_up = True
        if self.as_json:
            output.print_json({"server": self.url, "data_dir": str(self.folder), "bots": self.count})
        self._echo()
        self._echo(
            f"{output.style('Myrmidon is up', bold=True)} at {self.url} with {output.plural(self.count, 'bot')}."
        )
        self._echo(f"  data  {display_path(self.folder)}")
        self._echo(f"  logs  {display_path(self.folder)}/server.log and bots/*.log")
        self._echo()

    def print_suggestions(self) -> None:
        myrmidon = program_name()
        self._echo("In another terminal, try:")
        self._echo(f"  {myrmidon} run -- sh -c 'echo hello from $(hostname)'")
        self._echo(f"  {myrmidon} bots")
        if not (sys.stderr if self.as_json else sys.stdout).isatty():
            self._echo(f"  {myrmidon} open")  # a link logs in as administrator: it must not get into a log
        else:
            link = self.admin.client.login_link(lifetime_s=_LINK_S)
            self._echo("\nThe web page, for ten minutes and one browser (`myrmidon open` prints another link):")
            self._echo(f"  {page_url(self.url, link.path)}")
        self._echo("\nPress Ctrl-C to stop.")

    def run_first(self, command: Sequence[str]) -> int:
        """Run the first task with `myrmidon run`, as a user would."""
        self._echo(f"$ myrmidon run -- {output.command_line(command)}")
        sys.stdout.flush()
        env = {**os.environ, "MYRMIDON_SERVER": self.url, "MYRMIDON_TOKEN": self.admin.endpoint.token or ""}
        words = [sys.executable, "-m", "myrmidon", "run", "--", *command]
        out = sys.stderr if self.as_json else None
        code = subprocess.run(words, env=env, stdout=out, check=False).returncode  # noqa: S603
        self._echo()
        return code

    # -- supervise and stop -----------------------------------------------------------------------------------

    def supervise(self) -> int:
        """Restart the server and bots that fail. Returns when the server was stopped; Ctrl-C: KeyboardInterrupt."""
        never = threading.Event()
        while not never.wait(_POLL_S):
            if self.server is not None and self.server.poll() is not None:
                if self.server.returncode == 0:
                    self._echo("The server was stopped.")
                    return exit_codes.OK
                self._replace_server(self.server.returncode)
            for number, child in list(self.bots.items()):
                if child.poll() is not None:
                    self._replace_bot(number, child.returncode)
        return exit_codes.OK

    def _replace_server(self, code: int) -> None:
        """Restart the server, at most once per interval. Bots keep running and connect to it again."""
        if self._may_restart("server"):
            tail = "" if code < 0 else child_processes.log_tail(self._server_log, self._server_log_start, count=5)
            self._echo(f"The server {_ended(code)}; restarting it.{_indented(tail)}")
            self._server_log_start = child_processes.log_size(self._server_log)
            self.server = self._spawn_server()

    def _replace_bot(self, number: int, code: int) -> None:
        """Restart a bot that failed, at most once per interval; exit code 0 means that it was terminated on request."""
        if code == 0:
            self._echo(f"Bot {number} was terminated.")
            del self.bots[number]
        elif self._may_restart(f"bot {number}"):
            self._echo(f"Bot {number} {_ended(code)}; restarting it.")
            with contextlib.suppress(CallFailed):  # tried again after the interval
                self._start_bot(number)

    def _may_restart(self, child: str) -> bool:
        """Whether the interval since the child's last restart is over; begins the next one if so."""
        if time.monotonic() < self._next_restart_at.get(child, 0.0):
            return False
        self._next_restart_at[child] = time.monotonic() + _RESTART_INTERVAL_S
        return True

    def stop(self) -> None:
        """Stop the bots, so that they can report, then the server. Further signals are ignored meanwhile."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            if self.is_up:
                self._echo("\nStopping ..." if sys.stdout.isatty() else "Stopping ...")
            child_processes.stop(list(self.bots.values()), repeat_after_s=_SECOND_SIGTERM_S, within_s=_BOTS_STOP_S)
            if self.server is not None:
                child_processes.stop([self.server], within_s=_SERVER_STOP_S)
            if self.is_up:
                self._echo(f"Stopped. The data is kept in {display_path(self.folder)}.")
        finally:
            server_discovery.unregister_local_server()
            signal.signal(signal.SIGINT, before)


def _ended(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"


def _indented(text: str) -> str:
    return "".join(f"\n  {line}" for line in text.splitlines())


def _flag(name: str, value: object) -> str:
    flag = f"--{name.replace('_', '-')}"
    return flag if value is True else f"{flag}={value}"


def program_name() -> str:
    """How to call this program: `myrmidon` if it is on PATH, else its path, else `python -m myrmidon`."""
    if shutil.which("myrmidon"):
        return "myrmidon"
    beside = Path(sys.executable).with_name("myrmidon")
    return os.path.relpath(beside) if beside.exists() else f"{display_path(Path(sys.executable))} -m myrmidon"


def display_path(path: Path) -> str:
    """The path with ~ for the home folder."""
    try:
        return f"~/{path.relative_to(Path.home())}"
    except ValueError:
        return str(path)
