"""Starting is quick, and the parts keep to themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from myrmidon.cli.main import myrmidon
from myrmidon.sdk import errors
from tests.architecture import source
from tests.cli.terminal import Terminal
from tests.cli.test_parsing import every_command

HEAVY = ("rich", "urllib3", "msgspec", "myrmidon.server", "myrmidon.store", "myrmidon.scheduler", "myrmidon.model")
MANY = 200
"""Modules; `--help` needs half of them, and most are the interpreter's own and click's."""


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["help", "exit-codes"], ["task"]])
def test_help_imports_nothing_heavy(words: list[str]):
    program = (
        "import sys\nfrom myrmidon.cli.main import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print('\\0', *sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    loaded = done.stderr.split("\0")[1].split()
    assert [name for name in loaded if name.startswith(HEAVY)] == []
    assert len(loaded) < MANY, "each of them takes its time"


PROMISED = (
    "up", "server", "bot start", "run", "trigger", "collect", "tasks", "task show", "task log", "task why",
    "task cancel", "task rerun", "task reproduce", "bots", "bot show", "bot drain", "bot quarantine", "bot terminate",
    "bot delete", "queues", "servers", "token create", "token list", "token revoke", "config check", "doctor",
)  # fmt: skip


def test_every_command_that_is_promised_exists_and_speaks_json():
    known = {" ".join(words): command for words, command in every_command(myrmidon)}
    assert [name for name in PROMISED if name not in known] == []
    without = [name for name in PROMISED if not any("--json" in option.opts for option in known[name].params)]
    assert without == ["server"], "which says nothing but its log, and that is JSON"


def test_every_command_but_those_that_the_readme_names_speaks_json():
    leaves = [(words, one) for words, one in every_command(myrmidon) if not isinstance(one, click.Group)]
    without = {" ".join(words) for words, one in leaves if not any("--json" in option.opts for option in one.params)}
    assert without == {"server", "help", "completion", "native include-dir", "native crate-dir"}


def test_every_code_of_a_failed_call_is_documented():
    page = (source.ROOT / "docs" / "errors.md").read_text()
    kinds = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.CallFailed)]
    assert [code for code in (*(kind.code for kind in kinds), "usage", "failed") if f"`{code}`" not in page] == []


def test_an_unknown_command_gets_a_suggestion(tmp_path: Path):
    done = Terminal(tmp_path).run("colect")
    assert done.returncode == 2
    assert "Did you mean 'collect'?" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed_and_complete(shell: str, tmp_path: Path):
    assert "_MYRMIDON_COMPLETE" in Terminal(tmp_path).ok("completion", shell)


def test_completion_completes(tmp_path: Path):
    asked = {"_MYRMIDON_COMPLETE": "bash_complete", "COMP_WORDS": "myrmidon ta", "COMP_CWORD": "1"}
    done = Terminal(tmp_path).run(**asked)
    assert done.stdout.split() == ["plain,task", "plain,tasks"]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("myrmidon bot de", ["plain,delete"]),
        ("myrmidon bot --dir x --po", ["plain,--pool"]),
        ("myrmidon up --data-dir x", ["file,x"]),
        ("myrmidon nonsense x", []),
    ],
)
def test_commands_of_a_bot_and_paths_are_completed(tmp_path: Path, typed: str, found: list[str]):
    asked = {"_MYRMIDON_COMPLETE": "bash_complete", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = Terminal(tmp_path).run(**asked)
    assert (done.stdout.split(), done.stderr) == (found, "")


def test_a_real_bash_completes(tmp_path: Path):
    """With the line that the README tells people to put into their shell."""
    typed = "COMP_WORDS=(myrmidon task ca) COMP_CWORD=2; _myrmidon_completion myrmidon; echo ${COMPREPLY[@]}"
    script = f'eval "$(myrmidon completion bash)"; {typed}'
    terminal = Terminal(tmp_path, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    done = subprocess.run(["bash", "-c", script], env=terminal.env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["cancel"], done.stderr


def test_no_server_is_told_with_what_to_do(tmp_path: Path):
    terminal = Terminal(tmp_path, MYRMIDON_SERVER="http://127.0.0.1:9")
    done = terminal.run("tasks")
    assert done.returncode == 69
    assert "No server answers at http://127.0.0.1:9 (connection refused)" in done.stderr
    assert "next: start one with `myrmidon up`" in done.stderr
