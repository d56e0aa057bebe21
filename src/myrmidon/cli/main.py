"""Entry point of `myrmidon`: runs a command, and reports errors as a message and an exit code.

Commands are imported when they are called, so that `myrmidon --help` imports nothing but click. The table below
therefore repeats their one-line help.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any, Final

import click

from myrmidon.cli import exit_codes, output
from myrmidon.sdk import errors

SECTIONS: Final[dict[str, dict[str, tuple[str, str]]]] = {
    "Start": {
        "up": ("up:up", "Start a server and bots on this machine."),
        "server": ("server:server", "Start a server."),
        "bot": ("bots:bot", "Start a bot on this machine, or manage bots: show, drain, quarantine, ..."),
        "login": ("login:login", "Save a server and a token for it."),
        "open": ("open_page:open_page", "Open the server's web page, logged in."),
    },
    "Work": {
        "run": ("run:run", "Run a command on a bot, show its output, exit with its exit code."),
        "trigger": ("run:trigger", "Submit a command without waiting for it."),
        "collect": ("collect:collect", "Wait for tasks and jobs to end."),
        "task": ("tasks:task", "Inspect or change a task: show, log, why, cancel, rerun, reproduce."),
        "tasks": ("tasks:tasks", "List tasks."),
        "job": ("job_commands:job", "Submit a graph of tasks, watch or change it: submit, watch, rerun, extend, ..."),
        "jobs": ("jobs:jobs", "List jobs."),
        "value": ("values:value", "Inspect values of functions, share some: list, show, get, put, ref, unref."),
    },
    "Inspect": {
        "bots": ("bots:bots", "List bots."),
        "queues": ("queues:queues", "List waiting tasks by dimensions, with the bots that can run them."),
        "pools": ("queues:pools", "List pools and their task order."),
        "releases": ("releases:releases", "List releases of the bot, or revert one."),
        "servers": ("server:servers", "List servers."),
        "doctor": ("doctor:doctor", "Check the server, token, clock, bots and disk for problems."),
    },
    "Script": {
        "native": ("native:native", "Build functions in C++ and Rust: include-dir, crate-dir, functions."),
        "query": ("api_call:query", "GET any path of the server's APIs."),
        "post": ("api_call:post", "POST JSON to any path of the server's APIs."),
    },
    "Administer": {
        "token": ("tokens:token", "Create, list and revoke tokens."),
        "resource-group": ("resource_groups:resource_group", "Create, list, show and delete resource groups."),
        "webhook": ("webhooks:webhook", "Send messages about tasks and jobs to a URL."),
        "config": ("server:config", "Check settings; show and change the configuration of the fleet."),
        "backup": ("backup:backup", "Back up all data of a server."),
        "restore": ("backup:restore", "Restore a backup."),
        "copy-db": ("backup:copy_db", "Copy all data to another database."),
    },
    "Help": {
        "help": ("help:show_help", "Show a help page: first-steps, server, exit-codes."),
        "completion": ("help:completion", "Print the completion script for bash, zsh or fish."),
    },
}

_LOCATIONS: Final = {name: location for commands in SECTIONS.values() for name, (location, _) in commands.items()}


class Commands(click.Group):
    """The commands of SECTIONS, each imported when it is called."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _ignore_broken_pipe():
            return super().make_context(*args, **kwargs)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            place = f"{error.message} Options stand after the command, as in `myrmidon bots --json`."
            raise click.NoSuchOption(error.option_name, place, error.possibilities, error.ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        with _ignore_broken_pipe():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(_LOCATIONS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in _LOCATIONS:
            return None
        module, _, attribute = _LOCATIONS[name].partition(":")
        command: click.Command = getattr(import_module(f"myrmidon.cli.{module}"), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _LOCATIONS and not ctx.resilient_parsing:
            ctx.fail(f"Unknown command {args[0]!r}.{_suggestion(args[0])}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for section, commands in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()], col_spacing=3)


@contextlib.contextmanager
def _ignore_broken_pipe() -> Iterator[None]:
    """Exit with 0 when stdout is closed, as in `myrmidon tasks | head`; click itself would exit with 1."""
    try:
        yield
    except BrokenPipeError:
        raise click.exceptions.Exit(exit_codes.OK) from None


def _suggestion(name: str) -> str:
    from difflib import get_close_matches  # late, for startup time

    close = get_close_matches(name, list(_LOCATIONS), 1)
    return f" Did you mean {close[0]!r}?" if close else ""


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Every command has --help. To begin: myrmidon help first-steps",
)
@click.version_option(package_name="myrmidon", message="%(prog)s %(version)s")
@click.pass_context
def myrmidon(ctx: click.Context) -> None:
    """Run tasks on a fleet of bots."""
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit. Only a bug produces a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _reopen_closed_streams()
    code = _run(words)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
    except OSError as error:
        _discard_stdout()
        code = code or _report_os_error(error, as_json=False)
    sys.exit(code)


def _run(words: Sequence[str]) -> int:
    """Run a command, report its error if it fails, and return the exit code."""
    flags: dict[str, Any] = {"json": _guess_json_flag(words)}
    try:
        _require_utf8(words)
        code = myrmidon.main(words, prog_name="myrmidon", standalone_mode=False, obj=flags)
    except click.exceptions.Exit as exit_:
        code = exit_.exit_code
    except click.exceptions.NoArgsIsHelpError as help_:
        _print_lines(*help_.format_message().split("\n"))
        code = exit_codes.USAGE
    except click.ClickException as error:
        _report_click_error(error, as_json=flags["json"])
        code = error.exit_code
    except errors.CallFailed as error:
        _name_options(error, flags.get("command"))
        _report_failed_call(error, as_json=flags["json"])
        code = exit_codes.of_error(error)
    except (KeyboardInterrupt, click.Abort):
        _print_lines("", "Interrupted.")
        code = exit_codes.INTERRUPTED
    except OSError as error:
        code = _report_os_error(error, as_json=flags["json"])
    return code if isinstance(code, int) else exit_codes.OK


def _reopen_closed_streams() -> None:
    """Replace closed standard streams (`myrmidon tasks >&-`) by /dev/null, so that no other file gets their number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115, PTH123 - open until the process exits


def _discard_stdout() -> None:
    """Redirect stdout to /dev/null: the interpreter flushes it again at exit, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _require_utf8(words: Sequence[str]) -> None:
    """Refuse arguments that are not UTF-8: they cannot be sent as JSON."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"The argument {os.fsencode(word)!r} is not UTF-8.") from None


def _guess_json_flag(words: Sequence[str]) -> bool:
    """Whether to print errors as JSON when parsing fails; once --json is parsed, context.py corrects the guess."""
    before = words[: words.index("--")] if "--" in words else words
    return "--json" in before


def _report_failed_call(error: errors.CallFailed, *, as_json: bool) -> None:
    if as_json:
        _print_json(error.as_dict())
        return
    _print_error(_failed_call_lines(error), _advice(error))


def _name_options(error: errors.CallFailed, command: click.Command | None) -> None:
    """Name the options of the command that the problems are about. The bodies of `post` have fields, not options."""
    if command is None or command.name in ("query", "post"):
        return
    from myrmidon.cli.option_names import option_of  # late, for startup time

    for problem in error.problems:
        problem.setdefault("option", option_of(command, str(problem.get("path", ""))))


def _failed_call_lines(error: errors.CallFailed) -> list[str]:
    """The server's message; problems are named by the option that was used, if there was one."""
    lines = output.problem_lines(error)
    if len(lines) > 1:
        return [f"{len(lines)} problems with the request; nothing was stored.", *(f"  {line}" for line in lines)]
    if lines and error.problems[0].get("option"):
        return [f"{lines[0]}. Nothing was stored."]
    return [error.message]


def _report_click_error(error: click.ClickException, *, as_json: bool) -> None:
    """Report an invalid command line, or another error that a command raised through click."""
    usage = error.ctx if isinstance(error, click.UsageError) else None
    if as_json:
        code = "usage" if isinstance(error, click.UsageError) else "failed"
        _print_json({"code": code, "message": error.format_message()})
        return
    if usage:
        _print_lines(*usage.get_usage().split("\n"))
    _print_error(error.format_message().split("\n"), f"{usage.command_path} --help" if usage else "")


def _report_os_error(error: OSError, *, as_json: bool) -> int:
    """Report a system error, such as a full disk, without a traceback."""
    message = f"{error.filename or 'The output'}: {error.strerror or error}."
    if as_json and error.filename:
        _print_json({"code": "failed", "message": message})
    else:
        _print_error([message], "")
    return exit_codes.FAILED


def _print_error(lines: Sequence[str], advice: str) -> None:
    first, *more = lines
    _print_lines(f"{output.style('error:', fg='red', bold=True)} {first}", *more)
    if advice:
        _print_lines(f"{output.style('next:', bold=True)} {advice}")


def _print_lines(*lines: str) -> None:
    """Print to stderr. Write errors leave only the exit code."""
    with contextlib.suppress(OSError):
        for line in lines:
            output.echo(line, err=True)


def _print_json(error: dict[str, object]) -> None:
    with contextlib.suppress(OSError):
        output.print_json({"error": error}, indent=False)


def _advice(error: errors.CallFailed) -> str:
    if error.advice:
        return error.advice
    if isinstance(error, errors.Untrusted):
        return "set SSL_CERT_FILE to the certificate of the authority that signed it, if you trust it."
    if isinstance(error, errors.Unreachable):
        return "start one with `myrmidon up`, or set --server; `myrmidon doctor` checks for problems."
    if isinstance(error, errors.Overloaded):
        return "try again later; `myrmidon doctor` checks for problems."
    if isinstance(error, errors.ServerError):
        return "see the server's log, and please report a bug."
    return ""
