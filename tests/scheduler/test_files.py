"""References to stored files: only those that the resource group has sent, renewed when they are used."""

from __future__ import annotations

from functools import partial

import pytest

from myrmidon.model.task_request import Payload
from myrmidon.model.task_result import Finish
from myrmidon.model.value import OutputValue
from myrmidon.scheduler import resource_groups
from myrmidon.scheduler.new_values import check_files, group_of_live_run
from myrmidon.store.tables import stored_file
from tests.world import INT, World, a_function, a_node, constant, finish

A, B, C = ("a" * 64, "b" * 64, "c" * 64)
USED = "SELECT digest, used_at FROM stored_files ORDER BY digest"


@pytest.fixture
def world(db) -> World:
    return World(db).found()


def store(world: World, digest: str, group: int | None = None) -> None:
    owner = world.group if group is None else group
    world.db.write(partial(stored_file.insert, digest=digest, group_id=owner, size=2000, now=world.now))


def missing(world: World, *digests: str, group: int | None = None) -> list[str]:
    owner = world.group if group is None else group
    found: list[str] = world.db.write(lambda tx: check_files(tx, owner, digests, now=world.now))
    return found


def used(world: World) -> dict[str, int]:
    return dict(world.db.read(lambda tx: tx.all(USED)))


def test_a_group_may_refer_to_the_files_that_it_has_stored(world):
    store(world, A)
    assert missing(world, A) == []
    assert missing(world, C, A, B, B) == [B, C]
    assert missing(world) == []


def test_a_digest_alone_gives_no_right_to_a_file_of_another_group(world):
    other = world.do(resource_groups.ensure_group, external_id="other").id
    store(world, A, group=other)
    assert missing(world, A) == [A]
    assert missing(world, A, group=other) == []


def test_a_reference_renews_a_file_that_was_last_used_long_ago(world):
    store(world, A)
    stored_at = world.now
    world.now += stored_file.RENEW_AFTER
    missing(world, A)
    assert used(world) == {A: stored_at}
    world.now += 1
    missing(world, A)
    assert used(world) == {A: world.now}


def test_a_file_that_is_stored_again_is_renewed(world):
    store(world, A)
    world.now += 1
    store(world, A)
    assert used(world) == {A: world.now}


def test_a_deleted_group_has_no_files(world):
    store(world, A)
    world.db.write(partial(stored_file.delete_of_group, group_id=world.group))
    assert missing(world, A) == [A]


def test_a_live_run_stores_files_for_its_group(world):
    world.bot()
    world.submit()
    run = world.running()[0]

    def group_of(bot_id: str = "b1", number: int = run.run, token: str = run.token) -> int | None:
        found: int | None = world.db.read(lambda tx: group_of_live_run(tx, bot_id, run.task_id, number, token=token))
        return found

    assert group_of() == world.group
    assert [group_of(bot_id="b2"), group_of(number=2), group_of(token="other")] == [None, None, None]
    world.report(finish(run))
    assert group_of() is None


# ---------------------------------------------------------------- dedupe


def run_with_file(world: World) -> None:
    """Run the next task; its output is a file."""
    run = world.running()[0]
    payload = Payload(digest=A, size=2000)
    world.report(
        Finish(
            task_id=run.task_id,
            run=run.run,
            token=run.token,
            exit_code=0,
            duration=1.0,
            outputs=[OutputValue(INT, payload)],
        )
    )


def cached_job(world: World) -> int:
    """Submit a job of one function whose result may be used again; its task."""
    task = a_function(constant(), properties={"idempotent": True})
    return int(world.job({"f": a_node(task=task)}).task_ids["f"])


def test_a_result_that_is_used_again_keeps_its_file(world):
    world.bot()
    store(world, A)
    first = cached_job(world)
    run_with_file(world)
    world.now += 2 * stored_file.RENEW_AFTER
    again = cached_job(world)
    assert (world.state(first), world.state(again)) == ("SUCCEEDED", "SUCCEEDED")
    assert used(world) == {A: world.now}


def test_a_result_whose_file_is_deleted_is_not_used_again(world):
    world.bot()
    store(world, A)
    cached_job(world)
    run_with_file(world)
    world.db.write(partial(stored_file.delete_of_group, group_id=world.group))
    assert world.state(cached_job(world)) == "READY"
