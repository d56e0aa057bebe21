"""What is read about machines, from texts of all three systems."""

from __future__ import annotations

import json
import os
import plistlib
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from myrmidon.bot.machine import health, settings
from myrmidon.bot.machine.named_caches import NamedCaches
from myrmidon.bot.system import dimensions, facts, filesystem, host
from tests.deadline import HANG_S


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor : 0\nmodel name\t: Intel(R) Xeon(R) CPU E5-2690 v4 @ 2.60GHz\n", "Intel_Xeon_E5-2690_v4"),
        ("model name : AMD EPYC 7B13 64-Core Processor\n", "AMD_EPYC_7B13"),
        ("processor : 0\nHardware\t: BCM2835\n", "BCM2835"),
        ("nothing here", ""),
    ],
)
def test_a_processor_has_a_short_name(text: str, name: str):
    assert facts.short_processor(facts.parse_cpuinfo(text)) == name


def test_processors_of_mac_and_windows_have_short_names():
    assert facts.short_processor("Apple M2 Pro") == "Apple_M2_Pro"
    told = "Intel64 Family 6 Model 85 Stepping 7, GenuineIntel"
    assert facts.short_processor(told) == "Intel64_Family_6_Model_85_Stepping_7_GenuineIntel"


def test_graphics_cards_of_windows_are_read():
    text = "PCI\\VEN_10DE&DEV_1CB3&SUBSYS_11BE10DE PCI\\VEN_8086&DEV_591B"
    assert facts.parse_pnp(text) == [("10de", "1cb3"), ("8086", "591b")]
    assert facts.parse_pnp("ROOT\\BasicDisplay") == []


def test_graphics_cards_of_macs_are_read():
    cards = [
        {"spdisplays_vendor": "sppci_vendor_intel (0x8086)", "spdisplays_device-id": "0x3e9b"},
        {"spdisplays_vendor": "sppci_vendor_Apple"},
        {"spdisplays_vendor": "AMD (0x1002)", "spdisplays_device-id": "0x67EF"},
    ]
    found = facts.parse_mac_graphics(plistlib.dumps([{"_items": cards}]))
    assert found == [("8086", "3e9b"), ("apple", "0000"), ("1002", "67ef")]
    assert facts.parse_mac_graphics(b"rubbish") == []


def test_what_windows_tells_as_json_is_read():
    assert facts.parse_windows('{"Model": "X1", "Memory": 17179869184, "Video": []}')["Memory"] == 16 << 30
    assert facts.parse_windows("") == facts.parse_windows("[]") == {}


def test_disks_are_found_where_they_are_mounted_and_once():
    text = (
        "/dev/sda1 / ext4 rw 0 0\nproc /proc proc rw 0 0\n/dev/sda1 /again ext4 rw 0 0\n"
        "/dev/sdb1 /my\\040disk ext4 rw 0 0\n/dev/loop3 /snap/x squashfs ro 0 0\n\n"
    )
    assert facts.parse_mounts(text) == ["/", "/my disk"]


def test_the_time_since_the_start_of_a_mac_is_read():
    assert facts.parse_boottime("{ sec = 1700000000, usec = 12 } Tue Nov 14 22:13:20 2023", 1700000100.0) == 100.0
    assert facts.parse_boottime("rubbish", 5.0) == 0.0


@pytest.mark.parametrize(("name", "is_disk"), [("sda", True), ("nvme0n1", True), ("loop0", False), ("zram0", False)])
def test_a_disk_is_told_from_what_only_looks_like_one(name: str, is_disk: bool):
    assert facts.is_disk(name) is is_disk


def test_a_container_is_recognised(tmp_path: Path):
    root = f"{tmp_path}/"
    assert not facts.inside_container(root)
    (tmp_path / "proc" / "1").mkdir(parents=True)
    (tmp_path / "proc" / "1" / "cgroup").write_text("0::/kubepods/besteffort/pod1\n")
    assert facts.inside_container(root)
    (tmp_path / "proc" / "1" / "cgroup").write_text("0::/init.scope\n")
    (tmp_path / ".dockerenv").touch()
    assert facts.inside_container(root)


def test_graphics_of_linux_are_found_by_their_class(tmp_path: Path):
    for name, kind in (("a", "0x030000"), ("b", "0x020000")):
        (tmp_path / name).mkdir()
        for file, text in (("class", kind), ("vendor", "0x10de"), ("device", "0x1cb3")):
            (tmp_path / name / file).write_text(text + "\n")
    assert facts._linux_graphics(str(tmp_path)) == [("10de", "1cb3")]
    assert facts._linux_graphics(str(tmp_path / "missing")) == []


def test_this_machine_tells_everything_that_is_promised(tmp_path: Path):
    host = dimensions.host()
    promised = {"os", "cpu", "cores", "gpu", "python", "locale", "kvm", "inside_docker", "kernel", "display", "gce"}
    assert promised <= set(host)
    shown = dimensions.state(str(tmp_path), 1.0, {"ccache": 5})
    promised = {
        "disks", "ram", "ip", "uptime", "running_time", "started_ts", "temp", "cost_usd_hour", "env", "named_caches",
        "user", "pid", "reboot_required",
    }  # fmt: skip
    assert promised <= set(shown)
    assert shown["named_caches"] == {"ccache": 5}
    assert shown["python"]["version"] in host["python"]
    assert f"pytest=={pytest.__version__}" in shown["python"]["packages"]
    assert shown["ram"] > 1 << 20
    assert shown["disks"]["/"]["size"] > 1 << 20
    assert dimensions.state(str(tmp_path), 1.0, {}, 0.25)["cost_usd_hour"] == 0.25


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("pip-24.0.dist-info", "pip==24.0"),
        ("zope.interface-5.5.2-py3.11.egg-info", "zope.interface==5.5.2"),
        ("PyYAML-6.0+local.dist-info", "PyYAML==6.0+local"),
        ("pip", ""),
        ("no-version-at-all.txt", ""),
    ],
)
def test_packages_are_read_from_the_names_of_folders(name: str, package: str):
    assert facts.parse_package(name) == package


def test_what_the_cloud_tells_becomes_dimensions(monkeypatch: pytest.MonkeyPatch):
    told = {
        "zone": "projects/1/zones/us-central1-a", "image": "projects/p/global/images/debian-12",
        "machineType": "projects/1/machineTypes/n2-standard-4",
    }  # fmt: skip
    asked: list[tuple[str, str | None]] = []

    class Cloud(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append((self.path, self.headers["Metadata-Flavor"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(told).encode())

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Cloud) as cloud:
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{cloud.server_port}")
        monkeypatch.setattr(facts, "is_gce", lambda: True)
        serving = threading.Thread(target=cloud.handle_request, daemon=True)
        serving.start()
        facts.gce.cache_clear()
        host = dimensions.host()
        facts.gce.cache_clear()
        serving.join(HANG_S)
    assert (host["gce"], host["image"], host["machine_type"]) == (["1"], ["debian-12"], ["n2-standard-4"])
    assert host["zone"] == ["us", "us-central1", "us-central1-a"]
    assert asked == [("/computeMetadata/v1/instance/?recursive=true", "Google")]


def test_outside_the_cloud_nobody_is_asked(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(facts, "is_gce", lambda: False)
    monkeypatch.setattr(facts, "_read_gce_metadata", lambda _: pytest.fail("it was asked"))
    facts.gce.cache_clear()
    assert facts.gce() == {}
    assert facts.parse_gce({}) == {}


def test_the_environment_that_is_shown_holds_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MYRMIDON_BOT_TOKEN", "secret-token")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-token")
    monkeypatch.setenv("DOCKER_HOST_HOSTNAME", "iron")
    shown = dimensions.state(str(tmp_path), 1.0, {})
    assert "secret-token" not in str(shown)
    assert shown["docker_host_hostname"] == "iron"


def test_a_bot_of_a_device_offers_the_device_and_no_host():
    found = dimensions.dimensions("host--1", "lab", {"device_type": ["bullhead"], "os": ["Android"]}, ["ccache"])
    assert found == {
        "id": ["host--1"], "pool": ["lab"], "device_type": ["bullhead"], "os": ["Android"], "caches": ["ccache"]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "is_root", "words"),
    [
        ("linux", True, ["/sbin/shutdown", "-r", "now"]),
        ("macos", False, ["sudo", "-n", "/sbin/shutdown", "-r", "now"]),
        ("windows", False, ["shutdown", "/r", "/f", "/t", "1"]),
    ],
)
def test_each_system_has_its_way_to_reboot(name: str, is_root: bool, words: list[str]):
    assert host.reboot_command(name, is_root=is_root) == words


def test_bots_of_one_machine_see_each_other_while_they_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MYRMIDON_BOT_HOST_DIR", str(tmp_path / "host"))
    assert host.other_bots("/bots/1") == []
    first = host.register_bot("/bots/1")
    second = host.register_bot("/bots/2")
    assert first is not None
    assert second is not None
    (tmp_path / "host" / "link").symlink_to("/etc/passwd")
    assert (host.other_bots("/bots/1"), host.other_bots("/bots/3")) == (["/bots/2"], ["/bots/1", "/bots/2"])
    os.close(second)
    assert host.other_bots("/bots/1") == []
    host.unregister_bot("/bots/1")
    host.unregister_bot("/bots/1")
    assert len(os.listdir(tmp_path / "host")) == 2  # the link, and what the other one has left behind
    os.close(first)
    assert stat_mode(tmp_path / "host") == 0o1777


def test_bots_in_containers_see_each_other_although_their_folders_have_the_same_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each sees its own folder as /bot; here by a link that leads elsewhere for each of them."""
    monkeypatch.setenv("MYRMIDON_BOT_HOST_DIR", str(tmp_path / "host"))
    bot = tmp_path / "bot"
    held = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        bot.unlink(missing_ok=True)
        bot.symlink_to(tmp_path / name)
        held.append(host.register_bot(str(bot)))
    assert None not in held
    assert host.other_bots(str(bot)) == [str(bot)]  # the other one
    for handle in held:
        os.close(handle or 0)


def stat_mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


def test_a_machine_that_cannot_tell_announces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MYRMIDON_BOT_HOST_DIR", str(tmp_path / "file"))
    assert host.register_bot("/bots/1") is None


# ---------------------------------------------------------------- health


def test_a_temporary_folder_that_fills_up_or_cannot_be_read_is_an_illness(tmp_path: Path):
    for number in range(5):
        (tmp_path / str(number)).touch()
    assert health.temp_problem(str(tmp_path), 5) is None
    assert "more than 4" in (health.temp_problem(str(tmp_path), 4) or "")
    assert "cannot be read" in (health.temp_problem(str(tmp_path / "missing"), 4) or "")


def test_short_of_disk_the_oldest_caches_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    caches = NamedCaches(str(tmp_path / "c"))
    for at, name in enumerate(["a", "b"]):
        caches.install("team", name, str(tmp_path / "x"))
        (tmp_path / "x" / "file").write_text("x")
        caches.put_back("team", name, str(tmp_path / "x"), now=1e9 + at)
    caches.rules = {**caches.rules, "age_s": 1e12}
    disk = [(5 << 30, 100 << 30), (20 << 30, 100 << 30)]
    monkeypatch.setattr(filesystem, "free_disk", lambda _: disk[len(caches.entries) < 2])
    assert health.disk_problem(str(tmp_path), settings.DEFAULTS, lambda: bool(caches.trim())) is None
    assert caches.names() == ["b"]
    disk = [(5 << 30, 100 << 30)] * 2
    said = health.disk_problem(str(tmp_path), settings.DEFAULTS, lambda: bool(caches.trim())) or ""
    assert "less than 7168 of 102400 MiB are free" in said
    assert caches.names() == []


def test_the_disk_of_the_system_counts_when_it_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(filesystem, "free_disk", lambda _: (5 << 30, 100 << 30))
    assert "the root disk" in (health.other_problem("/proc", settings.DEFAULTS) or "")
