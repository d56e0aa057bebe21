"""Exit codes of commands as people see them; the API shows -n for a command that signal n ended."""

from __future__ import annotations


def as_in_a_shell(exit_code: int) -> int:
    """The exit code as a shell shows it: 128 + n for a command that signal n ended."""
    return 128 - exit_code if exit_code < 0 else exit_code


def exit_code_text(exit_code: int) -> str:
    """``exit code 2``, or ``exit code 143, signal 15``."""
    signal = f", signal {-exit_code}" if exit_code < 0 else ""
    return f"exit code {as_in_a_shell(exit_code)}{signal}"
