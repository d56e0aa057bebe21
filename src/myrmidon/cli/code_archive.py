"""Fetches zips of the code of functions, which other people have made."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from myrmidon.executor.code_archive import BadCode, open_code

if TYPE_CHECKING:
    from myrmidon.cli.context import CliContext


@contextmanager
def fetch_code(cli: CliContext, digest: str, group: str) -> Iterator[zipfile.ZipFile]:
    """The zip; ClickException if a bot would refuse it."""
    try:
        with open_code(cli.client.file(digest, group=group)) as archive:
            yield archive
    except BadCode as error:
        raise click.ClickException(f"The code {digest[:12]} cannot be used: {error}.") from None
