"""Routing keys: words at their positions, escaped, hashed where they are long; never longer than AMQP allows."""

from __future__ import annotations

import string
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myrmidon.relays.routing_keys import KEY_BYTES, WORD_BYTES, graph_key, task_key, word

TASK = "7fffffffffffff100"
NAMES = st.text(string.ascii_letters + string.digits + "-_", max_size=128)
ROUTINGS = st.from_regex(r"[^\s*#\x00-\x1f\x7f]{0,10}", fullmatch=True)


def key(**changed):
    fields = {"task": TASK, "run": 2, "bot": "b1", "pool": "gpu", "worker_type": "large", "graph": "g1"}
    return task_key(**{**fields, "graph_routing": "nightly", "routing": "build.x", **changed})


def test_a_task_has_its_words_at_fixed_positions():
    assert key() == f"{TASK}.2._.b1.gpu.large.myrmidon.g1.nightly.build.x"


def test_words_that_do_not_apply_are_underscores_and_empty_routings_keep_their_dots():
    nothing = {"run": 0, "bot": None, "pool": "", "worker_type": "", "graph": "", "graph_routing": "", "routing": ""}
    assert key(**nothing) == f"{TASK}._._._._._.myrmidon._.."


def test_a_graph_has_its_scheduler_and_id_where_its_tasks_have_them():
    graph = graph_key(graph="g1", routing="nightly")
    assert graph == "_._._._._._.myrmidon.g1.nightly"
    assert graph.split(".")[6:8] == key().split(".")[6:8]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("host.example.com", "host%2Eexample%2Ecom"),
        ("a b", "a%20b"),
        ("*", "%2A"),
        ("#", "%23"),
        ("50%", "50%25"),
        ("é", "é"),
        ("x" * WORD_BYTES, "x" * WORD_BYTES),
        ("x" * (WORD_BYTES + 1), sha256(b"x" * (WORD_BYTES + 1)).hexdigest()[:WORD_BYTES]),
        ("", "_"),
        (None, "_"),
    ],
)
def test_a_word_has_no_character_that_topics_give_a_meaning(value, shown):
    assert word(value) == shown


@given(
    bot=st.text(max_size=256),
    pool=st.text(max_size=256),
    kind=st.text(max_size=256),
    graph=NAMES,
    a=ROUTINGS,
    b=ROUTINGS,
)
def test_no_key_is_longer_than_amqp_allows_and_words_stay_in_place(bot, pool, kind, graph, a, b):
    made = key(run=255, bot=bot, pool=pool, worker_type=kind, graph=graph, graph_routing=a, routing=b)
    assert len(made.encode()) <= KEY_BYTES
    words = made.split(".")
    assert (words[0], words[1], words[2], words[6]) == (TASK, "255", "_", "myrmidon")
    assert made.endswith(f".{a}.{b}")
    assert not set(".".join(words[:8])) & set("*# ")


@given(graph=NAMES, routing=ROUTINGS)
def test_no_key_of_a_graph_is_longer_either(graph, routing):
    assert len(graph_key(graph=graph, routing=routing).encode()) <= KEY_BYTES
