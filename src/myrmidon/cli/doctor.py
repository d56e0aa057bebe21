"""`doctor`: checks for common problems and says how to fix them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click

from myrmidon.cli import exit_codes, output
from myrmidon.cli.context import CliContext, connected, fetch_pages
from myrmidon.sdk import server_discovery
from myrmidon.sdk.errors import CallFailed, Refused, Unreachable, Untrusted

_MAX_SKEW_S: Final = 5.0
_MIN_FREE_BYTES: Final = 1 << 30
_MAX_NAMED: Final = 3
_READY_WITHIN_S: Final = 3.0
_MAINTENANCE: Final = "maintenance "
_LABELS: Final = {"ok": ("ok", "green"), "warning": ("warn", "yellow"), "wrong": ("FAIL", "red")}


@dataclass(frozen=True)
class Finding:
    """The result of one check: its name, ok, warning or wrong, a message, and how to fix a problem.

    The fields are the keys of `doctor --json`.
    """

    what: str
    how: str
    told: str
    advice: str = ""


@click.command()
@connected
def doctor(cli: CliContext) -> int:
    """Check the server, token, clock, bots and disk for problems.

    Exits with 1 if a check fails; warnings do not count.
    """
    findings = []
    for finding in _findings(cli):
        findings.append(finding)
        if not cli.as_json:
            _print_finding(finding)
    if cli.as_json:
        output.print_json({"findings": [asdict(finding) for finding in findings]})
    return exit_codes.FAILED if any(finding.how == "wrong" for finding in findings) else exit_codes.OK


def _print_finding(finding: Finding) -> None:
    label, colour = _LABELS[finding.how]
    output.echo_wrapped(
        f"{output.style(label.ljust(4), fg=colour, bold=True)}  {finding.what.ljust(8)}  ", finding.told
    )
    if finding.advice:
        output.echo_wrapped(f"      {' ' * 8}  next: ", finding.advice)


def _findings(cli: CliContext) -> Iterator[Finding]:
    """Run the checks in order; without a reachable server or a valid token the remaining ones are skipped."""
    reachable = _server(cli)
    yield reachable
    if reachable.how == "wrong":
        yield _local_disk()
        return
    before = time.time()
    try:
        info = cli.client.server()
    except CallFailed as error:
        yield _token_problem(cli, error)
        return
    yield Finding("token", "ok", f"{info.who} with role {info.role}, from {cli.endpoint.token_source}.")
    yield _clock(info.time / 1e6, before, time.time())
    if info.retention_waits_until:
        yield _retention(info.retention_waits_until - info.time)
    yield _local_disk() if info.disk_free is None else _disk(info.disk_free, "the server's data folder")
    for check in (_servers, _bots, _lost_runs, _releases, _queues, _sinks, _maintenance):
        try:
            yield check(cli)
        except CallFailed as error:
            yield Finding(check.__name__.strip("_").replace("_", " "), "warning", error.message)


def _server(cli: CliContext) -> Finding:
    endpoint = cli.endpoint
    address = f"{endpoint.server} (from {endpoint.server_source})"
    try:
        cli.client.readiness(within_s=_READY_WITHIN_S)
    except CallFailed as error:
        if error.code == "unauthorized":
            return Finding("server", "ok", f"{address} answers.")  # the token is checked next
        advice = "start one with `myrmidon up`, or set --server or MYRMIDON_SERVER."
        if error.advice:
            advice = error.advice
        elif isinstance(error, Untrusted):
            advice = "set SSL_CERT_FILE to the certificate of the authority that signed it, if you trust it."
        elif isinstance(error, Refused):
            advice = ""  # the message says what to do
        elif not isinstance(error, Unreachable):
            advice = "see the server's log, and check that its database is running."
        return Finding("server", "wrong", f"{address}: {error.message}", advice)
    return Finding("server", "ok", f"{address} answers and is ready.")


def _token_problem(cli: CliContext, error: CallFailed) -> Finding:
    if cli.endpoint.token is None:
        message = f"No token for {cli.endpoint.server}."
        return Finding("token", "wrong", message, "run `myrmidon login URL`, or set MYRMIDON_TOKEN.")
    message = f"The token from {cli.endpoint.token_source} is refused: {error.message}"
    return Finding("token", "wrong", message, "ask an administrator for a new one: `myrmidon token create NAME`.")


def _clock(server_time: float, before: float, after: float) -> Finding:
    skew = server_time - (before + after) / 2
    if abs(skew) - (after - before) / 2 > _MAX_SKEW_S:
        ahead = "ahead of" if skew > 0 else "behind"
        message = f"The server's clock is {abs(skew):.0f} s {ahead} this machine's."
        return Finding("clock", "warning", message, "synchronise both with NTP; see `timedatectl`.")
    return Finding("clock", "ok", "The clocks of the server and this machine agree.")


def _retention(wait: int) -> Finding:
    message = f"The server was away, or its clock jumped: it deletes no old tasks for {max(0, wait) // 60_000_000} min."
    advice = "check the time above; if it is wrong, stop the server before that, and start it when the clock is right."
    return Finding("clock", "warning", message, advice)


def _servers(cli: CliContext) -> Finding:
    alive = sum(server.alive for server in cli.client.servers().servers)
    return Finding("servers", "ok", f"{output.plural(alive, 'server')} alive.")


def _bots(cli: CliContext) -> Finding:
    bots = fetch_pages(cli.client.bots, "bots", 10_000).bots
    alive = [bot for bot in bots if bot.alive]
    if not alive:
        message = "All bots are dead." if bots else "There are no bots."
        advice = "start one here with `myrmidon bot`, or elsewhere with the command of `myrmidon bot invite`."
        return Finding("bots", "wrong", message, advice)
    quarantined = [f"{bot.bot_id} ({bot.quarantined})" for bot in alive if bot.quarantined]
    counts = f"{output.plural(len(alive), 'bot')} alive, {len(bots) - len(alive)} dead, {len(quarantined)} quarantined"
    if not quarantined:
        return Finding("bots", "ok", f"{counts}.")
    advice = "`myrmidon bot show BOT` shows more; `myrmidon bot quarantine --undo BOT` ends a quarantine."
    how = "warning" if len(quarantined) == len(alive) else "ok"
    return Finding("bots", how, f"{counts}: {_first(quarantined)}.", advice)


def _lost_runs(cli: CliContext) -> Finding:
    """Runs of bots that send nothing: their tasks are still shown as running."""
    bots = fetch_pages(cli.client.bots, "bots", 10_000, state="busy").bots
    lost = [bot for bot in bots if bot.status in ("dead", "silent") and bot.runs]
    if not lost:
        return Finding("runs", "ok", "No dead bot holds a run.")
    named = [f"{bot.bot_id} ({bot.status}: {' '.join(bot.runs)})" for bot in lost]
    message = f"{output.plural(sum(len(bot.runs) for bot in lost), 'run')} on dead or silent bots: {_first(named)}."
    return Finding("runs", "warning", message, "check these machines; a run is given up when its lease ends.")


def _releases(cli: CliContext) -> Finding:
    """Reverted releases of the bot. One that is newer than the active one means that bots run an older version."""
    releases = cli.client.releases().releases
    reverted = [release for release in releases if release.state == "bad"]
    if not reverted:
        return Finding("releases", "ok", "No release of the bot was reverted.")
    named = [f"{release.digest[:12]} ({release.why or 'no reason given'})" for release in reverted]
    message = f"{output.plural(len(reverted), 'release')} of the bot reverted: {_first(named)}."
    active = max((release.created_at for release in releases if release.state == "active"), default=0)
    newer = any(release.created_at > active for release in reverted)
    return Finding("releases", "warning" if newer else "ok", message, "`myrmidon releases` lists them.")


def _first(names: Sequence[str]) -> str:
    """The first few of a list."""
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _queues(cli: CliContext) -> Finding:
    queues = fetch_pages(cli.client.queues, "queues", 10_000).queues
    waiting = sum(queue.num_ready for queue in queues)
    stuck = sum(queue.num_ready for queue in queues if not queue.num_bots)
    if stuck:
        message = f"{output.plural(stuck, 'task')} of {waiting} waiting cannot run on any bot."
        return Finding("queues", "warning", message, "`myrmidon queues`, then `myrmidon task why TASK`.")
    return Finding("queues", "ok", f"{output.plural(waiting, 'task')} waiting for a bot.")


def _sinks(cli: CliContext) -> Finding:
    """Receivers of messages that are behind; tasks are not affected."""
    notes = [note for note in cli.client.readiness().notes if not note.startswith(_MAINTENANCE)]
    if notes:
        advice = "check the receiver, and the server's log for `sink is unavailable`; tasks run meanwhile."
        return Finding("messages", "warning", f"{'; '.join(notes)}.", advice)
    return Finding("messages", "ok", "No receiver of messages is behind.")


def _maintenance(cli: CliContext) -> Finding:
    """What the server does by itself, such as cancelling the tasks of a large job; tasks run meanwhile."""
    notes = [note for note in cli.client.readiness().notes if note.startswith(_MAINTENANCE)]
    if notes:
        advice = "see `myrmidon_maintenance_*` on /metrics, and the server's log."
        return Finding("upkeep", "warning", f"{notes[0].capitalize()}.", advice)
    return Finding("upkeep", "ok", "Maintenance is not behind.")


def _local_disk() -> Finding:
    """Free space for the data folder of the running `myrmidon up`, or for the default one."""
    folder = Path(server_discovery.newest_local_server().get("data_dir") or server_discovery.default_data_dir())
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    return _disk(shutil.disk_usage(existing).free, str(folder))


def _disk(free: int, folder: str) -> Finding:
    if free < _MIN_FREE_BYTES:
        return Finding("disk", "warning", f"Only {output.size(free)} free for {folder}.", "free some space.")
    return Finding("disk", "ok", f"{output.size(free)} free for {folder}.")
