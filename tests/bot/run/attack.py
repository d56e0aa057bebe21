"""What a hostile task tries; prints how each attempt ended, "denied" or what it got. Standard library only.

python3 attack.py '{"read": [PATH...], "readlink": [PATH...], "write": [...], "signal": [[PID, NUMBER]...], ...}'
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any


def read(path: str) -> str:
    with open(path, "rb") as file:
        if path.endswith("/mem"):
            with open(path[: -len("mem")] + "maps") as maps:
                file.seek(int(maps.readline().split("-")[0], 16))
        return file.read(4096).decode(errors="replace")


def write(path: str) -> str:
    with open(path, "ab") as file:
        file.write(b"evil")
    return "written"


def link(path: str) -> str:
    os.symlink("/etc/passwd", path)
    return "linked"


def move(paths: list[str]) -> str:
    os.rename(*paths)
    return "moved"


def remove(path: str) -> str:
    os.unlink(path)
    return "removed"


def send(target: list[int]) -> str:
    os.kill(*target)
    return "sent"


def console(path: str) -> str:
    """Connect to the bot's prompt without its key; the prompt answers those it accepts."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.sendall(b"0" * 64 + b"print('inside')\n")
        answer = connection.recv(100)
        if not answer:
            raise PermissionError("the connection was closed")
        return answer.decode()


ATTACKS: dict[str, Callable[[Any], Any]] = {
    "read": read, "readlink": os.readlink, "write": write, "link": link, "move": move, "remove": remove, "signal": send,
    "console": console,
}  # fmt: skip


def attempt(name: str, target: Any) -> str:
    try:
        return str(ATTACKS[name](target))
    except (PermissionError, ConnectionResetError):
        return "denied"
    except OSError as error:
        return f"denied with {error}" if error.errno == 18 else repr(error)  # EXDEV: by Landlock, for a rename


def main(targets: dict[str, Any]) -> None:
    results = {name: {str(target): attempt(name, target) for target in given} for name, given in targets.items()}
    print(json.dumps(results))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
