"""`myrmidon`: finds the command, runs it, and turns what goes wrong into a sentence and an exit code.

Commands are imported when they are called: `myrmidon --help` costs no more than click itself. So the table below has
their one-line help too.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final

import click

from myrmidon.cli import exit_codes
from myrmidon.sdk import errors

SECTIONS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Start": {
        "up": ("up:up", "A server and bots on this machine, until Ctrl-C."),
        "server": ("server:server", "A server."),
        "bot": ("bots:bot", "A bot on this machine; or look after one: show, drain, quarantine, terminate, delete."),
        "login": ("login:login", "Remember a server and a token for it."),
    },
    "Work": {
        "run": ("run:run", "Run a command on a bot, show its output, exit with its code."),
        "trigger": ("run:trigger", "Submit a command and return at once."),
        "collect": ("run:collect", "Wait for tasks to end."),
        "task": ("tasks:task", "One task: show, log, why, cancel, rerun, reproduce."),
        "tasks": ("tasks:tasks", "List tasks."),
    },
    "Look": {
        "bots": ("bots:bots", "List bots."),
        "queues": ("queues:queues", "What waits, and who could run it."),
        "pools": ("queues:pools", "Pools, and how they order their tasks."),
        "releases": ("releases:releases", "What bots run; take a release back."),
        "servers": ("server:servers", "The servers at work, and dead ones."),
        "doctor": ("doctor:doctor", "Check server, token, clock, bots and disk, and say what to do."),
    },
    "Script": {
        "query": ("api_call:query", "GET any path of either API, all pages of a list as one."),
        "post": ("api_call:post", "POST JSON to any path of either API."),
    },
    "Administer": {
        "token": ("tokens:token", "Tokens: create, list, revoke."),
        "config": ("server:config", "The server's settings: check."),
        "backup": ("backup:backup", "Copy the data of a running server."),
        "restore": ("backup:restore", "Put a backup in place."),
        "copy-db": ("backup:copy_db", "Move an installation to another database."),
    },
    "Help": {
        "help": ("help:show_help", "Pages of the manual: exit-codes, server, first-steps."),
        "completion": ("help:completion", "Shell completion for bash, zsh and fish."),
    },
}

_PLACES: Final = {name: place for commands in SECTIONS.values() for name, (place, _) in commands.items()}


class Commands(click.Group):
    """The commands of the table, each imported when it is called for."""

    def make_context(self, *given: Any, **more: Any) -> click.Context:
        with _nobody_reads():
            return super().make_context(*given, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _nobody_reads():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_PLACES)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in _PLACES:
            return None
        module, _, attribute = _PLACES[name].partition(":")
        found: click.Command = getattr(import_module(f"myrmidon.cli.{module}"), attribute)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _PLACES and not ctx.resilient_parsing:
            ctx.fail(f"There is no command {args[0]!r}.{_nearest(args[0])}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()], col_spacing=3)


@contextlib.contextmanager
def _nobody_reads() -> Iterator[None]:
    """`myrmidon tasks | head`: that nobody reads on is no failure. click, left to itself, makes it one."""
    try:
        yield
    except BrokenPipeError:
        raise click.exceptions.Exit(exit_codes.OK) from None


def _nearest(name: str) -> str:
    from difflib import get_close_matches  # late: only a typing error needs it

    close = get_close_matches(name, list(_PLACES), 1)
    return f" Did you mean {close[0]!r}?" if close else ""


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command has --help. The first steps: myrmidon help first-steps",
)
@click.version_option(package_name="myrmidon", message="%(prog)s %(version)s")
@click.pass_context
def myrmidon(ctx: click.Context) -> None:
    """Runs work on a legion of dumb, replaceable bots."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit. Nothing but a bug of ours ends in a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _open_what_is_closed()
    code = _done(words)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _write_no_more()
    except OSError as failed:
        _write_no_more()
        code = code or _tell_system(failed, as_json=False)
    sys.exit(code)


def _done(words: Sequence[str]) -> int:
    """How the command ended; what went wrong is told."""
    asked = {"json": _seems_to_ask_for_json(words)}
    try:
        _refuse_bytes(words)
        code = myrmidon.main(words, prog_name="myrmidon", standalone_mode=False, obj=asked)
    except click.exceptions.Exit as done:
        code = done.exit_code
    except click.exceptions.NoArgsIsHelpError as nothing:
        _echo(nothing.format_message(), err=True)
        code = exit_codes.USAGE
    except click.ClickException as wrong:
        _tell_wrong(wrong, as_json=asked["json"])
        code = wrong.exit_code
    except errors.CallFailed as failed:
        tell(failed, as_json=asked["json"])
        code = exit_codes.of_error(failed)
    except (KeyboardInterrupt, click.Abort):
        _echo("\nInterrupted.", err=True)
        code = exit_codes.INTERRUPTED
    except OSError as failed:
        code = _tell_system(failed, as_json=asked["json"])
    return code if isinstance(code, int) else exit_codes.OK


def _open_what_is_closed() -> None:
    """`myrmidon tasks >&-`: a closed stream is an empty one, and no other file gets its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - as long as the process lives


def _write_no_more() -> None:
    """What could not be written would be tried once more at the very end, and fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refuse_bytes(words: Sequence[str]) -> None:
    """Nothing that is sent can hold them: everything is JSON."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"{os.fsencode(word)!r} is not UTF-8, as every argument has to be.") from None


def _seems_to_ask_for_json(words: Sequence[str]) -> bool:
    """A guess, for a command line that cannot be read; of one that can, the command itself says it (cli.py)."""
    before = words[: words.index("--")] if "--" in words else words
    return "--json" in before


def tell(failed: errors.CallFailed, *, as_json: bool) -> None:
    """What went wrong, and what to do next."""
    if as_json:
        _print_json(failed.as_dict())
        return
    if len(failed.problems) > 1:
        lines = [f"{len(failed.problems)} problems with the request; nothing was stored.", *_listed(failed)]
    else:
        lines = [failed.message]
    _complain("\n".join(lines), _advice(failed))


def _listed(failed: errors.CallFailed) -> list[str]:
    told = [[problem.get(key, "") for key in ("path", "value", "allowed")] for problem in failed.problems]
    return [f"  {path or 'request'}: got {value}; allowed: {allowed}" for path, value, allowed in told]


def _tell_wrong(wrong: click.ClickException, *, as_json: bool) -> None:
    """A command line that cannot be understood, or something else that click noticed."""
    usage = wrong.ctx if isinstance(wrong, click.UsageError) else None
    if as_json:
        code = "usage" if isinstance(wrong, click.UsageError) else "failed"
        _print_json({"code": code, "message": wrong.format_message()})
        return
    if usage:
        _echo(usage.get_usage(), err=True)
    _complain(wrong.format_message(), f"{usage.command_path} --help" if usage else "")


def _tell_system(failed: OSError, *, as_json: bool) -> int:
    """A folder that may not be written, a full disk: nothing that a traceback would help with."""
    told = f"{failed.filename or 'The output'}: {failed.strerror or failed}."
    if as_json and failed.filename:
        _print_json({"code": "failed", "message": told})
    else:
        _complain(told, "")
    return exit_codes.FAILED


def _complain(message: str, advice: str) -> None:
    _echo(f"{click.style('error:', fg='red', bold=True)} {message}", err=True)
    if advice:
        _echo(f"{click.style('next:', bold=True)} {advice}", err=True)


def _echo(text: str, *, err: bool) -> None:
    """After the command, whose choice of colours is forgotten. Where nothing can be written, the exit code must do."""
    with contextlib.suppress(OSError):
        click.echo(text, err=err, color=False if os.environ.get("NO_COLOR") else None)


def _print_json(error: dict[str, object]) -> None:
    import json  # late: `--help` is quicker without

    _echo(json.dumps({"error": error}), err=False)


def _advice(failed: errors.CallFailed) -> str:
    if isinstance(failed, errors.Untrusted):
        return "set SSL_CERT_FILE to the certificate of the authority that signed it, if you trust that."
    if isinstance(failed, errors.Unreachable):
        return "start one with `myrmidon up`, or name yours with --server; `myrmidon doctor` looks closer."
    if isinstance(failed, errors.NotAllowed):
        return "give a token with MYRMIDON_TOKEN or `myrmidon login`; `myrmidon doctor` shows which one is used now."
    if isinstance(failed, errors.Overloaded):
        return "try again in a moment; `myrmidon doctor` looks closer."
    if isinstance(failed, errors.ServerError):
        return "look into the server's log; if it is a bug, please report it."
    return ""
