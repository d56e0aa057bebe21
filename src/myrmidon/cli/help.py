"""`help` and `completion`: pages of the manual that need no server, and scripts for shells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import click

from myrmidon.cli import exit_codes

FIRST_STEPS: Final = """\
Start a server and two bots on this machine; it stays up until Ctrl-C:

    myrmidon up

In another terminal, run a command on a bot and see its output:

    myrmidon run -- sh -c 'echo hello from $(hostname)'

Submit one and come back later:

    id=$(myrmidon trigger --name nightly -- sleep 5)
    myrmidon task why $id          why does it not run yet?
    myrmidon task log -f $id       its output as it comes
    myrmidon collect $id           wait for its end

See what there is:

    myrmidon tasks
    myrmidon bots
    myrmidon doctor                checks everything and says what to do

Add a bot on another machine: `myrmidon bot invite` prints the command for it.
"""

SERVER: Final = """\
Which server a command talks to, the first that is given:

    --server URL
    MYRMIDON_SERVER
    a `myrmidon up` that runs now as the same user; of several, the newest
    what `myrmidon login URL` remembered
    http://127.0.0.1:8910

With which token:

    --token TOKEN, MYRMIDON_TOKEN
    the administrator's token in the data folder of a server on this machine
    what `myrmidon login` remembered

A token from a file goes only to the server it belongs to.
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
def manual(ctx: click.Context, words: tuple[str, ...]) -> None:
    """A page of the manual, or the help of a command.

    Pages: first-steps, server, exit-codes.
    """
    top = ctx.parent or ctx
    if len(words) == 1 and words[0] in PAGES:
        click.echo(PAGES[words[0]](), nl=False)
        return
    command: click.Command = top.command
    for word in words:
        found = command.get_command(top, word) if isinstance(command, click.Group) else None
        if found is None:
            raise click.UsageError(f"There is no page or command {' '.join(words)!r}; pages: {', '.join(PAGES)}.")
        top, command = click.Context(found, info_name=word, parent=top), found
    click.echo(command.get_help(top))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
      eval "$(myrmidon completion bash)"      in ~/.bashrc
      eval "$(myrmidon completion zsh)"       in ~/.zshrc
      myrmidon completion fish | source       in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    if script is None:
        raise click.UsageError(f"click knows no completion for {shell}.")
    click.echo(script((ctx.parent or ctx).command, {}, "myrmidon", "_MYRMIDON_COMPLETE").source())
