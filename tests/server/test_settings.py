"""Settings: where they come from, which is stronger, and that every problem is told at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from myrmidon.model.errors import InvalidRequest
from myrmidon.server.settings import AllowedNetwork, PoolOrder, Quota, Settings
from myrmidon.server.settings_reader import check, read_settings

FILE = """
port = 1
public_url = "https://file.example"
log_mib = 5
allowed_hosts = ["a"]

[pools.gpu]
task_order = "lifo"

[quotas.small]
pending_tasks = 3

[[allow]]
network = "10.0.0.0/8"
name = "lab"
role = "user"
group = "default"
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "myrmidon.toml"
    path.write_text(FILE)
    return str(path)


def problems_of(*args, **given):
    with pytest.raises(InvalidRequest) as caught:
        read_settings(*args, **{"environment": {}, **given})
    return {problem.path: problem for problem in caught.value.problems}


def test_the_defaults_are_fine():
    settings = read_settings(environment={})
    assert check(settings) == []
    assert settings.database_url.startswith("sqlite:///")
    assert settings.log_database_url == f"{settings.database_url}-logs"


def test_a_file_may_set_everything(file):
    settings = read_settings(file, environment={})
    assert (settings.port, settings.log_mib, settings.allowed_hosts) == (1, 5, ["a"])
    assert settings.pools == {"gpu": PoolOrder(task_order="lifo")}
    assert settings.quota_of("small") == Quota(pending_tasks=3)
    assert settings.quota_of("other") == Quota()
    assert settings.allow == [AllowedNetwork(network="10.0.0.0/8", name="lab", role="user", group="default")]


def test_the_environment_is_stronger_than_the_file_and_flags_than_both(file):
    environment = {
        "MYRMIDON_CONFIG": file,
        "MYRMIDON_PORT": "2",
        "MYRMIDON_PUBLIC_URL": "https://environment.example",
        "MYRMIDON_ALLOWED_HOSTS": '["b", "c"]',
        "MYRMIDON_TOKEN": "for the command line",
        "MYRMIDON_TASK_ID": "of the task that starts this server",
        "OTHER": "1",
    }
    settings = read_settings(environment=environment, flags={"port": 3, "public_url": None, "sweep_s": "0.5"})
    assert (settings.port, settings.public_url, settings.log_mib) == (3, "https://environment.example", 5)
    assert (settings.allowed_hosts, settings.sweep_s) == (["b", "c"], 0.5)


def test_every_problem_of_every_place_is_told_at_once(tmp_path):
    path = tmp_path / "wrong.toml"
    path.write_text(
        'port = "no"\nnonsense = 1\nlog_level = "loud"\nproxies = ["10.0.0.300"]\n[pools.p]\ntask_order="x"\n'
    )
    environment = {"MYRMIDON_BODY_LIMIT": "1", "MYRMIDON_NOPE": "1", "MYRMIDON_LOG_MIB": "many"}
    told = problems_of(str(path), environment=environment, flags={"host": "0.0.0.0", "database": "oracle:x"})
    assert set(told) == {
        "file: port", "file: nonsense", "log_level", "proxies", "pools.p.task_order", "body_limit", "MYRMIDON_NOPE",
        "MYRMIDON_LOG_MIB", "host", "database", "log_database",
    }  # fmt: skip
    assert all(problem.allowed for problem in told.values())


def test_a_file_that_is_not_there_or_not_toml_is_told(tmp_path):
    assert set(problems_of(str(tmp_path / "none"))) == {"config"}
    (tmp_path / "odd").write_text("=")
    assert set(problems_of(str(tmp_path / "odd"))) == {"config"}


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ({"tls_certificate": "/none"}, "tls_certificate"),
        ({"tls_certificate": "/none"}, "tls_key"),
        ({"amqp": {"ca_file": "/none"}}, "amqp.ca_file"),
        ({"webhooks": {"ca_file": __file__}}, "webhooks.ca_file"),
        ({"host": "0.0.0.0"}, "host"),
        ({"host": "192.168.1.5"}, "host"),
        ({"port": 65_536}, "port"),
        ({"public_url": "swarm.example"}, "public_url"),
        ({"allow": [{"network": "x", "name": "a"}]}, "allow.network"),
        ({"allow": [{"network": "10.0.0.0/8", "name": "a", "role": "king"}]}, "allow[0].role"),
        ({"allow": [{"network": "10.0.0.0/8", "name": "a", "role": "user"}]}, "allow.group"),
        ({"allow": [{"network": "10.0.0.0/8", "name": "a", "role": "admin", "group": "lab"}]}, "allow.group"),
        ({"allow": [{"network": "10.0.0.0/8"}]}, "--allow[0].name"),
        ({"pools": {"p": {"task_order": "lifo", "ageing_s": 5}}}, "pools.p.ageing_s"),
        ({"database": "sqlite:///:memory:"}, "database"),
        ({"database": "sqlite:///"}, "database"),
        ({"tls_certificate": __file__, "tls_key": __file__}, "tls_certificate"),
        ({"public_url": "https://x y"}, "public_url"),
        ({"public_url": "https://[x"}, "public_url"),
        ({"public_url": "https://x/a b"}, "public_url"),
        ({"allowed_origins": ["https://x:port"]}, "allowed_origins"),
        ({"allowed_hosts": ["http://x.y"]}, "allowed_hosts"),
        ({"allowed_hosts": ["::1"]}, "allowed_hosts"),
        ({"default_group": ""}, "default_group"),
        ({"default_group": " x "}, "default_group"),
        ({"allow": [{"network": "10.0.0.0/8", "name": "a", "role": "user", "group": " x"}]}, "allow.group"),
        ({"quota": {"pending_tasks": -1}}, "quota.pending_tasks"),
        ({"quotas": {"g": {"pending_bytes": -1}}}, "quotas.g.pending_bytes"),
        ({"quotas": {"": {}}}, "quotas"),
        ({"pools": {"": {}}}, "pools"),
        ({"pools": {"p": {"ageing_s": 10**9}}}, "pools.p.ageing_s"),
        ({"stop_s": -1}, "stop_s"),
        ({"heartbeat_s": 1e300}, "heartbeat_s"),
        ({"dead_after_s": 10**20}, "dead_after_s"),
        (
            {"host": "0.0.0.0", "plain_http": True, "allow": [{"network": "10.0.0.0/8", "name": "a", "role": "admin"}]},
            "allowed_hosts",
        ),
    ],
)
def test_what_is_unsafe_or_contradicts_itself_is_refused(given, path):
    assert path in problems_of(flags=given)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_what_is_no_number_is_refused_wherever_a_number_stands(tmp_path, value):
    path = tmp_path / "odd.toml"
    numbers = {name for name, kind in get_type_hints(Settings).items() if kind is float}
    path.write_text("".join(f"{name} = {value}\n" for name in numbers))
    assert set(problems_of(str(path))) == numbers


def test_every_number_has_its_range():
    numbers = {name for name, kind in get_type_hints(Settings).items() if kind in (int, float)}
    given: dict[str, Any] = dict.fromkeys(numbers, 10**30)
    assert {problem.path for problem in check(Settings(**given))} == numbers


def test_addresses_with_ports_and_of_all_kinds_are_fine():
    hosts = ["a", "a.b-c.example:8910", "10.0.0.1", "[::1]", "[fe80::1]:80"]
    urls = ["https://a.example", "http://[::1]:8910/below", "https://10.0.0.1:1"]
    for url in urls:
        read_settings(environment={}, flags={"public_url": url, "allowed_hosts": hosts, "allowed_origins": urls})


@pytest.mark.parametrize("place", ["environment", "file", "flag"])
def test_what_stands_behind_an_unknown_name_is_not_shown(tmp_path, place):
    (tmp_path / "slip.toml").write_text('databse = "secret123"')
    given: dict[str, dict[str, Any]] = {
        "environment": {"environment": {"MYRMIDON_ADMIN_TOKN": "secret123"}},
        "file": {"file": str(tmp_path / "slip.toml")},
        "flag": {"flags": {"databse": "secret123"}},
    }
    (problem,) = problems_of(**given[place]).values()
    assert problem.code == "unknown"
    assert "secret123" not in str(problem)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.1.2.3"])
def test_this_machine_needs_no_tls(host):
    assert read_settings(environment={}, flags={"host": host}).is_local


def test_plain_http_for_others_must_be_said(tmp_path):
    assert read_settings(environment={}, flags={"host": "0.0.0.0", "plain_http": True}).plain_http


def test_the_rules_of_the_core_follow_the_settings():
    settings = read_settings(environment={}, flags={"dead_after_s": 7, "log_mib": 25, "retention_days": 2})
    rules = settings.rules(b"key")
    assert (rules.dead_after, rules.log_head + rules.log_tail) == (7_000_000, 25 << 20)
    assert (rules.retention, rules.secret_key) == (2 * 86_400_000_000, b"key")


def test_every_setting_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "server.md").read_text()
    documented = set(re.findall(r"`(\w+)`", text.split("## Who may do what")[0]))
    assert set(Settings.__struct_fields__) - documented == set()
