"""Starts commands in one of the bot's two ways and prints what became of them: run by any interpreter of a bot.

PYTHONPATH=src python3 tests/bot/startup.py fork_exec|spawn FOLDER
"""

from __future__ import annotations

import json
import os
import sys

from myrmidon.bot.system import host


def outcome(cwd: str, env: list[bytes], *argv: str) -> object:
    """[exit code, output], or the number of the error that kept it from starting."""
    reader, writer = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        code = host.reap(host.start(list(argv), env, cwd, (null, writer, writer)))
    except host.NotStarted as error:
        return error.errno
    finally:
        os.close(writer)
        os.close(null)
    with os.fdopen(reader) as file:
        return [code, file.read()]


def main(way: str, folder: str) -> None:
    host._start = getattr(host, f"_{way}")
    env = [b"PATH=/nowhere:bin:/usr/bin:/bin", "A=ü =".encode()]
    look = "pwd; echo $A; echo $$; cut -d' ' -f5 /proc/$$/stat; grep Sig[BI] /proc/self/status; ls /proc/$$/fd"
    print(
        json.dumps(
            {
                "is_known": host._KNOWN,
                "missing": outcome(folder, env, "/no/such"),
                "around": outcome(folder, env, "/bin/sh", "-c", look),
                "missing by name": outcome(folder, env, "no-such"),
                "by name": outcome(folder, env, "tool", "x"),
                "refused by name": outcome(folder, env, "plain"),
                "beside": outcome(folder, env, "./bin/tool", "y"),
                "refused": outcome(folder, env, "./bin/plain"),
                "no program": outcome(folder, env, "./bin/text"),
                "no folder": outcome(f"{folder}/gone", env, "/bin/true"),
                "255": outcome(folder, env, "/bin/sh", "-c", "exit 255"),
                "by a signal": outcome(folder, env, "/bin/sh", "-c", "kill -9 $$"),
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
