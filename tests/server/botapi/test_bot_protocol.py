"""The bot's forms of messages and the server's: field by field, so that the two cannot drift apart."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from myrmidon.bot import protocol
from myrmidon.bot.link.exchange import ExchangeRequest
from myrmidon.model.task_request import Cache
from myrmidon.server.botapi import messages

TO_BOT: list[tuple[Any, Any, set[str]]] = [
    (protocol.Cache, Cache, set()),
    (protocol.Function, messages.AssignedFunction, set()),
    (protocol.Value, messages.AssignedValue, set()),
    (protocol.Value, messages.AssignedInput, set()),
    (
        protocol.Task,
        messages.AssignedRun,
        {"name", "deadline_at", "outputs", "idempotent", "user", "priority", "service_account"},
    ),
    (protocol.Reply, messages.ReportResult, set()),
    (protocol.Answer, messages.ExchangeResponse, set()),
    (protocol.Answer, messages.HeartbeatResponse, set()),
    (protocol.Welcome, messages.HandshakeResponse, {"bot_id", "quarantined", "version", "zip_hmac", "server_version"}),
]
"""The last are the fields that the bot does not read."""
TO_SERVER: list[tuple[Any, Any, set[str]]] = [
    (protocol.StartReport, messages.StartReport, set()),
    (protocol.GiveBackReport, messages.GiveBackReport, set()),
    (protocol.Payload, messages.ReportedPayload, set()),
    (protocol.Output, messages.ReportedValue, set()),
    (protocol.FinishReport, messages.FinishReport, {"outputs_ref"}),
    (protocol.FaultReport, messages.FaultReport, {"signal", "oom", "cost_usd"}),
    (protocol.LogPiece, messages.LogPiece, set()),
    (protocol.ExchangeMessage, messages.ExchangeRequest, set()),
    (protocol.HeartbeatMessage, messages.HeartbeatRequest, set()),
    (protocol.HandshakeMessage, messages.HandshakeRequest, set()),
    (protocol.EventMessage, messages.BotEvent, set()),
]
"""The last are the fields that the bot does not send."""


def names(pairs: list[tuple[Any, Any, set[str]]]) -> list[str]:
    return [struct.__name__ for _, struct, _ in pairs]


def defaults(struct: Any) -> dict[str, Any]:
    """The fields of a struct that may be left out, with what that means."""
    found = {}
    for field in msgspec.structs.fields(struct):
        if not field.required:
            is_made = field.default is msgspec.NODEFAULT
            found[field.name] = field.default_factory() if is_made else field.default
    return found


def same(ours: Any, theirs: Any) -> bool:
    """Whether two defaults mean the same: an empty tuple is an empty list, and nothing is what it is in the bot."""
    return bool(ours == theirs or (not ours and theirs is UNSET) or (ours == () and theirs == []))


@pytest.mark.parametrize(("form", "struct", "unread"), TO_BOT, ids=names(TO_BOT))
def test_the_bot_reads_what_the_server_sends(form: Any, struct: Any, unread: set[str]):
    sent = {field.name for field in msgspec.structs.fields(struct)}
    assert sent - unread <= set(form._fields)
    assert not unread - sent, "the server does not send these any more"
    if struct not in (messages.HeartbeatResponse, messages.AssignedValue):  # a part of the fields
        assert set(form._fields) <= sent
    omitted = defaults(struct) if struct.__struct_config__.omit_defaults else {}
    for name, default in omitted.items():
        if name not in unread:
            assert same(form._field_defaults[name], default), name


@pytest.mark.parametrize(("form", "struct", "unsent"), TO_SERVER, ids=names(TO_SERVER))
def test_the_server_reads_what_the_bot_sends(form: Any, struct: Any, unsent: set[str]):
    known, optional = {field.name for field in msgspec.structs.fields(struct)}, defaults(struct)
    assert set(form._fields) == known - unsent
    assert unsent <= set(optional)
    for name, default in form._field_defaults.items():
        assert same(default, optional[name]), name


def test_a_full_exchange_arrives_as_it_was_sent():
    outputs = [
        protocol.Output("bytes", protocol.Payload(b"\0\xff")),
        protocol.Output("int64", protocol.Payload(digest="d", size=9)),
        protocol.Output("bool", protocol.Payload()),
    ]
    finish = protocol.FinishReport("r1", "t1", 3, 0.5, 1, 2, killed=True, outputs=outputs, stats={"cleanup": 0.1})
    reports: list[Any] = [
        protocol.StartReport("r0", "t0"),
        finish._replace(message="m", error={"type": "ValueError", "bases": ["Exception"]}, caches={"c": 5}),
        protocol.FaultReport("r2", "t2", "disk_full", "full"),
        protocol.GiveBackReport("r3", "t3"),
    ]
    sent = protocol.ExchangeMessage(
        7, 8, 2, 6, "functions", 4, 0.5, reports, [protocol.LogPiece("r1", "t1", 1, 5, b"\xfe", [(9, 5)])],
        [("r1", "t1")], ["r1"], {"r1": 0.5}, {"a": 1}, {"os": ["Linux"]}, "c1",
    )  # fmt: skip
    whole, journal = protocol.encode(sent), {"r1": protocol.encode(reports[1]), "r3": b"a result of another time"}
    found = msgspec.json.decode(whole, type=messages.ExchangeRequest)
    records = [protocol.Record(reports[1])]
    first = sent._replace(reports=[reports[1], *reports[2:]])
    assert json.loads(ExchangeRequest(first, records).body(journal)) == json.loads(protocol.encode(first))
    assert (found.session, found.nonce, found.n, found.received, found.accepts.value, found.slots) == (
        7,
        8,
        2,
        6,
        "functions",
        4,
    )
    assert [type(report).__name__ for report in found.reports] == [
        "StartReport", "FinishReport", "FaultReport", "GiveBackReport",
    ]  # fmt: skip
    finished = found.reports[1]
    assert isinstance(finished, messages.FinishReport)
    assert [output.payload.inline for output in finished.outputs] == [b"\0\xff", None, None]
    assert (finished.killed, finished.caches, finished.error and finished.error.bases) == (
        True,
        {"c": 5},
        ["Exception"],
    )
    assert (found.logs[0].data, found.logs[0].marks, found.holds) == (b"\xfe", [(9, 5)], [("r1", "t1")])
    assert (found.stopping, found.progress, found.state, found.config) == (["r1"], {"r1": 0.5}, {"a": 1}, "c1")


def test_a_full_task_is_read_as_it_was_sent():
    function = messages.AssignedFunction(
        package_name="p", func_name="f", language="PYTHON", code="c", signature="s", memory_mb=5, environment="e"
    )
    parts = [
        messages.AssignedValue(type="int64", payload=b"\1"),
        messages.AssignedValue(type="int64", digest="d", size=3),
    ]
    run = messages.AssignedRun(
        run="r1", token="t", command=["a"], env={"k": "v"}, caches=[Cache(name="c", path="p")], secret_bytes=b"\0",
        stdin=b"", execution_timeout_s=60, grace_period_s=30, lease_s=9, function=function, priority=1, task_id="r0",
        inputs=[messages.AssignedInput(type="any", parts=parts)], dimensions={"os": ["Linux"]}, terminate=True,
    )  # fmt: skip
    sent = messages.ExchangeResponse(
        tasks=[run], replies=[messages.ReportResult("accepted", True)], stop=["r9"], more=True
    )
    found: protocol.Answer = protocol.decode(protocol.Answer, json.loads(messages.encode(sent)))
    assert (found.replies, found.stop, found.more) == ([protocol.Reply("accepted", True)], ["r9"], True)
    read = [protocol.Value("int64", b"\1"), protocol.Value("int64", None, "d", 3)]
    assert found.tasks == [
        protocol.Task(
            "r1", "t", 60, 30, ["a"], {"k": "v"}, caches=[protocol.Cache("c", "p")], secret_bytes=b"\0", stdin=b"",
            lease_s=9, function=protocol.Function("p", "f", "PYTHON", "c", "s", 5, "e"), task_id="r0",
            inputs=[protocol.Value("any", parts=read)],
            dimensions={"os": ["Linux"]}, terminate=True,
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"execution_timeout_s": None}, "execution_timeout_s"),
        ({"execution_timeout_s": "soon"}, "'soon' is not a number"),
        ({"function": {"package_name": "p"}}, "func_name"),
        ({"stdin": 5}, "argument"),
        ({"inputs": [5]}, "items"),
    ],
)
def test_a_task_that_makes_no_sense_spoils_no_other(changed: dict[str, Any], problem: str):
    good = {"run": "r1", "token": "t", "execution_timeout_s": 60, "grace_period_s": 30, "unknown": 1}
    found = protocol.decode(protocol.Answer, {"tasks": [{**good, "run": "r2", **changed}, good]})
    assert found.tasks[1] == protocol.Task("r1", "t", 60, 30)
    assert isinstance(found.tasks[0], protocol.Unreadable)
    assert (found.tasks[0].run, problem in found.tasks[0].problem) == ("r2", True), found.tasks[0]
