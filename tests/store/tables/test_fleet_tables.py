"""What a fleet is told, in the database: versions of the settings folder, the fate of releases, sizes of caches."""

from __future__ import annotations

from functools import partial

import pytest

from myrmidon.model.errors import WrongState
from myrmidon.store.tables import cache_sizes, release, settings_version, shared_numbers
from myrmidon.store.tables.cache_sizes import CacheSize
from myrmidon.store.tables.release import Choice
from tests.conftest import START

SECOND = 1_000_000
OLD, NEW, NEXT = "a" * 64, "b" * 64, "c" * 64


# ---------------------------------------------------------------- the settings folder


def put(db, files, *, at=START, who="ann", expected_position=0):
    told = {name: (f"digest of {text}", text) for name, text in files.items()}
    return db.write(
        partial(
            settings_version.put,
            version=repr(files)[:64],
            files=told,
            who=who,
            now=at,
            expected_position=expected_position,
        )
    )


def test_a_folder_comes_into_force_as_a_whole_and_each_file_keeps_its_own_story(db):
    assert db.read(settings_version.current) is None
    assert put(db, {"bots.toml": "one", "pools.toml": "p"}) == 1
    assert put(db, {"bots.toml": "two", "pools.toml": "p"}, at=START + 5, who="bob", expected_position=1) == 2
    now = db.read(settings_version.current)
    assert (now.position, now.who, {name: one.content for name, one in now.files.items()}) == (
        2,
        "bob",
        {"bots.toml": "two", "pools.toml": "p"},
    )
    assert now.files["pools.toml"].who == "ann"
    told = db.read(lambda tx: settings_version.history(tx, "bots.toml", before=9, n=10))
    assert [(one.content, one.who) for one in told] == [("two", "bob"), ("one", "ann")]
    assert [one.created_at for one in told] == [START + 5, START]


def test_a_file_that_was_removed_is_gone_and_going_back_is_a_version_again(db):
    put(db, {"bots.toml": "one", "bot_config.py": "hooks"})
    put(db, {"bots.toml": "one"}, expected_position=1)
    assert set(db.read(settings_version.current).files) == {"bots.toml"}
    assert put(db, {"bots.toml": "one", "bot_config.py": "hooks"}, expected_position=2) == 3
    assert db.read(settings_version.position) == 3
    assert db.read(partial(settings_version.exists, version=repr({"bots.toml": "one"})))
    assert not db.read(partial(settings_version.exists, version="never"))


def test_whoever_did_not_know_of_the_newest_folder_replaces_nothing(db):
    put(db, {"bots.toml": "one"})
    assert put(db, {"bots.toml": "other"}, expected_position=0) is None
    assert db.read(settings_version.current).files["bots.toml"].content == "one"
    assert put(db, {"bots.toml": "one"}, expected_position=0) == 1, "the same again, perhaps from a commit in doubt"
    assert db.read(settings_version.position) == 1


# ---------------------------------------------------------------- releases


def offer(db, digest, *, server=1, at=START):
    db.write(partial(release.offer, digest=digest, content=digest.encode(), server=server, who="ann", now=at))


def choose(db, *, at=START, careful=False, grace=60):
    since = at - grace * SECOND
    before = db.read(partial(release.current_choice, since=since, careful=careful))
    choice = db.write(partial(release.choose, now=at, since=since, careful=careful))
    assert before in (None, choice), "looking never disagrees with choosing"
    assert db.read(partial(release.current_choice, since=since, careful=careful)) == choice
    assert db.read(release.active) == choice.active
    return choice


def states(db, at=START):
    return {
        one.digest[0]: (one.state, one.active) for one in db.read(partial(release.read_all, since=at - 60 * SECOND))
    }


def test_the_newest_zip_that_a_server_offers_is_for_all_bots(db):
    offer(db, OLD)
    assert choose(db) == Choice(OLD)
    offer(db, NEW, server=2, at=START + 1)
    assert choose(db) == Choice(NEW)
    offer(db, OLD, server=1, at=START + 2)
    assert choose(db) == Choice(NEW), "an older server that is started again turns nobody back"
    assert db.read(partial(release.read, digest=OLD)).content == OLD.encode()


def test_when_all_servers_go_back_so_do_the_bots(db):
    offer(db, OLD, server=1)
    offer(db, NEW, server=2, at=START + 1)
    assert choose(db).active == NEW
    later = START + 61 * SECOND
    db.write(partial(release.renew_backing, digest=OLD, server=3, now=later))
    assert choose(db, at=later + SECOND).active == OLD
    db.write(partial(release.renew_backing, digest=NEW, server=4, now=later + SECOND))
    assert choose(db, at=later + SECOND).active == NEW, "and forward again, with the first newer server"


def test_servers_of_before_that_offer_nothing_change_nothing(db):
    offer(db, NEW)
    choose(db)
    assert choose(db, at=START + 3600 * SECOND).active == NEW


def test_a_server_that_has_another_zip_now_backs_only_that_one(db):
    offer(db, OLD)
    offer(db, NEW, at=START + 1)
    assert choose(db).active == NEW
    db.write(partial(release.renew_backing, digest=OLD, server=1, now=START + 2))
    assert choose(db).active == OLD, "its administrator has undone an edit"


def test_a_new_release_goes_to_a_few_first_then_to_all(db):
    offer(db, OLD)
    assert choose(db, careful=True) == Choice(OLD), "the very first has nobody to be compared with"
    offer(db, NEW, at=START + 1)
    assert choose(db, at=START + 2, careful=True) == Choice(OLD, NEW, START + 2)
    assert choose(db, at=START + 9, careful=True).since == START + 2
    assert db.write(partial(release.promote, digest=NEW, now=START + 10))
    assert choose(db, careful=True) == Choice(NEW)
    assert not db.write(partial(release.promote, digest=NEW, now=START + 11))
    assert states(db) == {"a": ("good", 0), "b": ("good", 1)}


def test_a_release_that_is_taken_back_is_never_offered_again(db):
    offer(db, OLD)
    choose(db)
    offer(db, NEW, at=START + 1)
    choose(db)
    gone = db.write(partial(release.revert, digest=NEW, who="bob", why="it hangs", now=START + 2))
    assert (gone.state, gone.who, gone.why) == ("bad", "bob", "it hangs")
    assert choose(db).active == OLD
    offer(db, NEW, server=7, at=START + 3)
    assert choose(db).active == OLD
    assert db.write(partial(release.revert, digest=NEXT, who="", why="", now=START)) is None
    offer(db, NEXT, at=START + 4)
    assert choose(db).active == NEXT


def test_the_last_release_that_is_left_stays(db):
    offer(db, OLD)
    choose(db)
    with pytest.raises(WrongState, match="no other release"):
        db.write(partial(release.revert, digest=OLD, who="", why="", now=START))
    assert states(db) == {"a": ("good", 1)}


def test_a_canary_that_was_bad_leaves_all_bots_where_they_were(db):
    offer(db, OLD)
    choose(db)
    offer(db, NEW, at=START + 1)
    assert choose(db, careful=True).canary == NEW
    db.write(partial(release.revert, digest=NEW, who="", why="", now=START + 2))
    assert choose(db, careful=True) == Choice(OLD)


def test_bots_that_failed_are_counted_once_each(db):
    offer(db, OLD)
    for count, bot in ((1, "b1"), (1, "b1"), (2, "b2")):
        assert db.write(partial(release.record_failure, digest=OLD, bot_id=bot, now=START)) == count


def test_old_releases_are_forgotten_but_not_the_bad_ones(db):
    offer(db, "0" * 64)
    choose(db)
    offer(db, NEW)
    db.write(partial(release.revert, digest=NEW, who="", why="", now=START))
    for number in range(1, 15):
        offer(db, f"{number:064}", at=START + number)
        choose(db, at=START + number)
    kept = db.read(partial(release.read_all, since=START))
    assert len(kept) == 1 + release.KEPT + 1
    assert [one.digest for one in kept if one.state == "bad"] == [NEW]


def test_releases_of_code_of_before_count_as_good(db):
    db.write(
        lambda tx: (shared_numbers.lock(tx, "bot_release"), tx.insert(release._RELEASES, [(OLD, START, 1, 0, b"zip")]))
    )
    offer(db, NEW, at=START + 1)
    assert choose(db, careful=True) == Choice(OLD, NEW, START)


# ---------------------------------------------------------------- caches


def test_sizes_of_caches_are_replaced_and_forgotten(db):
    def put_sizes(size, at):
        db.write(
            partial(
                cache_sizes.save, sizes=[CacheSize("p", "Linux", "git", size, at), CacheSize("p", "Mac", "git", 9, at)]
            )
        )

    put_sizes(5, START)
    put_sizes(7, START + 1)
    found = db.read(cache_sizes.read_all)
    assert [(one.os, one.size, one.measured_at) for one in found] == [("Linux", 7, START + 1), ("Mac", 9, START + 1)]
    assert db.write(partial(cache_sizes.delete_old, before=START + 2)) == 2
    assert db.read(cache_sizes.read_all) == []
