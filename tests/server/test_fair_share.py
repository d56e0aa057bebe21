"""Two resource groups with a backlog share the bots equally, over HTTP, however much each has waiting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from tests.server.contexts import a_task
from tests.server.inside import Inside, inside

GROUPS = ("default", "other")


@pytest.fixture
def app(tmp_path) -> Iterator[Inside]:
    with inside(tmp_path) as opened:
        opened.post("/api/v1/groups", {"name": "other"})
        yield opened


class Bots:
    """Bots that run what they get in no time, one after another."""

    def __init__(self, app: Inside, number: int, slots: int) -> None:
        self.app, self.slots = app, slots
        self.names = [f"b{number}" for number in range(number)]
        self.held: dict[str, list[Any]] = {name: [] for name in self.names}
        self.nonces = dict.fromkeys(self.names, 0)
        for name in self.names:
            app.meet_bot(name)

    def exchange(self, name: str) -> list[Any]:
        """Report all runs of a bot, and claim the next ones."""
        reports = [
            {"type": "finish", "run": run["run"], "token": run["token"], "exit_code": 0, "duration": 1.0}
            for run in self.held[name]
        ]
        self.nonces[name] += 1
        ask = {"session": 1, "nonce": self.nonces[name], "n": self.slots, "wait_s": 0, "reports": reports}
        reply = self.app.post("/bot/v1/exchange", ask, token=self.app.credential(name))
        assert reply.status == 200, reply
        self.held[name] = reply.json["tasks"]
        return self.held[name]

    def claims(self, number: int) -> list[str]:
        """The resource groups of the next claimed tasks, in order."""
        owners: list[str] = []
        while len(owners) < number:
            for name in self.names:
                owners += [run["name"] for run in self.exchange(name)]
        return owners[:number]


def backlog(app: Inside, group: str, number: int, **given: Any) -> None:
    """Tasks of a group, which are named after it."""
    tasks = [a_task(**{**given, "name": group}) for _ in range(number)]
    app.submit(*tasks, token=app.token("user", group))


@pytest.mark.parametrize(
    ("larger", "num_bots", "slots"),
    [
        ("default", 1, 1),
        ("other", 3, 4),
        *[pytest.param(*case, marks=pytest.mark.full) for case in product(GROUPS, [1, 2, 3, 5], [1, 4])],
    ],
)
def test_each_of_two_groups_gets_half_of_the_claims(app, larger, num_bots, slots):
    for group in GROUPS:  # both in queues of the same dimensions
        backlog(app, group, 1000 if group == larger else 100)
    shares = Counter(Bots(app, num_bots, slots).claims(180))
    assert {group: round(shares[group] / 180, 2) for group in GROUPS} == pytest.approx(
        dict.fromkeys(GROUPS, 0.5), abs=0.05
    )


def test_a_group_that_comes_later_gets_its_half_at_once_and_no_more(app):
    bots = Bots(app, 3, 1)
    backlog(app, "default", 500)
    assert set(bots.claims(60)) == {"default"}
    backlog(app, "other", 100)
    shares = Counter(bots.claims(100))
    assert shares["other"] == pytest.approx(50, abs=5)


def test_what_one_group_leaves_goes_to_the_other(app):
    backlog(app, "default", 50)
    backlog(app, "other", 5)
    owners = Bots(app, 1, 1).claims(55)
    assert Counter(owners) == {"default": 50, "other": 5}
    assert Counter(owners[:10]) == {"default": 5, "other": 5}


def test_a_better_priority_goes_before_the_share(app):
    backlog(app, "default", 20, priority=50)
    backlog(app, "other", 20)
    assert Bots(app, 1, 1).claims(40) == ["default"] * 20 + ["other"] * 20
