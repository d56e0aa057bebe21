"""Which server, with which token: and that a token found in a file goes to no other server."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import click
import pytest

from myrmidon.cli.context import find_endpoint
from myrmidon.sdk import server_discovery

NOBODY = 2**22 + 1
"""The number of no process: above the largest one."""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("MYRMIDON_SERVER", "MYRMIDON_TOKEN", "MYRMIDON_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def with_token(folder: Path, token: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "admin.token").write_text(f"{token}\n")
    return folder


def entry(server: str, data_dir: Path, pid: int) -> dict[str, Any]:
    return {"server": server, "data_dir": str(data_dir), "pid": pid, "up": True}


def test_without_anything_it_is_the_default_server_with_the_token_of_its_folder(home: Path):
    with_token(home / "data" / "myrmidon", "myr_local")
    assert (find_endpoint(None, None).server, find_endpoint(None, None).token) == ("http://127.0.0.1:8910", "myr_local")


def test_what_is_given_beats_the_environment_and_that_beats_the_rest(home: Path, monkeypatch: pytest.MonkeyPatch):
    server_discovery.write_config("https://remembered", "myr_remembered")
    assert find_endpoint(None, None).server == "https://remembered"
    monkeypatch.setenv("MYRMIDON_SERVER", "build:1234")
    monkeypatch.setenv("MYRMIDON_TOKEN", "myr_env")
    assert (find_endpoint(None, None).server, find_endpoint(None, None).token) == ("http://build:1234", "myr_env")
    place = find_endpoint("https://other/", "myr_given")
    assert (place.server, place.token, place.server_source) == ("https://other", "myr_given", "--server")


@pytest.mark.parametrize("given", ["ftp://x", "http://", ":99", "http://[::1", "http://build:99999", "build:9x"])
def test_what_is_no_address_is_refused_at_once(home: Path, given: str):
    with pytest.raises(click.UsageError, match="from --server is not a server address"):
        find_endpoint(given, None)


def test_a_server_may_have_several_addresses(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MYRMIDON_SERVER", "build:1234, https://other/,")
    place = find_endpoint(None, None)
    assert (place.server, place.addresses) == ("http://build:1234", "http://build:1234,https://other")
    with pytest.raises(click.UsageError, match="'ftp://x' from --server is not a server address"):
        find_endpoint("build:1234,ftp://x", None)


def test_a_stored_token_is_for_all_addresses_that_it_was_stored_for(home: Path):
    server_discovery.write_config("http://a,http://b", "myr_both")
    assert find_endpoint(None, None).token == "myr_both"
    assert find_endpoint("http://a,http://b", None).token == "myr_both"
    assert find_endpoint("http://a,http://c", None).token is None


def test_line_ends_from_other_systems_are_part_of_neither(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MYRMIDON_SERVER", "build:1234\r")
    monkeypatch.setenv("MYRMIDON_TOKEN", "myr_env\r\n")
    assert (find_endpoint(None, None).server, find_endpoint(None, None).token) == ("http://build:1234", "myr_env")
    assert find_endpoint(None, "myr_given\n").token == "myr_given"


def test_a_running_up_is_found_and_a_dead_one_is_not(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server_discovery, "_is_myrmidon", lambda _: True)
    folder = with_token(home / "elsewhere", "myr_up")
    server_discovery.register_local_server("http://127.0.0.1:4711", folder, up=True)
    assert (find_endpoint(None, None).server, find_endpoint(None, None).token) == ("http://127.0.0.1:4711", "myr_up")
    file = home / "config" / "myrmidon" / f"local-{os.getpid()}.json"
    assert json.loads(file.read_text())["pid"] == os.getpid()
    file.write_text(json.dumps(entry("http://127.0.0.1:4711", folder, NOBODY)))
    assert find_endpoint(None, None).server == "http://127.0.0.1:8910"


def test_a_number_that_another_program_has_now_is_not_taken_for_up(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Path, "read_bytes", lambda _: b"vi")
    server_discovery.register_local_server("http://127.0.0.1:4711", home, up=True)
    assert server_discovery.newest_local_server() == {}


def test_a_token_from_a_file_goes_only_to_the_server_it_belongs_to(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server_discovery, "_is_myrmidon", lambda _: True)
    server_discovery.register_local_server("http://127.0.0.1:4711", with_token(home / "elsewhere", "myr_up"), up=True)
    with_token(home / "data" / "myrmidon", "myr_local")
    server_discovery.write_config("https://remembered", "myr_remembered")
    assert find_endpoint("https://stranger", None).token is None
    assert find_endpoint("https://remembered", None).token == "myr_remembered"


def test_what_was_logged_in_with_beats_the_token_of_the_folder(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server_discovery, "_is_myrmidon", lambda _: True)
    folder = with_token(home / "elsewhere", "myr_admin")
    server_discovery.register_local_server("http://127.0.0.1:4711", folder, up=True)
    assert find_endpoint(None, None).token == "myr_admin"
    file = server_discovery.write_config("http://127.0.0.1:4711", "myr_ada")
    assert (find_endpoint(None, None).token, find_endpoint(None, None).token_source) == ("myr_ada", str(file))


def test_what_is_remembered_is_for_its_owner_only(home: Path):
    file = server_discovery.write_config("https://remembered", 'myr_"quoted"')
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert server_discovery.read_config() == {"server": "https://remembered", "token": 'myr_"quoted"'}


def test_the_newest_of_several_is_meant_and_the_others_are_found_when_it_has_ended(
    home: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(server_discovery, "_is_myrmidon", lambda _: True)
    first = entry("http://127.0.0.1:1", with_token(home / "a", "myr_a"), os.getppid())
    gone = entry("http://127.0.0.1:2", home, NOBODY)
    folder = home / "config" / "myrmidon"
    folder.mkdir(parents=True)
    for one in (first, gone):
        (folder / f"local-{one['pid']}.json").write_text(json.dumps(one))
        os.utime(folder / f"local-{one['pid']}.json", (1, 1))
    server_discovery.register_local_server("http://127.0.0.1:4711", with_token(home / "b", "myr_b"), up=True)
    assert find_endpoint(None, None).server == "http://127.0.0.1:4711"
    assert find_endpoint("http://127.0.0.1:1", None).token == "myr_a"
    server_discovery.unregister_local_server()
    assert (find_endpoint(None, None).server, find_endpoint(None, None).token) == ("http://127.0.0.1:1", "myr_a")
    assert [file.name for file in folder.iterdir()] == [f"local-{os.getppid()}.json"]


@pytest.mark.parametrize("name", ["localhost", "[::1]", "127.0.0.1", "LOCALHOST"])
def test_the_names_of_the_loopback_interface_are_one_server(home: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    monkeypatch.setattr(server_discovery, "_is_myrmidon", lambda _: True)
    server_discovery.register_local_server("http://127.0.0.1:4711", with_token(home / "a", "myr_a"), up=True)
    assert find_endpoint(f"http://{name}:4711/", None).token == "myr_a"
    assert find_endpoint(f"http://{name}:4712", None).token is None
    server_discovery.write_config(f"http://{name}:4711", "myr_ada")
    assert find_endpoint("http://127.0.0.1:4711", None).token == "myr_ada"


def test_a_server_that_runs_alone_is_known_but_not_used_unasked(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server_discovery, "_is_myrmidon", lambda _: True)
    server_discovery.register_local_server("http://0.0.0.0:4711", with_token(home / "a", "myr_a"), up=False)
    assert find_endpoint(None, None).server == "http://127.0.0.1:8910"
    assert find_endpoint("http://127.0.0.1:4711", None).token == "myr_a"


def test_an_unreadable_address_in_the_file_of_login_is_no_address(home: Path):
    server_discovery.write_config("http://x:99999", "myr_ada")
    assert find_endpoint("http://x:1", None).token is None
