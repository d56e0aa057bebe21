"""Builds the libraries of the tests with g++ and rustc, each once for the same sources."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from myrmidon import native
from tests.deadline import HANG_S

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "libraries"
_BUILT = ROOT / "build" / "native"


DECLARED = ROOT / "build" / "native" / "declared"
"""Where the libraries of declared.py are, once ``build_declared`` was called."""


def build_declared() -> None:
    """Build the libraries of declared.py. Not when it is imported: tests are collected without them."""
    DECLARED.mkdir(parents=True, exist_ok=True)
    for built in (
        cpp(SOURCES / "sums.cpp"),
        cpp(SOURCES / "types.cpp", "-O0"),
        rust(SOURCES / "types_rust.rs"),
        cpp(SOURCES / "faults.cpp"),
        rust(SOURCES / "faults_rust.rs"),
    ):
        target = DECLARED / built.name
        if not target.exists() or target.read_bytes() != built.read_bytes():
            part = target.with_name(f"{target.name}.{os.getpid()}")
            shutil.copy(built, part)
            os.replace(part, target)


_STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-shared", "-fPIC")


def cpp(source: Path, *flags: str) -> Path:
    """A shared library of a C++ source."""
    words = ["g++", "-std=c++17", "-O1", *_STRICT, *flags, f"-I{native.include_dir()}", str(source)]
    return _built([source], words, native.include_dir())


def c(source: Path, *flags: str) -> Path:
    """A shared library of a C source."""
    words = ["gcc", "-std=c99", *_STRICT, *flags, f"-I{native.include_dir()}", str(source)]
    return _built([source], words, native.include_dir())


def source(text: str, suffix: str) -> Path:
    """A file with this text; the same one for the same text, so that it is built once."""
    path = _BUILT / f"source_{hashlib.sha256(text.encode()).hexdigest()[:16]}.{suffix}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def rust(source: Path, name: str = "") -> Path:
    """A shared library of a Rust source that uses the crate."""
    crate = _crate()
    words = [_rustc(), "--edition=2021", "-Dwarnings", "-Copt-level=1", "-Cstrip=symbols", "--crate-type=cdylib"]
    return _built([source], [*words, f"--extern=myrmidon={crate}", str(source)], native.crate_dir(), name=name)


@functools.cache
def _crate() -> Path:
    source = native.crate_dir() / "src" / "lib.rs"
    words = [_rustc(), "--edition=2021", "-Dwarnings", "-Copt-level=1", "--crate-type=rlib", "--crate-name=myrmidon"]
    return _built([source], [*words, str(source)], native.crate_dir(), name="libmyrmidon.rlib")


@functools.cache
def _rustc() -> str:
    """Debian's compiler, which is the oldest that must do."""
    return "/usr/bin/rustc" if Path("/usr/bin/rustc").exists() else "rustc"


def _built(sources: Sequence[Path], words: list[str], used: Path, name: str = "") -> Path:
    """The product of a command, made unless it was made from the same files before."""
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed; tools/install-servers installs it")
    target = _target(sources, words, used, name or f"lib{sources[0].stem}.so")
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be building it
        if not target.exists():
            part = target.with_name(f"part-{target.name}")
            made = subprocess.run(
                [*words, "-o", str(part)], capture_output=True, text=True, timeout=HANG_S, check=False
            )
            assert made.returncode == 0, made.stderr
            os.replace(part, target)
    return target


def _target(sources: Sequence[Path], words: list[str], used: Path, name: str) -> Path:
    digest = hashlib.sha256(repr(words).encode())
    for file in sorted([*sources, *(one for one in used.rglob("*") if one.is_file())]):
        digest.update(file.read_bytes())
    return _BUILT / digest.hexdigest()[:16] / name
