"""What the README tells a newcomer to type works as it stands."""

from __future__ import annotations

import re
import subprocess
import sys

from myrmidon.cli.main import myrmidon
from tests.architecture import source
from tests.cli.conftest import Up
from tests.cli.test_parsing import every_command
from tests.deadline import HANG_S

README = (source.ROOT / "README.md").read_text()


def block(heading: str) -> str:
    """The first indented block under a heading."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found = re.search(r"(?:^    .*\n)+", section, re.MULTILINE)
    assert found, heading
    return found[0]


def test_the_first_task_in_five_lines(up: Up):
    lines = block("The first task in five lines")
    assert len(lines.splitlines()) == 5
    shell = f'myrmidon() {{ "{sys.executable}" -m myrmidon "$@"; echo "= $?" >&2; }}\n{lines}'
    done = subprocess.run(
        ["bash", "-c", shell], env=up.terminal.env, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert done.stdout.startswith("hello from ")
    assert re.findall(r"^= (\d+)$", done.stderr, re.MULTILINE) == ["3", "0", "0", "0", "125"]


def test_the_readme_names_only_commands_and_options_that_exist():
    known = {" ".join(words): command for words, command in every_command(myrmidon)}
    typed = re.findall(r"\bmyrmidon ([a-z][a-z-]*)(?: ([a-z]+))?([^\n`]*)", "\n".join(quoted()))
    assert len(typed) > 15
    for first, second, rest in typed:
        path = f"{first} {second}" if f"{first} {second}" in known else first
        assert path in known
        options = {name for option in known[path].params for name in (*option.opts, *option.secondary_opts)}
        ours = re.split(r" -- | # | \|", rest)[0]
        assert set(re.findall(r"(?<=\s)--?[a-z][a-z-]*", ours)) <= {*options, "--help"}, (path, ours)


def test_every_command_is_documented():
    pages = "\n".join([README, *(page.read_text() for page in sorted((source.ROOT / "docs").glob("*.md")))])
    names = [" ".join(words) for words, _ in every_command(myrmidon) if words]
    assert [name for name in names if not re.search(rf"(myrmidon |`){re.escape(name)}\b", pages)] == []


def quoted() -> list[str]:
    """What the README shows as something to type."""
    return re.findall(r"^    .*|`myrmidon [^`]*`", README, re.MULTILINE)
