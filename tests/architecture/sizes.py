"""A report, not a gate: functions over 40 lines and files over 400. `make check` prints it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture import source

LONG_FUNCTION = 40
LONG_FILE = 400


def long_files() -> Iterator[str]:
    for file in source.files():
        lines = len((source.PACKAGE / file).read_text().splitlines())
        if lines > LONG_FILE:
            yield f"  {lines:5} lines  {file}"


def long_functions() -> Iterator[str]:
    for file in source.files():
        for node in ast.walk(source.tree(file)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > LONG_FUNCTION:
                    yield f"  {lines:5} lines  {file}:{node.lineno} {node.name}"


if __name__ == "__main__":
    found = [*long_files(), *long_functions()]
    print(f"sizes: {len(found)} files over {LONG_FILE} lines or functions over {LONG_FUNCTION}")
    print("\n".join(sorted(found, reverse=True)), end="\n" if found else "")
