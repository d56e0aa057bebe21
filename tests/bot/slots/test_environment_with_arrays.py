"""A package with extension modules from the index of this machine: its arrays are values of functions."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from myrmidon import Client
from tests.bot.slots.packages import installers
from tests.bot.test_live import live_bot
from tests.live import live_server

pytestmark = pytest.mark.full

ARRAYS = """
    import numpy
    from myrmidon import task

    @task(requirements=["numpy"])
    def doubled(values: numpy.ndarray) -> numpy.ndarray:
        return values * 2

    @task(requirements=["numpy"])
    def version(values: numpy.ndarray) -> str:
        return numpy.__file__
"""


def test_arrays_of_a_package_of_the_environment_are_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    numpy = pytest.importorskip("numpy")
    wanted = f"numpy=={numpy.__version__}"
    download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", wanted]
    if subprocess.run([*download, "-d", str(tmp_path / "packages")], capture_output=True, check=False).returncode:
        pytest.skip("there is no index with numpy")
    (tmp_path / "functions_of_arrays.py").write_text(dedent(ARRAYS))
    monkeypatch.syspath_prepend(str(tmp_path))
    arrays = importlib.import_module("functions_of_arrays")
    for name, value in installers(tmp_path / "packages", uv=True).items():
        monkeypatch.setenv(name, value)
    with (
        live_server() as server,
        live_bot(server, tmp_path / "bots" / "b1", "default", "--slots", "1"),
        Client(server.url, server.token) as client,
    ):
        given = numpy.arange(5000.0)
        assert (client.submit(arrays.doubled, given).result() == given * 2).all()
        assert "/myrmidon-environments/" in client.submit(arrays.version, given).result()
