"""Which machine a shared library of Linux was built for, from the first bytes of its file (the ELF header)."""

from __future__ import annotations

import struct
import sys

NO_FILE = "no file"
NOT_A_LIBRARY = "not a library"
_MACHINES = {3: "x86", 40: "arm", 62: "x86", 183: "arm", 243: "riscv", 21: "ppc", 22: "s390", 258: "loongarch"}
_HEADER_BYTES = 20
_SHARED = 3


def problem_of(path: str) -> str:
    """Empty if this process could load the file; NO_FILE, NOT_A_LIBRARY, or the name of the machine that it is for."""
    try:
        with open(path, "rb") as file:
            header = file.read(_HEADER_BYTES)
    except FileNotFoundError:
        return NO_FILE
    except OSError:
        return NOT_A_LIBRARY
    found = _machine(header)
    if not found or header[16 if header[5] == 1 else 17] != _SHARED:
        return NOT_A_LIBRARY
    return "" if found == own() else found


def machine_of(path: str) -> str:
    """The machine of an ELF file, such as ``x86-64``, as bots name it in their dimension ``cpu``; empty: no such file.

    Raises OSError.
    """
    with open(path, "rb") as file:
        return _machine(file.read(_HEADER_BYTES))


def own() -> str:
    """The machine of this process."""
    if not _own:
        try:
            _own.append(machine_of("/proc/self/exe"))
        except OSError:
            _own.append(machine_of(sys.executable))
    return _own[0]


_own: list[str] = []


def _machine(header: bytes) -> str:
    if len(header) < _HEADER_BYTES or header[:4] != b"\x7fELF" or header[4] not in (1, 2) or header[5] not in (1, 2):
        return ""
    (number,) = struct.unpack_from("<H" if header[5] == 1 else ">H", header, 18)
    family = _MACHINES.get(number, f"machine {number}")
    return f"{family}-{32 * header[4]}{'' if header[5] == 1 else ' (big endian)'}"
