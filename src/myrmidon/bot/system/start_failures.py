"""Describes commands that could not be started, those too that were written for a shell."""

from __future__ import annotations

import errno
import os
import re
import shlex

_SHELL_CHARACTERS = re.compile(r"[\s|&;<>$`*?(){}\"'\\]")
_SHELL_WORDS = frozenset({"|", "||", "&&", ";", ">", ">>", "<", "2>&1"})
_BUILTINS = frozenset({"cd", "export", "source", ".", "ulimit", "umask", "alias", "unset", "eval", "set"})
_MAX_SHOWN = 200


def describe_start_failure(argv: list[str], error: OSError) -> str:
    """Why a command could not be started, and how to write it if it is meant for a shell or for another folder."""
    text = f"{shlex.quote(argv[0])} could not be started: {error.strerror}"
    if error.errno != errno.ENOENT:
        return text
    is_line = len(argv) == 1 and _SHELL_CHARACTERS.search(argv[0])
    if is_line or argv[0] in _BUILTINS or _SHELL_WORDS.intersection(argv):
        line = shlex.quote(" ".join(argv)) if sum(map(len, argv)) < _MAX_SHOWN else "'...'"
        return f"{text}. A command is a program and its arguments; for a shell write: sh -c {line}"
    if os.sep in argv[0] and not os.path.isabs(argv[0]):
        return f"{text}. A command starts in a new folder of its own; write an absolute path"
    return text
