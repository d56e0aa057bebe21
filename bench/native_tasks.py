"""The C++ function that bench/functions.py runs, and its library, which is built before it is measured."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from myrmidon import native, task

_SOURCE = Path(__file__).with_name("native_noop.cpp")
LIBRARY = Path(__file__).parents[1] / "build" / "bench" / "libnoop.so"


def build() -> bool:
    """Build the library; False without a compiler."""
    if shutil.which("g++") is None:
        return False
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    words = ["g++", "-std=c++17", "-O2", "-shared", "-fPIC", f"-I{native.include_dir()}", str(_SOURCE)]
    subprocess.run([*words, "-o", str(LIBRARY)], check=True)
    return True


@task(library=LIBRARY, language="cpp")
def noop(x: int) -> int:
    raise NotImplementedError
