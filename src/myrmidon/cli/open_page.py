"""`open`: open the web page of the server in a browser that is logged in by a link."""

from __future__ import annotations

import os
import sys

import click

from myrmidon.cli import output
from myrmidon.cli.context import CliContext, connected


@click.command(name="open")
@click.argument("path", default="/")
@click.option("--print", "print_only", is_flag=True, help="Print the link and open no browser.")
@connected
def open_page(cli: CliContext, path: str, *, print_only: bool) -> None:
    """Open the web page of the server, logged in with the rights of your token.

    The link is printed too. It can be used once, within a minute. PATH is a page, such as /tasks/ID; without it, the
    first page is opened.
    """
    if not path.startswith("/"):
        raise click.UsageError(f"PATH must begin with a slash: /{path}")
    link = cli.client.login_link(path)
    url = page_url(cli.endpoint.server, link.path)
    if cli.prints({"url": url, "expires_at": link.expires_at}):
        return
    output.echo(url)
    if not print_only and _has_browser():
        import webbrowser  # late, for startup time

        webbrowser.open(url)


def page_url(server: str, path: str) -> str:
    return f"{server.rstrip('/')}{path}"


def _has_browser() -> bool:
    """Whether a browser would open a window. In a terminal without one, a text browser would take the terminal over."""
    if not sys.stdout.isatty():
        return False
    return sys.platform == "darwin" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
