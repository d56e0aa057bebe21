"""The examples and the programs of docs/native.md are built and run as they are, and the command line helps with it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from myrmidon import Client
from tests.deadline import HANG_S
from tests.live import LiveServer
from tests.native import building
from tests.native.building import ROOT, SOURCES

MYRMIDON = f"{sys.executable} -m myrmidon"


def run(folder: Path, *words: str, server: LiveServer | None = None) -> str:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    if server is not None:
        env |= {"MYRMIDON_SERVER": server.url, "MYRMIDON_TOKEN": server.token}
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
def test_the_cpp_example_is_built_by_its_makefile_and_counts_words(server: LiveServer, client: Client, tmp_path: Path):
    folder = shutil.copytree(ROOT / "examples" / "native-cpp", tmp_path / "example")
    run(folder, "make", f"MYRMIDON={MYRMIDON}", "CXXFLAGS=-O0 -Wall -Werror")
    (folder / "a.txt").write_text("the cat and the dog")
    (folder / "b.txt").write_text("the bird")
    out = run(folder, sys.executable, "count.py", "a.txt", "b.txt", server=server)
    assert out.splitlines() == ["7 words, the longest is bird", "3 the", "1 and", "1 bird"]


@pytest.mark.full
def test_the_rust_example_finds_primes(server: LiveServer, client: Client):
    folder = ROOT / "examples" / "native-rust"
    library = building.rust(folder / "src" / "lib.rs", "libprimes.so")
    out = run(folder, sys.executable, "primes.py", str(library), "5000", server=server)
    assert out == "669 primes up to 5000, the largest is 4999\n"


def blocks(language: str) -> list[str]:
    text = (ROOT / "docs" / "native.md").read_text()
    return [part.split("```", 1)[0] for part in text.split(f"```{language}\n")[1:]]


@pytest.mark.full
def test_the_tutorial_works_as_it_is_written(server: LiveServer, client: Client, tmp_path: Path):
    (tmp_path / "count.cpp").write_text(blocks("cpp")[0])
    (tmp_path / "count.py").write_text(blocks("python")[0])
    command = next(line.strip() for line in (ROOT / "docs" / "native.md").read_text().splitlines() if "g++ " in line)
    run(tmp_path, "sh", "-c", command.replace("myrmidon native", f"{MYRMIDON} native"))
    assert run(tmp_path, sys.executable, "count.py", server=server) == "{'a': 2, 'b': 1}\n"


@pytest.mark.full
def test_every_block_of_the_documentation_compiles():
    for block in blocks("rust"):
        building.rust(building.source(f"#![allow(dead_code)]\n{block}", "rs"))
    for block in blocks("cpp"):
        building.cpp(building.source(block, "cpp"), "-O0")


def cli(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "myrmidon", "native", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)


def test_the_command_line_prints_where_the_headers_and_the_crate_are():
    assert (Path(cli("include-dir").stdout.strip()) / "myrmidon.h").is_file()
    assert (Path(cli("crate-dir").stdout.strip()) / "Cargo.toml").is_file()


def test_the_command_line_lists_the_functions_of_a_library(tmp_path: Path):
    sums = building.cpp(SOURCES / "sums.cpp")
    assert cli("functions", str(sums)).stdout == "add(a:int64,b:int64)->int64\n"
    assert json.loads(cli("functions", str(sums), "--json").stdout) == {"add": "(a:int64,b:int64)->int64"}
    (tmp_path / "libbad.so").write_text("no")
    refused = cli("functions", str(tmp_path / "libbad.so"))
    assert refused.returncode == 1
    assert refused.stderr.startswith("error: libbad.so is not a shared library; build it with g++ -shared")
    assert refused.stderr.endswith("(NotALibrary)\n")
    assert "LibraryNotFound" in cli("functions", "liblost.so").stderr


@pytest.mark.parametrize("path", ["include/myrmidon.h", "include/myrmidon.hpp", "rust/myrmidon/src/lib.rs"])
def test_headers_and_crate_are_files_of_the_package(path: str):
    assert (ROOT / "src" / "myrmidon" / "native" / path).is_file()
