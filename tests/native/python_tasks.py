"""Python functions that stand beside native ones in graphs; bots import this file."""

from __future__ import annotations

from myrmidon import context, task
from tests.native.shapes import Record


@task(library="./libraries/libsums.so", name="add")
def shipped_add(a: int, b: int) -> int:
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
    return context().submit(shipped_add, count, 1)


@task
def submits_installed(count: int) -> int:
    return context().submit(installed_add, count, 1)


@task
def plain(x: int) -> int:
    return x
