"""Events: numbered once, in order for each subject, and delivered by one holder at a time."""

from __future__ import annotations

import pytest
from msgspec import json

from myrmidon.store.engine.db import Dialect
from myrmidon.store.tables import outbox, shared_numbers, sink
from tests.builders import seconds
from tests.invariants import check


@pytest.fixture
def w(world):
    world.bot("b1")
    return world


def has_one_writer(w):
    return w.db.dialect is Dialect.SQLITE


def stream(w, after=0, n=1000):
    return w.read(outbox.after, after, n)


def test_every_change_of_a_task_is_told(w):
    task = w.submit(reruns=1)
    w.do_one("b1", 1)
    w.do_one("b1")
    assert w.story(task) == ["READY", "RUNNING", "READY", "RUNNING", "SUCCEEDED"]


def test_an_event_carries_what_a_listener_needs(w):
    task = w.submit()
    w.take("b1")
    event = w.read(outbox.history, task)[-1]
    assert (event.subject, event.seq, event.kind, event.state) == (task, 2, "task", "RUNNING")
    assert json.decode(event.body) == {"generation": 1, "run": 1, "bot": "b1"}


def test_holding_and_killing_are_told(w):
    task = w.submit()
    w.take("b1")
    w.cancel(task)
    assert json.decode(w.read(outbox.history, task)[-1].body)["killing"] == 1


def test_events_are_numbered_without_gaps(w):
    w.job({"a": [], "b": ["a"]})
    w.work("b1")
    assert w.do(outbox.assign_positions, 3) == (0 if has_one_writer(w) else 3)
    while w.do(outbox.assign_positions, 3):
        pass
    assert [event.position for event in stream(w)] == list(range(1, w.count("outbox") + 1))
    check(w.db, nothing_removed=True)


def test_an_event_without_a_number_is_not_seen(w):
    """Where there is one writer, it has one from the beginning."""
    w.submit()
    assert len(stream(w)) == (1 if has_one_writer(w) else 0)
    w.do(outbox.assign_positions, 100)
    assert len(stream(w)) == 1


def test_an_event_that_came_without_a_number_is_numbered_behind_the_others(w):
    """Copied from another database, or written by an earlier release."""
    first = w.submit()
    w.do(outbox.assign_positions, 100)
    second = w.submit()
    if has_one_writer(w):
        w.do(lambda tx: tx.run("UPDATE outbox SET position = NULL WHERE subject = :subject", subject=second))
        w.do(shared_numbers.put, "outbox_position", 1)
    third = w.submit()
    w.do(outbox.assign_positions, 100)
    behind = [third, second] if has_one_writer(w) else [second, third]
    assert [(event.position, event.subject) for event in stream(w)] == list(enumerate([first, *behind], start=1))


def test_the_events_of_one_task_are_numbered_in_order(w):
    tasks = w.submit_many(3)
    w.work("b1")
    w.do(outbox.assign_positions, 100)
    for task in tasks:
        assert [event.seq for event in stream(w) if event.subject == task] == [1, 2, 3]


def test_numbering_nothing_gives_no_numbers(w):
    assert w.do(outbox.assign_positions, 100) == 0


def lease(w, holder=1, name="amqp"):
    return w.do(sink.lease, name, holder, until=w.now + seconds(10))


def test_a_new_sink_begins_with_the_next_event(w):
    w.submit_many(2)
    w.sweep()
    assert lease(w) == 2
    w.submit()
    w.sweep()
    assert [event.position for event in stream(w, after=lease(w))] == [3]


def test_a_sink_reads_on_from_its_cursor(w):
    assert lease(w) == 0
    w.submit_many(3)
    w.sweep()
    assert w.do(sink.advance, "amqp", 1, 2) is True
    assert [event.position for event in stream(w, after=lease(w))] == [3]


def test_a_sink_has_one_holder(w):
    lease(w)
    assert lease(w, holder=2) is None
    assert w.do(sink.advance, "amqp", 2, 5) is False


def test_a_holder_that_is_silent_loses_its_sink(w):
    lease(w)
    w.submit()
    w.sweep()
    w.advance(11)
    assert lease(w, holder=2) == 0
    assert w.do(sink.advance, "amqp", 1, 1) is False
    assert w.do(sink.release, "amqp", 1) is False
    assert w.do(sink.advance, "amqp", 2, 1) is True


def test_a_lease_that_is_given_back_is_free_at_once(w):
    lease(w)
    assert w.do(sink.release, "amqp", 1) is True
    assert lease(w, holder=2) == 0


def test_a_cursor_never_goes_back(w):
    lease(w)
    w.submit_many(2)
    w.sweep()
    w.do(sink.advance, "amqp", 1, 2)
    assert w.do(sink.advance, "amqp", 1, 1) is False


def test_sinks_are_independent(w):
    lease(w)
    lease(w, holder=2, name="webhooks")
    w.submit()
    w.sweep()
    w.do(sink.advance, "amqp", 1, 1)
    assert lease(w, holder=2, name="webhooks") == 0


def test_the_lag_of_a_sink_counts_what_it_has_not_confirmed(w):
    lease(w)
    lease(w, name="other")
    assert w.read(sink.lags, ["amqp", "never"]) == [sink.SinkLag("amqp", 0, None)]
    first = w.now
    w.submit()
    w.advance(5)
    w.submit()
    w.sweep()
    assert w.read(sink.lags, ["amqp"]) == [sink.SinkLag("amqp", 2, first)]
    w.do(sink.advance, "amqp", 1, 2)
    assert w.read(sink.lags, ["amqp"]) == [sink.SinkLag("amqp", 0, None)]


def test_the_event_before_each_is_found_in_the_batch_and_outside_of_it(w):
    task = w.submit()
    w.do_one("b1")
    w.sweep()
    events = [event for event in stream(w) if event.subject == task]
    states = ["READY", "RUNNING", "SUCCEEDED"]
    for batch in (events, events[1:], events[2:]):
        before = w.read(outbox.predecessors, batch)
        assert {seq: state for (_, seq), (state, _) in before.items()} == {
            event.seq: states[event.seq - 2] for event in batch if event.seq > 1
        }


def test_the_stream_replayed_gives_the_state(w):
    job = w.job({"a": [], "b": ["a"], "c": []}, max_num_retries=1, nodes={"c": {"reruns": 1}})
    w.work("b1", 1)
    w.sweep()
    w.work("b1")
    w.sweep()
    last = {event.subject: event.state for event in stream(w)}
    assert {label: last[task] for label, task in job.ids.items()} == w.states(job)
    assert last[job.id] == w.job_state(job)
