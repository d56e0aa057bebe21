"""`native`: what people need to build functions in C++ and Rust, and what is in a library."""

from __future__ import annotations

from pathlib import Path

import click

from myrmidon import native as files
from myrmidon.cli import output
from myrmidon.cli.context import json_option


@click.group()
def native() -> None:
    """Build functions in C++ and Rust."""


@native.command("include-dir")
def include_dir() -> None:
    """Print the folder of the C and C++ headers. Name it in the option -I of the compiler."""
    output.echo(str(files.include_dir()))


@native.command("crate-dir")
def crate_dir() -> None:
    """Print the folder of the Rust crate. Name it as the path of the dependency `myrmidon` in Cargo.toml."""
    output.echo(str(files.crate_dir()))


@native.command("functions")
@click.argument("library", type=click.Path(dir_okay=False, path_type=Path))
@json_option
def functions(library: Path, *, as_json: bool) -> None:
    """List the functions of a shared library with their signatures. Loads the library, which runs code of it."""
    from myrmidon.functions.native_errors import LibraryProblem  # late, for startup time
    from myrmidon.functions.native_library import NativeLibrary

    try:
        found = NativeLibrary(str(library.resolve())).functions
    except LibraryProblem as problem:
        raise click.ClickException(f"{problem} ({type(problem).__name__})") from None
    if as_json:
        output.print_json({name: one.signature.text for name, one in found.items()})
        return
    for name, one in found.items():
        output.echo(f"{name}{one.signature.text}")
