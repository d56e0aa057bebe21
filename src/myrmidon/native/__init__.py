"""What people need to write functions in C++ and Rust: C and C++ headers, and a Rust crate. No code runs from here."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent


def include_dir() -> Path:
    """The folder of ``myrmidon.h`` and ``myrmidon.hpp``."""
    return _FOLDER / "include"


def crate_dir() -> Path:
    """The folder of the Rust crate ``myrmidon``."""
    return _FOLDER / "rust" / "myrmidon"
