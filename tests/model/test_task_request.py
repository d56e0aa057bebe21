from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from myrmidon.functions import values
from myrmidon.model.errors import InvalidRequest
from myrmidon.model.ids import EPOCH_MS, IdSource, show_run, show_task
from myrmidon.model.limits import DEFAULT_LIMITS, Limits
from myrmidon.model.task_request import (
    Cache,
    Constant,
    FilesRef,
    Function,
    Language,
    Output,
    Payload,
    Shared,
    automatic_tags,
    dedupe_key,
    properties_from_json,
    properties_hash,
    properties_json,
)
from myrmidon.model.task_validation import parse_task
from tests.model.encoding import encode_task
from tests.model.requests import (
    DIGEST,
    a_function,
    a_task,
    constant,
    nested,
    one_slice,
    output_of,
    paths_of,
    problems_of,
    properties,
    with_dimensions,
    with_properties,
)

TASK_ID = IdSource(0).next((EPOCH_MS + 10**9) * 1000)
WEEK = 604_800


def sized(n):
    return "x" * n


def encoded(n):
    return base64.b64encode(bytes(n)).decode()


def props(path):
    return f"slices[0].properties.{path}"


# -- what is read --------------------------------------------------------------------------------------------


def test_a_small_command_gets_the_defaults_of_the_design():
    task = parse_task(a_task())
    assert (task.name, task.priority, task.retries, task.reruns, task.max_instances) == (
        "hello",
        100,
        1,
        0,
        1,
    )
    assert (task.lease_s, task.deadline_s, task.soft_timeout_s) == (300, None, None)
    assert (task.user, task.service_account, task.parent, task.detached) == ("", "none", None, False)
    (only,) = task.slices
    assert (only.expiration_s, only.wait_for_capacity) == (86_400, True)
    wants = only.properties
    assert (wants.execution_timeout_s, wants.io_timeout_s, wants.grace_period_s) == (3600, None, 30)
    assert (wants.idempotent, wants.relative_cwd, wants.env) == (False, "", {})


def test_null_means_the_default_everywhere():
    names = [f for f in parse_task(a_task()).__struct_fields__ if f not in ("name", "slices")]
    assert parse_task(a_task(**dict.fromkeys(names))) == parse_task(a_task())


def test_every_field_of_properties_is_read_in_canonical_order():
    raw = properties(
        dimensions={"pool": ["ci"], "os": ["Linux", "Debian|Arch"]},
        relative_cwd="src/app",
        env={"B": "2", "A": ""},
        env_prefixes={"PATH": ["bin", "tools/bin"]},
        caches=[{"name": "pip", "path": "c/pip"}, {"name": "git", "path": "c/git"}],
        inputs={"digest": DIGEST, "size": 12},
        outputs=["out/b", "out/a", "out/a"],
        execution_timeout_s=60,
        io_timeout_s=30,
        grace_period_s=0,
        idempotent=True,
    )
    found = parse_task(a_task(slices=[{"properties": raw}])).slices[0].properties
    assert found.dimensions == {"os": ["Arch|Debian", "Linux"], "pool": ["ci"]}
    assert found.env == {"B": "2", "A": ""}
    assert found.env_prefixes == {"PATH": ["bin", "tools/bin"]}
    assert found.caches == [Cache(name="git", path="c/git"), Cache(name="pip", path="c/pip")]
    assert found.inputs == FilesRef(digest=DIGEST, size=12, namespace="default")
    assert found.outputs == ["out/a", "out/b"]
    assert (found.execution_timeout_s, found.io_timeout_s, found.grace_period_s) == (60, 30, 0)
    assert found.idempotent is True


def test_timeouts_may_be_fractions_and_whole_ones_stay_whole():
    task = parse_task({**with_properties(execution_timeout_s=2.5, io_timeout_s=0.25), "soft_timeout_s": 0.1})
    found = task.slices[0].properties
    assert (found.execution_timeout_s, found.io_timeout_s, task.soft_timeout_s) == (2.5, 0.25, 0.1)
    assert properties_from_json(properties_json(found)) == found
    whole, other = (parse_task(with_properties(execution_timeout_s=s)).slices[0].properties for s in (60, 60.0))
    assert properties_json(whole) == properties_json(other)
    assert parse_task(a_function(slices=[one_slice(command=None, execution_timeout_s=0.1)])).function is not None


def test_an_io_timeout_of_zero_is_none():
    assert parse_task(with_properties(io_timeout_s=0)).slices[0].properties.io_timeout_s is None


def test_a_function_has_typed_inputs_and_an_hour():
    shared = {"kind": "shared", "type": "lib.Blob", "shared_value_id": show_task(TASK_ID)}
    big = {"kind": "constant", "type": "bytes", "payload": {"digest": DIGEST, "size": 5000}}
    task = parse_task(a_function([constant("int"), shared, big], ["List< float >", "bool"]))
    assert task.function == Function(package_name="lib", func_name="lib.add", language=Language.PYTHON)
    assert task.name == "lib.add"
    assert task.inputs == [
        Constant(type="int64", payload=Payload(inline=b"\1", size=1)),
        Shared(type="lib.Blob", shared_value_id=TASK_ID),
        Constant(type="bytes", payload=Payload(digest=DIGEST, size=5000)),
    ]
    assert task.outputs == [Output(type="List<double>"), Output(type="bool")]
    assert task.slices[0].properties.execution_timeout_s == 3_600
    assert task.slices[0].properties.command == []


@pytest.mark.parametrize("given", ["rust", "RUST"])
def test_a_language_is_named_in_either_case(given):
    raw = a_function(function={"package_name": "p", "func_name": "f", "language": given})
    found = parse_task(raw).function
    assert found is not None
    assert found.language is Language.RUST


def test_the_parent_is_given_as_a_run_id():
    assert parse_task(a_task(parent=show_run(TASK_ID, 3))).parent == (TASK_ID, 3)


def test_fallback_slices_may_differ_in_their_bot():
    slices = [one_slice(dimensions={"pool": ["ci"], "id": [bot]}) for bot in ("b1", "b2")]
    assert len(parse_task(a_task(slices=slices)).slices) == 2


# -- limits: at the limit accepted, one past it refused ------------------------------------------------------


def tags(n):
    return [f"k:{i}" for i in range(n)]


def slices(n):
    return [one_slice(command=["echo", str(i)]) for i in range(n)]


def caches(n):
    return [{"name": f"c{i}", "path": f"p/{i}"} for i in range(n)]


def an_env(n):
    return {f"K{i}": "v" for i in range(n)}


def prefixes(n):
    return {f"K{i}": ["bin"] for i in range(n)}


def files(**given):
    return {"digest": DIGEST, "size": 0, **given}


def fun(**given):
    return {"package_name": "p", "func_name": "f", **given}


def payload(**given):
    return {"kind": "constant", "type": "bytes", "payload": given}


LIMITS = [
    # (path, at the limit, one past it)
    ("name", a_task(name=sized(1)), a_task(name="")),
    ("name", a_task(name=sized(1024)), a_task(name=sized(1025))),
    ("priority", a_task(priority=0), a_task(priority=-1)),
    ("priority", a_task(priority=255), a_task(priority=256)),
    ("tags", a_task(tags=tags(256)), a_task(tags=tags(257))),
    ("tags[0]", a_task(tags=["k:" + sized(319)]), a_task(tags=["k:" + sized(320)])),
    ("tags[0]", a_task(tags=["a:"]), a_task(tags=["a"])),
    ("user", a_task(user=sized(256)), a_task(user=sized(257))),
    ("service_account", a_task(service_account="a@" + sized(126)), a_task(service_account="a@" + sized(127))),
    ("service_account", a_task(service_account="bot"), a_task(service_account="robot")),
    ("external_id", a_task(external_id=sized(128)), a_task(external_id=sized(129))),
    ("external_id", a_task(external_id="A-z_9"), a_task(external_id="a.b")),
    ("routing", a_task(routing="a.b.c.d.e."), a_task(routing="a.b.c.d.e.f")),
    ("routing", a_task(routing=""), a_task(routing="a.#")),
    ("metadata", a_task(metadata=an_env(64)), a_task(metadata=an_env(65))),
    ("metadata.a", a_task(metadata={"a": sized(32768)}), a_task(metadata={"a": sized(32769)})),
    ("retries", a_task(retries=0), a_task(retries=-1)),
    ("retries", a_task(retries=100), a_task(retries=101)),
    ("reruns", a_task(reruns=100), a_task(reruns=101)),
    ("reruns", a_task(reruns=0), a_task(reruns=-1)),
    ("max_instances", a_task(max_instances=1), a_task(max_instances=0)),
    ("max_instances", a_task(max_instances=16), a_task(max_instances=17)),
    ("soft_timeout_s", a_task(soft_timeout_s=1), a_task(soft_timeout_s=0)),
    ("soft_timeout_s", a_task(soft_timeout_s=3599), a_task(soft_timeout_s=3600)),
    ("lease_s", a_task(lease_s=30), a_task(lease_s=29)),
    ("lease_s", a_task(lease_s=3600), a_task(lease_s=3601)),
    ("deadline_s", a_task(deadline_s=1), a_task(deadline_s=0)),
    ("deadline_s", a_task(deadline_s=30 * 86_400), a_task(deadline_s=30 * 86_400 + 1)),
    ("secret_bytes", a_task(secret_bytes=b"s" * 20_480), a_task(secret_bytes=b"s" * 20_481)),
    ("slices", a_task(slices=slices(1)), a_task(slices=[])),
    ("slices", a_task(slices=slices(8)), a_task(slices=slices(9))),
    (
        "slices[0].expiration_s",
        a_task(slices=[{**one_slice(), "expiration_s": 1}]),
        a_task(slices=[{**one_slice(), "expiration_s": 0}]),
    ),
    (
        "slices[0].expiration_s",
        a_task(slices=[{**one_slice(), "expiration_s": WEEK}]),
        a_task(slices=[{**one_slice(), "expiration_s": WEEK + 1}]),
    ),
    (props("command"), with_properties(command=["a"]), with_properties(command=[])),
    (props("command"), with_properties(command=["a"] * 32_768), with_properties(command=["a"] * 32_769)),
    (
        props("command[1]"),
        with_properties(command=["a", sized(131_072)]),
        with_properties(command=["a", sized(131_073)]),
    ),
    (props("command[0]"), with_properties(command=["a", ""]), with_properties(command=["", "a"])),
    (
        props("relative_cwd"),
        with_properties(relative_cwd=sized(1024)),
        with_properties(relative_cwd=sized(1025)),
    ),
    (props("env"), with_properties(env=an_env(64)), with_properties(env=an_env(65))),
    (props("env." + sized(65)), with_properties(env={sized(64): "v"}), with_properties(env={sized(65): "v"})),
    (props("env.1A"), with_properties(env={"A1_": "v"}), with_properties(env={"1A": "v"})),
    (props("env.A"), with_properties(env={"A": sized(1024)}), with_properties(env={"A": sized(1025)})),
    (
        props("env_prefixes"),
        with_properties(env_prefixes=prefixes(64)),
        with_properties(env_prefixes=prefixes(65)),
    ),
    (
        props("env_prefixes.A"),
        with_properties(env_prefixes={"A": ["x"] * 64}),
        with_properties(env_prefixes={"A": ["x"] * 65}),
    ),
    (
        props("env_prefixes.A[0]"),
        with_properties(env_prefixes={"A": [sized(1024)]}),
        with_properties(env_prefixes={"A": [sized(1025)]}),
    ),
    (
        props("env_prefixes.A-B"),
        with_properties(env_prefixes={"AB": ["x"]}),
        with_properties(env_prefixes={"A-B": ["x"]}),
    ),
    (props("caches"), with_properties(caches=caches(32)), with_properties(caches=caches(33))),
    (
        props("caches[0].name"),
        with_properties(caches=[{"name": sized(128), "path": "p"}]),
        with_properties(caches=[{"name": sized(129), "path": "p"}]),
    ),
    (
        props("caches[0].name"),
        with_properties(caches=[{"name": "a_9", "path": "p"}]),
        with_properties(caches=[{"name": "A", "path": "p"}]),
    ),
    (
        props("caches[0].path"),
        with_properties(caches=[{"name": "a", "path": sized(256)}]),
        with_properties(caches=[{"name": "a", "path": sized(257)}]),
    ),
    (
        props("caches[1].name"),
        with_properties(caches=caches(2)),
        with_properties(caches=[{"name": "a", "path": "p"}, {"name": "a", "path": "q"}]),
    ),
    (
        props("caches[1].path"),
        with_properties(caches=caches(2)),
        with_properties(caches=[{"name": "a", "path": "p"}, {"name": "b", "path": "p"}]),
    ),
    (
        props("caches[0].path"),
        with_properties(caches=[{"name": "a", "path": ".a"}]),
        with_properties(caches=[{"name": "a", "path": "."}]),
    ),
    (
        props("caches[0].path"),
        with_properties(caches=[{"name": "a", "path": "p-b"}, {"name": "b", "path": "p"}]),
        with_properties(caches=[{"name": "a", "path": "p/b"}, {"name": "b", "path": "p"}]),
    ),
    (
        props("caches[2].path"),
        with_properties(caches=caches(3)),
        with_properties(caches=[*caches(2), {"name": "b", "path": f"{caches(1)[0]['path']}/deep/er"}]),
    ),
    (
        props("inputs.digest"),
        with_properties(inputs=files()),
        with_properties(inputs=files(digest=DIGEST[1:])),
    ),
    (
        props("inputs.digest"),
        with_properties(inputs=files()),
        with_properties(inputs=files(digest=DIGEST.upper())),
    ),
    (props("inputs.size"), with_properties(inputs=files(size=0)), with_properties(inputs=files(size=-1))),
    (
        props("inputs.size"),
        with_properties(inputs=files(size=(1 << 63) - 1)),
        with_properties(inputs=files(size=1 << 63)),
    ),
    (
        props("inputs.namespace"),
        with_properties(inputs=files(namespace=sized(128))),
        with_properties(inputs=files(namespace=sized(129))),
    ),
    (
        props("inputs.namespace"),
        with_properties(inputs=files(namespace="a-.B_9")),
        with_properties(inputs=files(namespace="a/b")),
    ),
    (
        props("outputs"),
        with_properties(outputs=[f"o/{i}" for i in range(4096)]),
        with_properties(outputs=[f"o/{i}" for i in range(4097)]),
    ),
    (props("outputs[0]"), with_properties(outputs=[sized(512)]), with_properties(outputs=[sized(513)])),
    (
        props("execution_timeout_s"),
        with_properties(execution_timeout_s=1),
        with_properties(execution_timeout_s=0),
    ),
    ("stdin", a_task(stdin=encoded(1 << 20)), a_task(stdin=encoded((1 << 20) + 1))),
    ("stdin", a_task(stdin=""), a_function(stdin="")),
    (
        props("execution_timeout_s"),
        with_properties(execution_timeout_s=1.5),
        with_properties(execution_timeout_s=0.9),
    ),
    (props("io_timeout_s"), with_properties(io_timeout_s=0.5), with_properties(io_timeout_s=True)),
    ("soft_timeout_s", a_task(soft_timeout_s=0.1), a_task(soft_timeout_s=0.09)),
    (
        props("execution_timeout_s"),
        with_properties(execution_timeout_s=WEEK),
        with_properties(execution_timeout_s=WEEK + 1),
    ),
    (props("io_timeout_s"), with_properties(io_timeout_s=1), with_properties(io_timeout_s=-1)),
    (props("io_timeout_s"), with_properties(io_timeout_s=WEEK), with_properties(io_timeout_s=WEEK + 1)),
    (props("grace_period_s"), with_properties(grace_period_s=0), with_properties(grace_period_s=-1)),
    (props("grace_period_s"), with_properties(grace_period_s=3600), with_properties(grace_period_s=3601)),
    (
        props("dimensions"),
        with_dimensions(**{f"k{i}": ["v"] for i in range(31)}),
        with_dimensions(**{f"k{i}": ["v"] for i in range(32)}),
    ),
    (
        props("dimensions.os"),
        with_dimensions(os=[str(i) for i in range(16)]),
        with_dimensions(os=[str(i) for i in range(17)]),
    ),
    (props("dimensions.os[0]"), with_dimensions(os=[sized(256)]), with_dimensions(os=[sized(257)])),
    (props("dimensions"), with_dimensions(os=["1|2", "3|4", "5|6"]), with_dimensions(os=["1|2|3", "4|5|6"])),
    (
        "function.package_name",
        a_function(function=fun(package_name=sized(255))),
        a_function(function=fun(package_name=sized(256))),
    ),
    (
        "function.func_name",
        a_function(function=fun(func_name=sized(255))),
        a_function(function=fun(func_name=sized(256))),
    ),
    ("function.func_name", a_function(), a_function(function=fun(func_name=""))),
    ("function.language", a_function(), a_function(function=fun(language="COBOL"))),
    ("inputs", a_function([constant()] * 10_000), a_function([constant()] * 10_001)),
    ("outputs", a_function(outputs=["bool"] * 1024), a_function(outputs=["bool"] * 1025)),
    (
        "inputs[0].payload.inline",
        a_function([payload(inline=b"v" * 1024)]),
        a_function([payload(inline=b"v" * 1025)]),
    ),
    (
        "inputs[0].payload.size",
        a_function([payload(digest=DIGEST, size=64 << 20)]),
        a_function([payload(digest=DIGEST, size=(64 << 20) + 1)]),
    ),
    ("outputs[0].type", a_function(outputs=["X" * 1024]), a_function(outputs=["X" * 1025])),
    (
        "inputs[0].shared_value_id",
        a_function([{"kind": "shared", "type": "bool", "shared_value_id": (1 << 63) - 1}]),
        a_function([{"kind": "shared", "type": "bool", "shared_value_id": 1 << 63}]),
    ),
]


@pytest.mark.parametrize(("path", "good", "bad"), LIMITS, ids=[f"{i}-{row[0]}" for i, row in enumerate(LIMITS)])
def test_a_limit_is_accepted_and_one_past_it_is_refused(path, good, bad):
    parse_task(good)
    (problem,) = problems_of(bad)
    assert problem.path == path
    assert problem.allowed
    assert len(problem.value) <= 100


def test_a_key_of_metadata_has_1_to_255_characters():
    parse_task(a_task(metadata={sized(255): "v"}))
    for key in ("", sized(256)):
        (problem,) = problems_of(a_task(metadata={key: "v"}))
        assert problem.path.startswith("metadata['")


def test_a_secret_given_as_text_has_the_same_limit():
    parse_task(a_task(secret_bytes=base64.b64encode(b"s" * 20_480).decode()))
    (problem,) = problems_of(a_task(secret_bytes=base64.b64encode(b"s" * 20_481).decode()))
    assert problem.path == "secret_bytes"


def test_limits_can_be_set():
    with pytest.raises(InvalidRequest):
        parse_task(with_properties(execution_timeout_s=60), Limits(execution_timeout_min_s=61))
    assert parse_task(a_task(), Limits(lease_default_s=70)).lease_s == 70


# -- refused -------------------------------------------------------------------------------------------------

WRONG: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    float("nan"),
    float("inf"),
    1 << 64,
    1 << 100_000,
    "",
    "\0",
    "x\ud800",
    b"\xff",
    [],
    {},
]
WRONG += [[None], [1], [[]], {"a": 1}, {1: 2}, {"": ""}, nested(10_000), ["\0"], {"a": "\ud800"}, {"\0": "a"}]


@pytest.mark.parametrize("raw", [w for w in WRONG if w != {}], ids=lambda w: type(w).__name__)
def test_what_is_not_an_object_is_no_task(raw):
    problems = problems_of(raw)
    assert problems


def every_place(tree, path=()):
    yield path
    if isinstance(tree, dict):
        for key in tree:
            yield from every_place(tree[key], (*path, key))
    elif isinstance(tree, list):
        for i, item in enumerate(tree):
            yield from every_place(item, (*path, i))


def replaced(tree, path, value):
    if not path:
        return value
    if isinstance(tree, dict):
        return {k: replaced(v, path[1:], value) if k == path[0] else v for k, v in tree.items()}
    return [replaced(v, path[1:], value) if i == path[0] else v for i, v in enumerate(tree)]


FULL_COMMAND = a_task(
    slices=[
        one_slice(
            relative_cwd="src",
            env={"A": "b"},
            env_prefixes={"PATH": ["bin"]},
            caches=[{"name": "c", "path": "p"}],
            inputs={"digest": DIGEST, "size": 1, "namespace": "n"},
            outputs=["o"],
            execution_timeout_s=60,
            io_timeout_s=30,
            grace_period_s=1,
            idempotent=True,
            merge_output=True,
        )
        | {"expiration_s": 60, "wait_for_capacity": False}
    ],
    priority=1,
    tags=["a:b"],
    user="joe",
    service_account="bot",
    parent=show_run(TASK_ID, 1),
    detached=True,
    retries=0,
    reruns=1,
    max_instances=2,
    soft_timeout_s=9,
    lease_s=60,
    deadline_s=100,
    secret_bytes="c2VjcmV0",
    stdin="aW4=",
    evaluate_only=True,
    external_id="e",
    routing="r",
    metadata={"m": "n"},
)
FULL_FUNCTION = a_function(
    [
        constant(),
        {"kind": "constant", "type": "bytes", "payload": {"digest": DIGEST, "size": 1}},
        {"kind": "shared", "type": "bool", "shared_value_id": 5},
    ],
    ["int8"],
    function={"package_name": "p", "func_name": "f", "language": "CPP"},
)
PLACES = [(raw, path) for raw in (FULL_COMMAND, FULL_FUNCTION) for path in every_place(raw)]


@pytest.mark.parametrize(("raw", "path"), PLACES, ids=[".".join(map(str, p)) for _, p in PLACES])
def test_a_wrong_value_anywhere_is_refused_or_harmless(raw, path):
    for value in WRONG:
        problems = problems_if_any(replaced(raw, path, value))
        msgspec.json.encode(problems)
        may_be_fraction = path and str(path[-1]).endswith("timeout_s") and type(value) is float
        if path and isinstance(value, int | float) and type(value) is not type(at(raw, path)) and not may_be_fraction:
            assert problems


def problems_if_any(raw):
    try:
        parse_task(raw)
    except InvalidRequest as refused:
        return refused.problems
    return []


def at(tree, path):
    for step in path:
        tree = tree[step]
    return tree


@pytest.mark.parametrize(
    "field",
    [".".join(map(str, p)) for p in every_place(FULL_COMMAND) if p and isinstance(p[-1], str) and "metadata" not in p],
)
def test_nul_bytes_and_lone_surrogates_are_refused_in_every_text(field):
    path = tuple(int(s) if s.isdigit() else s for s in field.split("."))
    for text in ("a\0b:", "a\ud800:"):
        problems = problems_of(replaced(FULL_COMMAND, path, text))
        assert field.split(".")[0] in {p.path.split("[")[0].split(".")[0] for p in problems}


GOOD_PATHS = ["a", "a/b", "a.b/..c", "...", "a/...", "..a", ".hidden/x", ".", "a b", "ä/ö", "ab:c"]
BAD_PATHS = [
    "..", "../x", "a/..", "a/../b", "/abs", "/", "a\\b", "\\a", "a\\..\\b", "a\0b", "a//b", "a/", "./a", "a/./b", "a/.",
    "C:", "C:/x", "c:/x", "\\\\host\\x",
]  # fmt: skip


def test_a_path_below_the_run_s_folder_is_accepted():
    found = parse_task(with_properties(outputs=GOOD_PATHS, relative_cwd=".", env_prefixes={"PATH": GOOD_PATHS}))
    assert found.slices[0].properties.outputs == sorted(GOOD_PATHS)
    assert paths_of(problems_of(with_properties(outputs=[""]))) == [props("outputs[0]")]


@pytest.mark.parametrize("bad", BAD_PATHS)
@pytest.mark.parametrize(
    ("path", "build"),
    [
        ("relative_cwd", lambda p: {"relative_cwd": p}),
        ("caches[0].path", lambda p: {"caches": [{"name": "c", "path": p}]}),
        ("outputs[0]", lambda p: {"outputs": [p]}),
        ("env_prefixes.PATH[0]", lambda p: {"env_prefixes": {"PATH": [p]}}),
    ],
)
def test_a_path_that_could_leave_the_run_s_folder_is_refused(path, build, bad):
    assert paths_of(problems_of(with_properties(**build(bad)))) == [props(path)]


def test_an_index_in_a_path_counts_wrong_items_too():
    raw = with_properties(outputs=[1, "ok", "../x"])
    assert paths_of(problems_of(raw)) == [props("outputs[0]"), props("outputs[2]")]


CONTRADICTIONS = {
    "a function and a command": (
        a_function(slices=[one_slice()]),
        "slices[0].properties.command",
    ),
    "inputs without a function": (a_task(inputs=[constant()]), "inputs"),
    "outputs without a function": (a_task(outputs=[{"type": "bool"}]), "outputs"),
    "equal slices": (a_task(slices=[one_slice(), one_slice()]), "slices[1].properties"),
    "equal slices in another order": (
        a_task(slices=[one_slice(outputs=["a", "b"]), one_slice(outputs=["b", "a"])]),
        "slices[1].properties",
    ),
    "two pools": (
        a_task(slices=[one_slice(), one_slice(dimensions={"pool": ["other"]})]),
        "slices[1].properties.dimensions.pool",
    ),
    "a payload inline and by digest": (
        a_function([payload(inline="AQ==", digest=DIGEST, size=1)]),
        "inputs[0].payload",
    ),
    "a payload of neither": (a_function([payload()]), "inputs[0].payload"),
    "an inline payload of another size": (
        a_function([payload(inline="AQ==", size=2)]),
        "inputs[0].payload.size",
    ),
    "a digest without a size": (a_function([payload(digest=DIGEST)]), "inputs[0].payload.size"),
    "the output of another task": (a_function([output_of("build")]), "inputs[0].label"),
    "an input of no kind": (a_function([{"type": "bool"}]), "inputs[0].kind"),
    "a task id as the parent": (a_task(parent=show_task(TASK_ID)), "parent"),
    "a misspelt field": (a_task(priorty=3), "priorty"),
    "a misspelt property": (with_properties(enviroment={}), props("enviroment")),
    "a soft timeout past the hard one": (
        a_task(slices=[*slices(1), one_slice(execution_timeout_s=5)], soft_timeout_s=5),
        "soft_timeout_s",
    ),
    "a command without a program": (with_properties(command=None), props("command")),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_fields_that_contradict_each_other_are_refused(name):
    raw, path = CONTRADICTIONS[name]
    assert paths_of(problems_of(raw)) == [path]


def test_a_lone_task_needs_a_slice_and_in_the_long_form_a_name():
    assert paths_of(problems_of({})) == ["slices"]
    assert paths_of(problems_of({"slices": [one_slice()]})) == ["name"]


def test_all_problems_come_back_at_once_each_with_path_value_and_rule():
    raw = a_task(
        name="",
        priority=256,
        tags=["good:1", "bad"],
        lease_s="soon",
        slices=[one_slice(env={"A": 1, "9": "x"}, relative_cwd="../up"), {"properties": {"command": ["x"]}}],
        surprise=1,
    )
    found = {(p.path, p.value) for p in problems_of(raw)}
    assert found == {
        ("name", "''"),
        ("priority", "256"),
        ("tags[1]", "'bad'"),
        ("lease_s", "'soon'"),
        ("slices[0].properties.env.A", "1"),
        ("slices[0].properties.env.9", "'9'"),
        ("slices[0].properties.relative_cwd", "'../up'"),
        ("slices[1].properties.dimensions", "nothing"),
        ("surprise", "a number"),
    }


# -- secrets -------------------------------------------------------------------------------------------------

SECRET = "hunter2-hunter2"
SECRET_TEXT = base64.b64encode(SECRET.encode()).decode()


def test_a_secret_is_kept_and_never_shown():
    task = parse_task(a_task(secret_bytes=SECRET_TEXT))
    assert task.secret_bytes == SECRET.encode()
    assert parse_task(a_task(secret_bytes=SECRET.encode())) == task
    for shown in (repr(task), str(task), f"{[task]}", repr(encode_task(task)), repr(automatic_tags(task))):
        assert SECRET not in shown
        assert SECRET_TEXT not in shown
    assert "hidden" in repr(task)


@pytest.mark.parametrize(
    "raw",
    [
        a_task(secret_bytes=SECRET + "!"),
        a_task(secret_bytes=[SECRET]),
        a_task(secret_bytes=SECRET * 5000),
        a_task(secret_bytes=SECRET.encode() * 5000),
        a_task(secret_bytes={SECRET: SECRET}),
        a_task(secret_byte=SECRET),
        a_task(secrets={"a": SECRET}),
        with_properties(secret_bytes=SECRET),
        [a_task(secret_bytes=SECRET)],
        a_task(slices=[{"properties": [SECRET]}]),
    ],
    ids=range(10),
)
def test_a_problem_never_shows_a_secret(raw):
    with pytest.raises(InvalidRequest) as refused:
        parse_task(raw)
    shown = repr(refused.value.as_dict()) + str(refused.value) + repr(refused.value.problems)
    assert SECRET not in shown


def test_properties_hold_no_secret():
    task = parse_task(a_task(secret_bytes=SECRET_TEXT))
    assert SECRET not in properties_json(task.slices[0].properties)


# -- what is written -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("raw", [a_task(), FULL_COMMAND, a_function(), FULL_FUNCTION], ids=range(4))
def test_a_request_survives_encoding(raw):
    task = parse_task(raw)
    assert parse_task(encode_task(task, secret=True)) == task
    json = msgspec.json.decode(msgspec.json.encode(encode_task(task, secret=True)))
    assert parse_task(json) == task
    assert "secret_bytes" not in encode_task(task)


def test_properties_survive_the_database():
    found = parse_task(FULL_COMMAND).slices[0].properties
    text = properties_json(found)
    assert properties_from_json(text) == found
    assert properties_json(properties_from_json(text)) == text
    assert text.startswith('{"api":"","caches":[{"name":"c","path":"p"}],"command":["echo","hello"],"dimensions":')


def hash_of(**given):
    return properties_hash(parse_task(with_properties(**given)).slices[0].properties)


def test_equal_work_has_one_hash_whatever_its_order():
    one = hash_of(env={"A": "1", "B": "2"}, dimensions={"pool": ["ci"], "os": ["a", "b|c"]}, caches=caches(2))
    other = hash_of(env={"B": "2", "A": "1"}, dimensions={"os": ["c|b", "a"], "pool": ["ci"]}, caches=caches(2)[::-1])
    assert one == other
    assert len(one) == 64


DIFFERENT: list[dict[str, Any]] = [
    {},
    {"command": ["echo", "bye"]},
    {"command": ["echo hello"]},
    {"env": {"A": ""}},
    {"relative_cwd": "x"},
    {"env_prefixes": {"A": ["x"]}},
    {"caches": caches(1)},
    {"inputs": files()},
    {"inputs": files(size=1)},
    {"outputs": ["x"]},
    {"execution_timeout_s": 7},
    {"io_timeout_s": 7},
    {"grace_period_s": 7},
    {"idempotent": True},
    {"merge_output": True},
    {"dimensions": {"pool": ["other"]}},
]


def test_every_property_is_part_of_the_hash():
    assert len({hash_of(**given) for given in DIFFERENT}) == len(DIFFERENT)


def test_secret_function_and_inputs_are_part_of_the_hash():
    wants = parse_task(a_task()).slices[0].properties
    function = Function(package_name="p", func_name="f")
    hashes = {
        properties_hash(wants),
        properties_hash(wants, secret_hmac=b""),
        properties_hash(wants, secret_hmac=b"\1"),
        properties_hash(wants, function=function),
        properties_hash(wants, function=function, input_digests=["a", "b"]),
        properties_hash(wants, function=function, input_digests=["ab"]),
        properties_hash(wants, function=function, input_digests=["b", "a"]),
    }
    assert len(hashes) == 7


def test_the_dedupe_key_depends_on_group_pool_and_account():
    keys = {
        dedupe_key("h", 1, "ci", "none"),
        dedupe_key("h", 2, "ci", "none"),
        dedupe_key("h", 1, "cinone", ""),
        dedupe_key("h", 1, "ci", "bot"),
        dedupe_key("i", 1, "ci", "none"),
    }
    assert len(keys) == 5
    assert all(len(key) == 64 for key in keys)


def test_automatic_tags_join_the_manual_ones_sorted():
    dims = [{"pool": ["ci"], "os": ["Linux", "Arch|Debian"]}, {"pool": ["ci"], "os": ["Mac"]}]
    raw = a_task(
        slices=[one_slice(dimensions=d) for d in dims],
        tags=["z:1", "pool:ci", "z:1"],
        user="joe",
        parent=show_run(TASK_ID, 2),
        priority=7,
    )
    assert automatic_tags(parse_task(raw)) == [
        "os:Arch",
        "os:Debian",
        "os:Linux",
        "os:Mac",
        f"parent_task_id:{show_run(TASK_ID, 2)}",
        "pool:ci",
        "priority:7",
        "service_account:none",
        "user:joe",
        "z:1",
    ]


def test_nobody_and_no_account_are_tagged_none():
    assert {"user:none", "service_account:none"} <= set(automatic_tags(parse_task(a_task(service_account=""))))


def test_the_numbers_of_the_design_are_the_defaults():
    limits = DEFAULT_LIMITS
    assert (limits.nodes, limits.parents, limits.label_chars) == (100_000, 10_000, 255)
    assert limits.value_inline_bytes == values.INLINE_BYTES
