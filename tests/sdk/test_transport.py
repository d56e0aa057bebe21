"""Calls are repeated until they are answered, with the same key, and no longer than patience lasts."""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Thread

import pytest

from myrmidon.sdk.api.tasks import MAX_BYTES_PER_CALL, MAX_TASKS_PER_CALL, batches
from myrmidon.sdk.client import Client
from myrmidon.sdk.errors import (
    CallFailed,
    Conflict,
    Invalid,
    NotAllowed,
    NotFound,
    Overloaded,
    ServerError,
    Unreachable,
    WrongScheme,
)
from myrmidon.sdk.transport import KEY_HEADER, RetryPolicy, Transport, parse_events
from myrmidon.wire.queues import QueueList
from tests.sdk.scripted import CUT, Answer, answer, events, scripted
from tests.servers import port_of, reserve_port


class FakeTime:
    """Sleeps take no time, and are counted."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


NO_QUEUES: dict[str, object] = {"queues": [], "cursor": None}


def transport(url: str, clock: FakeTime | None = None, **more: object) -> Transport:
    return Transport(url, "myr_secret", clock=clock or FakeTime(), **more)  # type: ignore[arg-type]


def client(url: str, clock: FakeTime | None = None, **more: object) -> Client:
    return Client(transport(url, clock, **more))


def test_a_cut_reply_is_asked_for_again_with_the_same_key():
    accepted = answer(200, {"tasks": [{"task_id": "5cee4880088100", "state": "READY"}]})
    with scripted(CUT, Answer(200, b"{", whole=False), accepted) as server:
        [task] = client(server.url).submit_tasks([{"name": "one"}])
    assert task.task_id == "5cee4880088100"
    keys = [request.headers[KEY_HEADER] for request in server.seen]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert [request.body for request in server.seen] == [{"tasks": [{"name": "one"}]}] * 3


def test_two_calls_have_two_keys():
    with scripted(answer(200, {"tasks": [{}]})) as server:
        caller = client(server.url)
        caller.submit_tasks([{}])
        caller.submit_tasks([{}])
    assert server.seen[0].headers[KEY_HEADER] != server.seen[1].headers[KEY_HEADER]


def test_reading_needs_no_key():
    with scripted(answer(200, {"tasks": [], "cursor": None})) as server:
        client(server.url).tasks(state="READY", tag=["a:b", "c:d"], name=None)
    assert KEY_HEADER not in server.seen[0].headers
    assert server.seen[0].path == "/api/v1/tasks?state=READY&tag=a%3Ab&tag=c%3Ad"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_come_back_later_is_obeyed(status: int):
    clock = FakeTime()
    with scripted(answer(status, Retry_After=7), answer(200, NO_QUEUES)) as server:
        assert client(server.url, clock).queues() == QueueList([], None)
    assert len(clock.slept) == 1
    assert 7 <= clock.slept[0] <= 7.1


def test_waits_grow_and_are_jittered():
    clock = FakeTime()
    with (
        scripted(answer(503, {"error": {"code": "store.unavailable", "message": "Away."}})) as server,
        pytest.raises(Overloaded, match="Away") as failed,
    ):
        client(server.url, clock, retry_policy=RetryPolicy(after_first_answer_s=30)).queues()
    assert failed.value.code == "store.unavailable"
    assert clock.now <= 30
    assert len(set(clock.slept)) == len(clock.slept)
    assert all(wait <= 0.1 * 2**attempt for attempt, wait in enumerate(clock.slept))


def test_nobody_there_is_told_soon_and_an_outage_is_sat_out():
    clock = FakeTime()
    with reserve_port() as nobody, pytest.raises(Unreachable, match="connection refused"):
        client(f"http://127.0.0.1:{port_of(nobody)}", clock).queues()
    assert clock.now <= 5

    with scripted(answer(200, NO_QUEUES), *[CUT] * 12, answer(200, {"queues": [], "cursor": "1"})) as server:
        caller = client(server.url)
        caller.queues()
        assert caller.queues().cursor == "1"


def test_a_server_that_dies_while_it_holds_its_first_answer_is_waited_for():
    clock = FakeTime()
    died = Answer(0, b"", meanwhile=lambda: clock.sleep(25))
    with scripted(died, *[CUT] * 3, answer(200, {"tasks": [], "done": True})) as server:
        caller = client(server.url, clock, retry_policy=RetryPolicy(before_first_answer_s=0, after_first_answer_s=5))
        assert caller.wait(["5cee4880088100"]).done
    assert len(server.seen) == 5


def test_a_caller_that_has_no_more_time_does_not_wait_for_a_server():
    clock = FakeTime()
    died = Answer(0, b"", meanwhile=lambda: clock.sleep(2))
    with scripted(died, CUT) as server, pytest.raises(Unreachable):
        client(server.url, clock).wait(["5cee4880088100"], within_s=3)
    assert 2 <= clock.now <= 3


def test_what_speaks_another_language_is_not_waited_for_long():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        Thread(target=greet, args=(listening,), daemon=True).start()
        clock = FakeTime()
        with pytest.raises(Unreachable):
            client(f"http://127.0.0.1:{listening.getsockname()[1]}", clock).queues()
    assert clock.now <= 5


def greet(listening: socket.socket) -> None:
    with suppress(OSError):  # closed at the end of the test
        while True:
            caller, _ = listening.accept()
            with caller:
                caller.recv(65_536)
                caller.sendall(b"220 mail.example.org\r\n")


def test_an_outage_is_told_once():
    told: list[str] = []
    with scripted(*[CUT] * 4, answer(200, NO_QUEUES)) as server:
        client(server.url, on_retry=told.append).queues()
    assert len(told) == 1
    assert "trying again" in told[0]


def test_what_the_server_has_accepted_without_effect_is_logged(caplog: pytest.LogCaptureFixture):
    with scripted(answer(200, NO_QUEUES, Myrmidon_Warning="scopes has no effect")) as server:
        client(server.url).queues()
    assert [record.getMessage() for record in caplog.records] == ["warning: scopes has no effect"]


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, Invalid), (401, NotAllowed), (403, NotAllowed), (404, NotFound), (409, Conflict), (413, Invalid)],
)
def test_a_refusal_is_an_error_with_code_message_and_problems(status: int, error: type[Exception]):
    problem = {"path": "tasks[0].name", "value": "''", "allowed": "a name", "code": "length"}
    body = {"error": {"code": "some.code", "message": "No.", "problems": [problem]}}
    with scripted(answer(status, body)) as server, pytest.raises(error) as failed:
        client(server.url).queues()
    assert (failed.value.code, failed.value.message, failed.value.problems) == ("some.code", "No.", [problem])  # type: ignore[attr-defined]
    assert len(server.seen) == 1


@pytest.mark.parametrize("answered", [Answer(200, b"<html>"), Answer(301, b"", {"Location": "https://other"})])
def test_what_is_no_myrmidon_server_is_told(answered: Answer):
    with scripted(answered) as server, pytest.raises(CallFailed, match="Check the server"):
        client(server.url).queues()


def test_an_internal_error_is_retried_with_the_same_key():
    broken = answer(500, {"error": {"code": "broken_promise", "message": "Internal error."}})
    clock = FakeTime()
    with scripted(broken, broken, answer(200, {"tasks": [{"task_id": "5cee4880088100"}]})) as server:
        [task] = client(server.url, clock).submit_tasks([{"name": "one"}])
    assert task.task_id == "5cee4880088100"
    assert len({request.headers[KEY_HEADER] for request in server.seen}) == 1
    assert len(clock.slept) == 2


def test_an_internal_error_that_stays_is_told_sooner_than_an_outage():
    clock = FakeTime()
    with scripted(Answer(500, b"<html>")) as server, pytest.raises(ServerError, match="status 500"):
        client(server.url, clock).queues()
    assert len(server.seen) > 3
    assert clock.now <= 20


def test_what_a_server_does_not_implement_is_not_asked_again():
    with scripted(Answer(501, b"<html>")) as server, pytest.raises(ServerError, match="status 501"):
        client(server.url).queues()
    assert len(server.seen) == 1


def test_many_tasks_are_several_calls_whose_keys_belong_together():
    names = [f"task {n}" for n in range(2 * MAX_TASKS_PER_CALL + 1)]
    with scripted(answer(200, {"tasks": [{"task_id": "1"}]})) as server:
        answers = client(server.url).submit_tasks([{"name": name} for name in names], key="mine", group="g")
    assert len(answers) == 3, "one entry for each call of the script"
    assert [task["name"] for request in server.seen for task in request.body["tasks"]] == names
    assert [request.headers[KEY_HEADER] for request in server.seen] == ["mine", "mine.1", "mine.2"]
    assert {request.body["group"] for request in server.seen} == {"g"}


def test_batches_fit_into_a_call_by_size():
    large = {"name": "x" * (MAX_BYTES_PER_CALL // 2)}
    assert [len(batch) for batch in batches([large, large, {"name": "y"}, {"name": "z" * 2 * MAX_BYTES_PER_CALL}])] == [
        1,
        2,
        1,
    ]
    assert list(batches([])) == []


def test_the_token_goes_with_every_call_and_into_no_error():
    with scripted(answer(401, {"error": {"code": "unauthorized", "message": "Who?"}})) as server:
        with pytest.raises(NotAllowed) as failed:
            client(server.url).queues()
        assert server.seen[0].headers["Authorization"] == "Bearer myr_secret"
    assert "myr_secret" not in repr(failed.value)


@pytest.mark.parametrize("token", ["myr_se\ncret", "myr_se\rcret", "myr_sécret", "myr_se\udcffcret"])
def test_a_token_that_fits_into_no_header_is_refused_without_being_shown(token: str):
    with scripted(answer(200, NO_QUEUES)) as server:
        caller = Client(Transport(server.url, token))
        with pytest.raises(NotAllowed) as failed:
            caller.queues()
        assert server.seen == []
    assert "cret" not in repr(failed.value)


def test_what_stands_around_a_token_is_no_part_of_it():
    with scripted(answer(200, NO_QUEUES)) as server:
        Client(Transport(server.url, " myr_secret\r\n")).queues()
    assert server.seen[0].headers["Authorization"] == "Bearer myr_secret"


def test_an_id_is_one_part_of_a_path():
    with scripted(answer(404, {})) as server, pytest.raises(NotFound):
        client(server.url).bot("a/../b?c")
    assert server.seen[0].path == "/api/v1/bots/a%2F..%2Fb%3Fc"


def test_a_broken_stream_is_taken_up_after_its_last_event():
    whole = ["event: a", "id: 1", "data: x", "", "event: b", "id: 2", "data: y", ""]
    first = events(*whole, "event: c", "data: z", whole=False)
    second = events(": still here", "", "event: c", "id: 3", "data: z", "")
    with scripted(first, second) as server:
        stream = transport(server.url).stream("/api/v1/events")
        seen = [(event.name, event.data, event.id) for _, event in zip(range(3), stream, strict=False)]
    assert seen == [("a", "x", "1"), ("b", "y", "2"), ("c", "z", "3")]
    assert [request.headers.get("Last-Event-ID") for request in server.seen] == [None, "2"]


def test_a_stream_that_is_cut_between_its_pieces_is_told_in_words():
    told: list[str] = []
    chunked = {"Transfer-Encoding": "chunked", "Content-Type": "text/event-stream"}
    piece = b"9\r\ndata: x\n\n\r\n"
    with scripted(Answer(200, piece, chunked, whole=False), events("data: y", "")) as server:
        stream = transport(server.url, on_retry=told.append).stream("/api/v1/events")
        assert [next(stream).data, next(stream).data] == ["x", "y"]
    assert told == ["The event stream broke (the response was cut off); reconnecting."]


def test_what_is_no_address_is_not_tried_again():
    clock = FakeTime()
    with pytest.raises(Unreachable):
        client("ftp://build", clock).queues()
    assert clock.slept == []


def test_events_are_cut_as_the_standard_says():
    text = b"data: one\r\ndata: two\r\n\r\n:comment\n\nevent:e\nid:7\ndata:  spaced\n\ndata: unfinished"
    pieces = iter([text[i : i + 3] for i in range(0, len(text), 3)])
    assert [(event.name, event.data, event.id) for event in parse_events(pieces)] == [
        ("message", "one\ntwo", None),
        ("e", " spaced", "7"),
    ]


def test_a_token_that_is_not_accepted_gets_the_advice_for_people():
    asked = answer(401, {"error": {"code": "unauthorized", "message": "This needs a token. Send it as a header."}})
    with scripted(asked) as server, pytest.raises(NotAllowed) as failed:
        client(server.url, how_to_log_in="Log in.").queues()
    assert str(failed.value) == "This needs a token. Log in."
    assert (failed.value.message, failed.value.advice) == ("This needs a token.", "Log in.")


def test_a_call_that_is_refused_for_another_reason_is_not_answered_with_how_to_log_in():
    asked = answer(403, {"error": {"code": "forbidden", "message": "The host name 'x' is not allowed."}})
    with scripted(asked) as server, pytest.raises(NotAllowed) as failed:
        client(server.url, how_to_log_in="Log in.").queues()
    assert str(failed.value) == "The host name 'x' is not allowed."


def test_https_that_is_spoken_to_an_http_port_is_told_at_once():
    clock = FakeTime()
    with scripted(CUT) as server, pytest.raises(WrongScheme) as failed:
        client(server.url.replace("http:", "https:"), clock).queues()
    place = server.url.partition("//")[2]
    assert str(failed.value) == f"The server at {place} speaks HTTP, not HTTPS. Write http://{place}."
    assert clock.slept == []


# ---------------------------------------------------------------- several addresses


def test_a_call_goes_to_the_next_address_at_once_and_stays_there():
    clock = FakeTime()
    with reserve_port() as nobody, scripted(answer(200, NO_QUEUES)) as second:
        api = client(f"http://127.0.0.1:{port_of(nobody)}, {second.url}/", clock)
        assert api.queues().queues == []
        assert clock.slept == [0]
        assert api.queues().queues == []
    assert (clock.slept, len(second.seen)) == ([0], 2)
    assert api.transport.server == second.url


def test_after_a_minute_the_first_address_is_tried_again():
    clock = FakeTime()
    with scripted(CUT, answer(200, NO_QUEUES)) as first, scripted(answer(200, NO_QUEUES)) as second:
        api = client(f"{first.url},{second.url}", clock)
        api.queues()
        clock.now += 59
        api.queues()
        assert (len(first.seen), len(second.seen)) == (1, 2)
        clock.now += 2
        api.queues()
    assert (len(first.seen), len(second.seen)) == (2, 2)


def test_a_server_that_is_stopping_is_left_too():
    with scripted(answer(503)) as first, scripted(answer(200, NO_QUEUES)) as second:
        client(f"{first.url},{second.url}").queues()
    assert (len(first.seen), len(second.seen)) == (1, 1)


def test_a_call_that_changes_something_keeps_its_key_on_all_addresses():
    accepted = answer(200, {"tasks": [{"task_id": "5cee4880088100", "state": "READY"}]})
    with scripted(CUT) as first, scripted(accepted) as second:
        client(f"{first.url},{second.url}").submit_tasks([{"name": "one"}])
    [lost], [answered] = first.seen, second.seen
    assert lost.headers[KEY_HEADER] == answered.headers[KEY_HEADER]
