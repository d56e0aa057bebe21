"""The pure parts of the file that knows operating systems, for all three; and the files it makes and removes."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from myrmidon.bot.system import clock, dimensions, filesystem, host, platforms, processes

NOBODY = 65534


@pytest.mark.parametrize(
    ("platform", "name"), [("linux", "linux"), ("darwin", "macos"), ("win32", "windows"), ("freebsd14", "linux")]
)
def test_every_platform_has_a_name(platform: str, name: str):
    assert platforms.name_of(platform) == name


def test_a_bot_refuses_to_start_where_it_cannot_kill():
    platforms.check_supported("linux")
    platforms.check_supported("macos")
    with pytest.raises(platforms.UnsupportedPlatform, match="Windows"):
        platforms.check_supported("windows")


@pytest.mark.parametrize(
    ("line", "parent"),
    [(b"12 (sh) S 7 12 12 0", 7), (b"12 (a) b (c) R 1 12 12 0", 1), (b"9 (x\n) Z) Z 44 1", 44)],
)
def test_the_parent_is_read_whatever_a_process_is_called(line: bytes, parent: int):
    assert processes.parse_stat(line) == parent


def test_the_process_table_of_mac_is_read():
    assert processes.parse_ps("    1     0\n  432     1\n  500   432\n") == {1: 0, 432: 1, 500: 432}


def test_descendants_are_found_over_all_generations_and_no_others():
    parents = {1: 0, 10: 1, 11: 10, 12: 11, 20: 1, 13: 11}
    assert processes.descendants(parents, 10) == {11, 12, 13}
    assert processes.descendants(parents, 12) == set()
    assert processes.descendants({5: 6, 6: 5}, 5) == {6}


def test_this_process_has_its_parent_in_the_table():
    assert processes.process_table()[os.getpid()] == os.getppid()


def test_a_twentieth_of_a_disk_must_be_free_but_never_more_than_a_gibibyte():
    assert filesystem.required_disk(50 << 20) == (50 << 20) // 20
    assert filesystem.required_disk(4 << 40) == 1 << 30


def test_a_lock_is_held_once(tmp_path: Path):
    first = filesystem.lock(str(tmp_path / "lock"))
    assert first is not None
    assert filesystem.lock(str(tmp_path / "lock")) is None
    os.close(first)
    again = filesystem.lock(str(tmp_path / "lock"))
    assert again is not None
    os.close(again)


def test_a_private_file_is_private_and_replaced_as_a_whole(tmp_path: Path):
    path = tmp_path / "credential"
    for content in (b"one", b"another"):
        filesystem.write_private(str(path), content)
        assert path.read_bytes() == content
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["credential"]


def test_removing_a_folder_leaves_alone_what_its_links_point_to(tmp_path: Path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("precious")
    work = tmp_path / "work"
    (work / "a").mkdir(parents=True)
    (work / "a" / "link").symlink_to(tmp_path / "outside")
    (work / "a" / "locked").mkdir()
    (work / "a" / "locked" / "file").write_text("x")
    (work / "a" / "locked").chmod(0)
    assert filesystem.remove_tree(str(work))
    assert not work.exists()
    assert (tmp_path / "outside" / "file").read_text() == "precious"


def test_a_folder_is_removed_however_deep_it_is(tmp_path: Path):
    (tmp_path / "work").mkdir()
    there = os.open(tmp_path / "work", os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("inner", dir_fd=there)
        below = os.open("inner", os.O_RDONLY, dir_fd=there)
        os.close(there)
        there = below
    os.close(there)
    assert filesystem.remove_tree(str(tmp_path / "work"))
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_folders_without_permissions_are_removed_with_all_that_they_hide(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    work = tmp_path / "work"
    (work / "a" / "b" / "c").mkdir(parents=True)
    os.chown(work, NOBODY, NOBODY)
    for folder in (work / "a" / "b" / "c", work / "a" / "b", work / "a"):
        (folder / "file").touch()
        os.chown(folder, NOBODY, NOBODY)
        folder.chmod(0)
    tmp_path.chmod(0o777)
    os.seteuid(NOBODY)
    try:
        removed = filesystem.remove_tree(os.path.relpath(work))
    finally:
        os.seteuid(0)
    assert removed
    assert not work.exists()


def test_what_is_mounted_in_a_folder_is_left_alone(tmp_path: Path):
    work, outside = tmp_path / "work", tmp_path / "outside"
    (work / "a" / "a place").mkdir(parents=True)
    outside.mkdir()
    (outside / "file").write_text("precious")
    bind = ["mount", "--bind", str(outside), str(work / "a" / "a place")]
    if subprocess.run(bind, capture_output=True, check=False).returncode != 0:
        pytest.skip("nothing can be mounted here")
    assert filesystem.remove_tree(str(work))
    assert not work.exists()
    assert (outside / "file").read_text() == "precious"


def test_mounts_are_found_by_their_whole_names():
    table = (
        b"22 1 254:0 / / rw - ext4 /dev/vda rw\n"
        b"30 22 254:0 /home /b/work/run/m rw shared:1 - ext4 /dev/vda rw\n"
        b"31 22 0:40 / /b/work/run/with\\040space rw - tmpfs tmpfs rw\n"
        b"32 22 0:41 / /b/work/runner rw - tmpfs tmpfs rw\n"
    )
    assert filesystem.mounts_below(table, b"/b/work/run") == [b"/b/work/run/m", b"/b/work/run/with space"]


def test_a_link_in_place_of_the_folder_is_removed_itself(tmp_path: Path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "work").symlink_to(tmp_path / "outside")
    assert filesystem.remove_tree(str(tmp_path / "work"))
    assert (tmp_path / "outside").is_dir()


def test_the_clock_goes_on_and_the_boot_has_an_id():
    assert clock.boottime() <= clock.boottime()
    assert host.boot_id() == host.boot_id() != ""


@pytest.mark.parametrize(
    ("name", "release", "version", "found"),
    [
        ("linux", {"ID": "debian", "VERSION_ID": "12"}, "6.1", ["Linux", "Debian", "Debian-12"]),
        ("linux", {"ID": "ubuntu", "VERSION_ID": "22.04"}, "6.1", ["Linux", "Ubuntu", "Ubuntu-22", "Ubuntu-22.04"]),
        ("linux", {}, "6.1", ["Linux"]),
        ("macos", {"VERSION_ID": "14.5"}, "23.5", ["Mac", "Mac-14", "Mac-14.5"]),
        ("windows", {}, "10", ["Windows", "Windows-10"]),
    ],
)
def test_an_operating_system_is_told_from_the_general_to_the_special(name, release, version, found):
    assert dimensions.operating_system(name, release, version) == found


@pytest.mark.parametrize(
    ("machine", "wide", "found"),
    [
        ("x86_64", True, ["x86", "x86-64"]),
        ("AMD64", True, ["x86", "x86-64"]),
        ("i686", False, ["x86", "x86-32"]),
        ("aarch64", True, ["arm", "arm-64"]),
        ("riscv64", True, ["riscv64", "riscv64-64"]),
    ],
)
def test_a_cpu_is_told_by_family_and_width(machine, wide, found):
    assert dimensions.cpu(machine, wide) == found


def test_given_dimensions_win_but_for_the_id():
    found = dimensions.dimensions("b1", "lab", {"os": ["Mine"], "id": ["other"], "device": ["a", "a", "b"]})
    assert (found["id"], found["pool"], found["os"], found["device"]) == (["b1"], ["lab"], ["Mine"], ["a", "b"])
    assert {"id", "pool", "os", "cpu", "cores", "gpu", "python", "locale", "kernel", "device"} <= set(found)
    assert "caches" not in found


def test_the_release_file_is_read_like_a_shell_would():
    text = "NAME=\"Debian GNU/Linux\"\n# comment=1\nID=debian\nVERSION_ID='12'\n"
    assert dimensions.parse_release(text) == {"NAME": "Debian GNU/Linux", "ID": "debian", "VERSION_ID": "12"}
