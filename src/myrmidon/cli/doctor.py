"""`doctor`: looks at everything a newcomer stumbles over, and says what to do about it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click

from myrmidon.cli import exit_codes, output, server_discovery
from myrmidon.cli.context import CliContext, connected, fetch_pages
from myrmidon.sdk.errors import CallFailed, NotAllowed, Unreachable, Untrusted

_MOST_SKEW_S: Final = 5.0
_LEAST_FREE: Final = 1 << 30
_SIGNS: Final = {"ok": ("ok", "green"), "warning": ("warn", "yellow"), "wrong": ("FAIL", "red")}


@dataclass(frozen=True)
class Finding:
    """What was looked at, how it is (ok, warning or wrong), and what to do when it is not well."""

    what: str
    how: str
    told: str
    advice: str = ""


@click.command()
@connected
def doctor(cli: CliContext) -> int:
    """Check the server, the token, the clock, the bots and the disk, and say what to do.

    Exits with 1 when something is wrong; warnings do not count.
    """
    findings = []
    for finding in _look(cli):
        findings.append(finding)
        if not cli.as_json:
            _tell(finding)
    if cli.as_json:
        output.print_json({"findings": [asdict(finding) for finding in findings]})
    return exit_codes.FAILED if any(finding.how == "wrong" for finding in findings) else exit_codes.OK


def _tell(finding: Finding) -> None:
    word, colour = _SIGNS[finding.how]
    click.echo(f"{click.style(word.ljust(4), fg=colour, bold=True)}  {finding.what.ljust(8)}  {finding.told}")
    if finding.advice:
        click.echo(f"      {' ' * 8}  next: {finding.advice}")


def _look(cli: CliContext) -> Iterator[Finding]:
    """One finding after the other; without a server or a token the rest cannot be asked."""
    reached = _reach(cli)
    yield reached
    yield _disk()
    if reached.how == "wrong":
        return
    before = time.time()
    try:
        info = cli.client.server()
    except CallFailed as failed:
        yield _no_token(cli, failed)
        return
    yield Finding("token", "ok", f"{info['who']} with role {info['role']}, from {cli.endpoint.token_source}.")
    yield _clock(info["time"] / 1e6, before, time.time())
    for look in (_servers, _bots, _queues):
        try:
            yield look(cli)
        except CallFailed as failed:
            yield Finding(look.__name__.strip("_"), "warning", failed.message)


def _reach(cli: CliContext) -> Finding:
    place = cli.endpoint
    told = f"{place.server} (from {place.server_source})"
    try:
        cli.client.ready()
    except NotAllowed:
        pass  # somebody is there; the token is the next thing to look at
    except CallFailed as failed:
        advice = "start one with `myrmidon up`, or name yours with --server or MYRMIDON_SERVER."
        if isinstance(failed, Untrusted):
            advice = "set SSL_CERT_FILE to the certificate of the authority that signed it, if you trust that."
        elif not isinstance(failed, Unreachable):
            advice = "look into the server's log; is its database running?"
        return Finding("server", "wrong", f"{told}: {failed.message}", advice)
    return Finding("server", "ok", f"{told} answers and is ready.")


def _no_token(cli: CliContext, failed: CallFailed) -> Finding:
    if cli.endpoint.token is None:
        told = f"There is none for {cli.endpoint.server}."
        return Finding("token", "wrong", told, "`myrmidon login URL`, or set MYRMIDON_TOKEN.")
    told = f"The one from {cli.endpoint.token_source} is refused: {failed.message}"
    return Finding("token", "wrong", told, "ask an administrator for a new one: `myrmidon token create NAME`.")


def _clock(there: float, before: float, after: float) -> Finding:
    skew = there - (before + after) / 2
    if abs(skew) - (after - before) / 2 > _MOST_SKEW_S:
        ahead = "ahead of" if skew > 0 else "behind"
        told = f"The server's clock is {abs(skew):.0f} s {ahead} this machine's."
        return Finding("clock", "warning", told, "set both by NTP; `timedatectl` shows how this one is set.")
    return Finding("clock", "ok", "The server and this machine agree on the time.")


def _servers(cli: CliContext) -> Finding:
    found = cli.client.servers()["servers"]
    alive = sum(one["alive"] for one in found)
    return Finding("servers", "ok", f"{output.plural(alive, 'server')} at work.")


def _bots(cli: CliContext) -> Finding:
    found = fetch_pages(cli.client.bots, "bots", 10_000)["bots"]
    alive = [one for one in found if one["alive"]]
    if not alive:
        told = "There is no live bot." if found else "There is no bot yet."
        return Finding(
            "bots", "wrong", told, "start one here with `myrmidon bot`; `myrmidon bot invite` for other machines."
        )
    aside = sum(bool(one["quarantined"]) for one in alive)
    told = f"{output.plural(len(alive), 'bot')} alive, {len(found) - len(alive)} dead, {aside} quarantined."
    return Finding(
        "bots", "warning" if aside == len(alive) else "ok", told, "`myrmidon bots` tells why." if aside else ""
    )


def _queues(cli: CliContext) -> Finding:
    found = fetch_pages(cli.client.queues, "queues", 10_000)["queues"]
    waiting = sum(one["num_ready"] for one in found)
    stuck = sum(one["num_ready"] for one in found if not one["num_bots"])
    if stuck:
        told = f"{output.plural(stuck, 'task')} that no bot can run, of {waiting} that wait for one."
        return Finding("queues", "warning", told, "`myrmidon queues`, then `myrmidon task why TASK`.")
    return Finding("queues", "ok", f"{output.plural(waiting, 'task')} waiting for a bot.")


def _disk() -> Finding:
    """Where a server of this user would keep its data."""
    folder = Path(server_discovery.newest_local_server().get("data_dir") or server_discovery.default_data_dir())
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    if free < _LEAST_FREE:
        return Finding("disk", "warning", f"Only {output.size(free)} free for {folder}.", "make room there.")
    return Finding("disk", "ok", f"{output.size(free)} free for {folder}.")
