"""Starts commands as a bot does and prints what became of them: run by any interpreter of a bot.

PYTHONPATH=src python3 tests/bot/startup.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys

from myrmidon.bot.system import processes


def outcome(cwd: str, env: dict[bytes, bytes], *argv: str) -> object:
    """[exit code, output], or the number of the error that kept it from starting."""
    reader, writer = os.pipe()
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        code = processes.start_command(list(argv), env, cwd, (null, writer, writer)).wait()
    except processes.NotStarted as error:
        return error.errno
    finally:
        os.close(writer)
        os.close(null)
    with os.fdopen(reader) as file:
        return [code, file.read()]


def main(folder: str) -> None:
    env = {b"PATH": b"/nowhere:bin:/usr/bin:/bin", b"A": "ü =".encode()}
    look = "pwd; echo $A; echo $$; cut -d' ' -f5 /proc/$$/stat; grep Sig[BI] /proc/self/status; ls /proc/$$/fd"
    print(
        json.dumps(
            {
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
