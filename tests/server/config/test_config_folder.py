"""The settings folder: what it may say, what is chosen by it, and that everything wrong with it is told at once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from myrmidon.model.errors import InvalidRequest
from myrmidon.model.task_to_run import Order
from myrmidon.server.config.config_folder import (
    NO_CONFIG,
    NO_GROUP,
    build_config,
    check_folder,
    fingerprint,
    read_folder,
    version_of,
)
from tests.architecture import source

BOTS = """
trusted = ["rack"]

[[group]]
name = "lab"
bots = ["vm{1..3}", "printer--2"]
prefixes = ["lab-"]
dimensions = { pool = ["lab"], zone = ["eu", "de"] }
owners = ["ann@example.org"]
script = "lab.py"
settings = { caches = { items = 20 } }

[[group]]
name = "printers"
bots = ["printer"]

[[group]]
name = "others"
default = true
"""
SCRIPT = "def on_handshake(bot):\n    pass\n"


def groups(text: str = BOTS, **scripts: str) -> Any:
    return build_config({"bots.toml": text, "scripts/lab.py": SCRIPT, **scripts})


def problems_of(**files: str) -> list[str]:
    with pytest.raises(InvalidRequest) as caught:
        build_config({name.replace("__", "/").replace("_toml", ".toml"): text for name, text in files.items()})
    return [f"{one.path} {one.code}" for one in caught.value.problems]


@pytest.mark.parametrize(
    ("bot_id", "group"),
    [
        ("vm1", "lab"),
        ("vm3", "lab"),
        ("vm4", "others"),
        ("vm2--7", "lab"),
        ("printer", "printers"),
        ("printer--1", "printers"),
        ("printer--2", "lab"),
        ("lab-9", "lab"),
        ("lab", "others"),
    ],
)
def test_a_group_is_chosen_by_id_then_by_host_then_by_prefix_then_by_default(bot_id, group):
    assert groups().group_config(bot_id).group == group


def test_the_files_of_the_page_about_fleets_are_valid(tmp_path):
    text = (source.ROOT / "docs" / "fleet.md").read_text()
    bots, pools = re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "lab.py").write_text("")
    (tmp_path / "bots.toml").write_text(bots)
    (tmp_path / "pools.toml").write_text(pools)
    assert check_folder(tmp_path) == []


def test_without_a_default_group_a_stranger_is_in_none():
    config = groups('[[group]]\nname = "a"\nbots = ["one"]\n')
    assert config.group_config("two") is None
    assert config.config_version_of("two") == NO_GROUP, "so that it restarts and is refused"


def test_without_bots_toml_every_bot_is_given_nothing():
    for config in (NO_CONFIG, build_config({})):
        given: Any = config.group_config("any")
        assert (given.version, given.dimensions, given.script) == ("", {}, None)
        assert given.apply({"os": ["Linux"]}) == {"os": ["Linux"]}


def test_forced_dimensions_replace_a_bots_own_and_trusted_ones_never_come_from_it():
    own = {"id": ["vm1"], "pool": ["mine"], "os": ["Linux"], "rack": ["7"]}
    has = groups().group_config("vm1").apply(own)
    assert has == {"id": ["vm1"], "pool": ["lab"], "os": ["Linux"], "zone": ["de", "eu"]}
    assert own["pool"] == ["mine"]


def test_what_a_bot_is_given_has_a_name_that_changes_only_with_it():
    one, same = groups().config_version_of("vm1"), groups(BOTS.replace("ann@", "bob@")).config_version_of("vm2")
    assert one == same != ""
    for other in (
        groups(BOTS.replace("20", "21")),
        groups(BOTS.replace("eu", "us")),
        groups(**{"scripts/lab.py": SCRIPT + "#"}),
    ):
        assert other.config_version_of("vm1") not in (one, "")
    assert groups('[[group]]\nname = "all"\ndefault = true\n').config_version_of("vm1") == ""


def test_numbers_of_a_range_keep_their_width():
    config = groups('[[group]]\nname = "a"\nbots = ["r{01..10}-{a}"]\n'.replace("-{a}", "-{1..2}"))
    assert config.group_config("r09-2").group == "a"
    assert config.group_config("r9-2") is None


def test_every_problem_of_bots_toml_is_told_with_its_place():
    text = """
    trusted = ["id"]
    asleep = "very"
    colour = "red"
    [[group]]
    name = "a"
    bots = ["vm{3..1}", "x", "huge{1..999999999}", "odd{1..}"]
    prefixes = ["ab", "abc", "b"]
    default = true
    [[group]]
    name = "a"
    bots = ["x", "y "]
    default = true
    dimensions = { id = ["z"], os = "Linux" }
    script = "../evil.py"
    [[group]]
    name = "c"
    script = "missing.py"
    """
    told = problems_of(bots_toml=text)
    assert sorted(told) == sorted(
        [
            "bots.toml: colour unknown",
            "bots.toml: trusted contradiction",
            "bots.toml: asleep type",
            "bots.toml: group[0].bots[0] range",
            "bots.toml: group[0].bots[2] range",
            "bots.toml: group[0].bots[3] syntax",
            "bots.toml: group[1].dimensions.id contradiction",
            "bots.toml: group[1].dimensions.os type",
            "bots.toml: group[1].script pattern",
            "bots.toml: group[2].script unknown",
            "bots.toml: group[2] missing",
            "bots.toml: group[1].name duplicate",
            "bots.toml: group[1].bots duplicate",
            "bots.toml: group[1].bots[1] pattern",
            "bots.toml: group[0].prefixes[1] overlap",
            "bots.toml: group[1].default duplicate",
        ]
    )


POOLS = """
[pool.ci]
task_order = "fifo"
ageing_s = 60
default_expiration_s = 120
roles = ["user"]
groups = ["ci"]
urgent = ["release"]
template = "base"
canary_template = "next"
canary_chance = 5000

[pool.plain]

[template.base]
include = ["proxies"]
env.LANG = "C"
env.CC = { value = "clang", soft = true }
caches = [{ name = "git", path = "cache/git" }]

[template.proxies]
env.PROXY = "http://proxy"

[template.next]
"""


def test_pools_have_their_order_their_people_and_their_templates():
    pools = build_config({"pools.toml": POOLS}).pools
    ci: Any = pools.policies["ci"]
    assert (ci.order, ci.default_expiration_s) == (Order("fifo", 60_000_000), 120)
    assert (ci.roles, ci.groups, ci.urgent) == ({"user"}, {"ci"}, {"release"})
    assert {key: (one.value, one.soft) for key, one in ci.template.env.items()} == {
        "PROXY": ("http://proxy", False),
        "LANG": ("C", False),
        "CC": ("clang", True),
    }
    assert [(cache.name, cache.path) for cache in ci.template.caches] == [("git", "cache/git")]
    assert pools.policies["plain"].order is None
    assert len(pools.version) == 16


def test_every_problem_of_pools_toml_is_told_with_its_place():
    text = """
    closed = 1
    [pool.ci]
    task_order = "random"
    roles = ["king"]
    canary_chance = 5
    template = "nowhere"
    speed = 3
    [pool.lifo]
    task_order = "lifo"
    ageing_s = 5
    [template.a]
    include = ["b", "c", "gone"]
    env.1X = "digit"
    caches = [{ name = "Big", path = "../up" }, { name = "one", path = "x" }, { name = "two", path = "x/y" }]
    [template.b]
    include = ["d"]
    env.SAME = "1"
    [template.c]
    include = ["d"]
    env.SAME = "2"
    [template.d]
    [template.ring]
    include = ["ring"]
    """
    told = set(problems_of(pools_toml=text))
    assert told == {
        "pools.toml: closed type",
        "pools.toml: pool.ci.task_order choice",
        "pools.toml: pool.ci.roles[0] pattern",
        "pools.toml: pool.ci.canary_chance contradiction",
        "pools.toml: pool.ci.template unknown",
        "pools.toml: pool.ci.speed unknown",
        "pools.toml: pool.lifo.ageing_s contradiction",
        "pools.toml: template.a.include[2] unknown",
        "pools.toml: template.a.env.1X key",
        "pools.toml: template.a.caches[0].name pattern",
        "pools.toml: template.a.caches[0].path pattern",
        "pools.toml: template.a.caches path",
        "pools.toml: template.a.include duplicate",
        "pools.toml: template.c.include diamond",
        "pools.toml: template.ring.include diamond",
    }


def test_templates_that_are_nested_too_deeply_are_refused():
    deep = "".join(f'[template.t{n}]\ninclude = ["t{n + 1}"]\n' for n in range(2000)) + "[template.t2000]\n"
    told = problems_of(pools_toml=deep)
    assert {one.rsplit(" ", 1)[1] for one in told} == {"depth"}


def test_files_that_do_not_compile_are_told_with_their_line(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "bot_config.py").write_text("def f(:\n")
    (tmp_path / "scripts" / "new.py").write_text("x = 1\nif (y := x):\n    pass\nmatch x:\n    case 1:\n        pass\n")
    (tmp_path / "bootstrap.py").write_text("from __future__ import annotations\n")
    (tmp_path / "bots.toml").write_text("[[group\n")
    told = {one.path: one.allowed for one in check_folder(tmp_path)}
    assert set(told) == {"bot_config.py: line 1", "scripts/new.py: line 6", "bootstrap.py: line 1", "bots.toml"}
    assert "Python 3.8" in told["scripts/new.py: line 6"]


def test_what_does_not_belong_into_the_folder_is_told_and_what_editors_leave_is_not(tmp_path):
    for name in ("pools.tml", "bots.toml~", ".bots.toml.swp", "README.md"):
        (tmp_path / name).write_text("x = 1")
    (tmp_path / "bot_config.py").write_bytes(b"\xff")
    assert sorted(one.path for one in check_folder(tmp_path)) == ["bot_config.py", "pools.tml"]
    assert check_folder(tmp_path / "nowhere") == []


def test_a_version_is_that_of_names_and_contents_and_any_edit_shows(tmp_path):
    assert version_of({"a": "bc"}) != version_of({"ab": "c"})
    before = fingerprint(tmp_path)
    place = Path(tmp_path / "scripts")
    place.mkdir()
    (place / "lab.py").write_text(SCRIPT)
    after: Any = fingerprint(tmp_path)
    assert before != after
    assert read_folder(tmp_path) == {"scripts/lab.py": SCRIPT}
