"""`help` and `completion`: help pages, and completion scripts for shells. No server needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import click

from myrmidon.cli import exit_codes, output

FIRST_STEPS: Final = """\
Start a server and two bots on this machine; Ctrl-C stops them:

    myrmidon up

In another terminal, run a command on a bot and show its output:

    myrmidon run -- sh -c 'echo hello from $(hostname)'

Submit a command without waiting for it:

    id=$(myrmidon trigger --name nightly -- sleep 5)
    myrmidon task why $id          explain why it is not running
    myrmidon task log -f $id       follow its output
    myrmidon collect $id           wait until it has ended

Show the state of the system:

    myrmidon tasks
    myrmidon bots
    myrmidon doctor                check for common problems

To add a bot on another machine, run the command that `myrmidon bot invite` prints there.
"""

SERVER: Final = """\
A command connects to the first server of this list that is set:

    --server URL
    MYRMIDON_SERVER
    the running `myrmidon up` of the same user; of several, the newest
    the server saved by `myrmidon login URL`
    http://127.0.0.1:8910

and sends the first token of this list that is set:

    --token TOKEN
    MYRMIDON_TOKEN
    the token saved by `myrmidon login`, for the server it was saved with
    the administrator token in the data folder of your `myrmidon up` or `myrmidon server` at this address
    for a server on this machine, the administrator token in the default data folder

A token from a file is sent only to the server it belongs to; localhost, 127.0.0.1 and [::1] are one server.
"""


def _exit_codes() -> str:
    lines = [f"  {code:>3}  {meaning}" for code, meaning in exit_codes.MEANINGS.items()]
    text = click.wrap_text(exit_codes.RULE, width=100)
    return f"{text}\n\n" + "\n".join(lines) + "\n"


PAGES: Final[dict[str, Callable[[], str]]] = {
    "first-steps": lambda: FIRST_STEPS,
    "server": lambda: SERVER,
    "exit-codes": _exit_codes,
}


@click.command(name="help")
@click.argument("words", nargs=-1, metavar="[PAGE | COMMAND...]")
@click.pass_context
def show_help(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show a help page, or the help of a command.

    Pages: first-steps, server, exit-codes.
    """
    top = ctx.parent or ctx
    if len(words) == 1 and words[0] in PAGES:
        output.echo_lines(PAGES[words[0]]().rstrip("\n"))
        return
    command: click.Command = top.command
    for word in words:
        subcommand = command.get_command(top, word) if isinstance(command, click.Group) else None
        if subcommand is None:
            raise click.UsageError(f"No help page or command {' '.join(words)!r}; pages: {', '.join(PAGES)}.")
        top, command = click.Context(subcommand, info_name=word, parent=top), subcommand
    output.echo_lines(command.get_help(top))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    \b
      eval "$(myrmidon completion bash)"      in ~/.bashrc
      eval "$(myrmidon completion zsh)"       in ~/.zshrc
      myrmidon completion fish | source       in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    if script is None:
        raise click.UsageError(f"Completion for {shell} is not supported.")
    output.echo_lines(script((ctx.parent or ctx).command, {}, "myrmidon", "_MYRMIDON_COMPLETE").source())
