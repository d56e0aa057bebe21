"""Python functions that stand beside native ones in graphs; bots import this file."""

from __future__ import annotations

from myrmidon import context, task
from tests.native.shapes import Record


@task(library="../../build/native/declared/libsums.so")
def add(a: int, b: int) -> int:
    raise NotImplementedError


@task(library="../../build/native/declared/libtypes_rust.so", language="rust", name="echo_integer")
def rust_integer(value: int) -> int:
    raise NotImplementedError


@task(library="./libraries/libnever_built.so", name="add")
def never_built(a: int, b: int) -> int:
    raise NotImplementedError


@task(library="libsums.so", name="add")
def installed_add(a: int, b: int) -> int:
    raise NotImplementedError


@task
def python_record(value: Record) -> Record:
    return value


@task
def numbers(count: int) -> list[int]:
    return list(range(count))


@task
def submits(count: int) -> int:
    return context().submit(add, count, 1)


@task
def submits_parts(count: int) -> list[int]:
    """C++ and Rust functions of libraries that the job was sent with, one over the results of the other."""
    sums = context().map(add, range(count), 10)
    return context().submit(gathered, context().map(rust_integer, sums))


@task
def gathered(values: list[int]) -> list[int]:
    return values


@task
def submits_never_built(count: int) -> int:
    return context().submit(never_built, count, 1)


@task
def submits_installed(count: int) -> int:
    return context().submit(installed_add, count, 1)


@task
def plain(x: int) -> int:
    return x
