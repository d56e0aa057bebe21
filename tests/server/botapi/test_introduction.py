"""Which bots a token brings in, how often, and how long a bot's credential is good."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial

import pytest

from myrmidon.model import dimensions
from myrmidon.server.auth.authenticator import _sign, _to_base64
from myrmidon.server.fleet.config_sync import ConfigFolderWatcher
from myrmidon.store.tables import api_token
from myrmidon.store.tables import bot as bots
from tests.server.inside import Inside, inside
from tests.server.test_fleet import write

GROUPS = """
[[group]]
name = "lab"
bots = ["rack3", "printer"]
prefixes = ["lab-"]
dimensions = { pool = ["lab"] }

[[group]]
name = "others"
default = true
"""
SECOND = 1_000_000


class Introducer:
    """Makes tokens and handshakes of a server in this process."""

    def __init__(self, app: Inside) -> None:
        self.app = app
        self.session = time.time_ns() // 1000

    def token(self, **binding):
        made = self.app.post("/api/v1/tokens", {"name": "t", "role": "bot-bootstrap", **binding})
        assert made.status == 200, made
        return made.json["token"]

    def shake(self, name, token, *, session=None, pool="default", **options):
        """A handshake of a new process, unless a session is given."""
        if session is None:
            self.session = session = self.session + 1
        body = {"bot_id": name, "session": session, "dimensions": {"id": [name], "pool": [pool], "os": ["Linux"]}}
        return self.app.post("/bot/v1/handshake", body, token=token, **options)

    def row(self, name):
        return self.app.context.db.engine.read(partial(bots.read, bot_id=name))

    def pools(self, name):
        return dimensions.bot_sets(self.row(name).dimensions)["pool"]


@contextmanager
def a_fleet(folder, database=None, groups=GROUPS):
    with inside(folder, database) as app:
        if groups:
            write(folder / "config", bots_toml=groups)
            app.run(ConfigFolderWatcher(app.context).poll())
        yield Introducer(app)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    with a_fleet(tmp_path_factory.mktemp("introductions")) as opened:
        yield opened


@pytest.fixture
def any_fleet(db_url, tmp_path):
    with a_fleet(tmp_path, db_url, groups="") as opened:
        yield opened


# ---------------------------------------------------------------- tokens


def test_a_token_is_good_for_its_number_of_bots_and_a_repeated_handshake_is_no_second_use(any_fleet):
    token = any_fleet.token(uses=2)
    first = any_fleet.shake("b1", token)
    again = any_fleet.shake("b1", token, session=any_fleet.session)
    assert (first.status, again.json["credential"]) == (200, first.json["credential"])
    assert any_fleet.shake("b2", token).status == 200
    over = any_fleet.shake("b3", token)
    assert (over.status, "used as often as it may be" in over.body.decode()) == (401, True)
    assert any_fleet.row("b3") is None
    assert any_fleet.shake("b2", token, session=any_fleet.session - 1).status == 200, (
        "its response may be lost even now"
    )


def test_without_a_word_on_it_a_token_is_for_one_bot_of_the_default_pool_and_for_a_day(fleet):
    made = fleet.app.post("/api/v1/tokens", {"name": "t", "role": "bot-bootstrap"}).json
    assert (made["uses_left"], made["bot_pool"], made["bot_group"], made["bot_ids"]) == (1, "default", None, None)
    assert made["expires_at"] - made["created_at"] == 86_400 * SECOND
    fleet.shake("one", made["token"])
    listed = {one["id"]: one for one in fleet.app.get("/api/v1/tokens").json["tokens"]}
    assert listed[made["id"]]["uses_left"] == 0


def test_only_a_bootstrap_token_is_bound_to_bots(fleet):
    refused = fleet.app.post("/api/v1/tokens", {"name": "t", "role": "user", "uses": 1, "bot_pool": "p"})
    assert [problem["path"] for problem in refused.json["error"]["problems"]] == ["bot_pool", "uses"]
    for wrong in ("a*b", "**", ""):
        assert fleet.app.post("/api/v1/tokens", {"name": "t", "role": "bot-bootstrap", "bot_ids": wrong}).status == 400


def test_a_token_that_ended_elsewhere_brings_no_bot_in_although_it_is_remembered(fleet):
    token = fleet.token(uses=5)
    assert fleet.shake("seen", token).status == 200
    now = fleet.app.context.now()
    revoke = partial(api_token.revoke, token_id=int(token.split("_")[1], 16), now=now)
    fleet.app.context.db.engine.write(revoke)
    assert fleet.shake("unseen", token).status == 401


def test_a_token_brings_in_no_id_that_a_prefix_trusts_unless_it_is_bound_to_it(fleet):
    for name in ("lab-7", "rack3--x"):
        refused = fleet.shake(name, fleet.token())
        assert (refused.status, "'lab'" in refused.body.decode()) == (403, True)
        assert fleet.shake(name, fleet.token(bot_ids="*")).status == 403
        assert fleet.shake(name, fleet.token(bot_group="others")).status == 403
    assert fleet.shake("lab-7", fleet.token(bot_ids="l*")).status == 403, "a pattern that is wider than the prefix"
    assert fleet.shake("lab-7", fleet.token(bot_group="lab")).status == 200
    assert fleet.shake("lab-8", fleet.token(bot_ids="lab-8")).status == 200
    assert fleet.shake("rack3--x", fleet.token(bot_ids="rack3--*")).status == 200
    assert fleet.shake("rack4--x", fleet.token(bot_ids="rack3--*")).status == 403
    assert fleet.pools("rack3--x") == {"lab"}
    assert fleet.shake("anybody", fleet.token(bot_group="lab")).status == 403
    assert fleet.shake("printer", fleet.token()).status == 200, "the administrator has named this one machine"


def test_a_bot_stays_in_the_pool_that_its_token_is_bound_to(any_fleet):
    welcome = any_fleet.shake("b1", any_fleet.token(bot_pool="gpu")).json
    assert (welcome["dimensions"], any_fleet.pools("b1")) == ({"pool": ["gpu"]}, {"gpu"})
    mine = {"token": welcome["credential"]}
    escaped = {"id": ["b1"], "pool": ["vault"]}
    ask = {"session": any_fleet.session, "nonce": 1, "n": 0, "dimensions": escaped}
    assert any_fleet.app.post("/bot/v1/exchange", ask, **mine).status == 200
    assert any_fleet.pools("b1") == {"gpu"}
    assert any_fleet.shake("b1", welcome["credential"], pool="vault").status == 200
    assert any_fleet.pools("b1") == {"gpu"}
    assert any_fleet.shake("b2", any_fleet.token(bot_pool="gpu"), pool="vault").status == 403
    assert any_fleet.shake("b3", any_fleet.token(bot_pool="*"), pool="vault").status == 200
    assert any_fleet.pools("b3") == {"vault"}


def test_a_session_that_somebody_has_read_gives_no_other_token_the_bot_of_it(fleet):
    fleet.shake("watched", fleet.token())
    seen = fleet.app.get("/api/v1/bots/watched").json["session"]
    assert fleet.shake("watched", fleet.token(), session=seen).status == 403


# ---------------------------------------------------------------- credentials


def calls_of(fleet, name, credential, session):
    """The status of each call of a bot."""
    said = {"session": session, "nonce": 1, "n": 0}
    paths = {"exchange": said, "heartbeat": {"session": session}, "event": {"session": session, "kind": "bot_log"}}
    answers = [fleet.app.post(f"/bot/v1/{path}", body, token=credential) for path, body in paths.items()]
    answers += [fleet.app.get("/bot/v1/zip", token=credential), fleet.shake(name, credential, session=session)]
    return {answer.status for answer in answers}


def test_a_deleted_bots_credential_is_good_for_nothing_also_when_the_bot_is_introduced_again(any_fleet):
    old = any_fleet.shake("b1", any_fleet.token()).json["credential"]
    assert calls_of(any_fleet, "b1", old, any_fleet.session) == {200}
    assert any_fleet.app.delete("/api/v1/bots/b1").code == "wrong_state", "it is alive"
    assert any_fleet.app.delete("/api/v1/bots/b1?force=true").status == 200
    assert calls_of(any_fleet, "b1", old, any_fleet.session) == {401}
    new = any_fleet.shake("b1", any_fleet.token()).json["credential"]
    assert calls_of(any_fleet, "b1", old, any_fleet.session) == {401}, "although it knows the new one's session"
    assert calls_of(any_fleet, "b1", new, any_fleet.session) == {200}


def test_a_revoked_bot_is_out_until_it_is_introduced_again(any_fleet):
    old = any_fleet.shake("b1", any_fleet.token()).json["credential"]
    key = {"Idempotency-Key": "once"}
    told = any_fleet.app.post("/api/v1/bots/b1/revoke", headers=key)
    assert (told.status, told.json["alive"]) == (200, False)
    assert calls_of(any_fleet, "b1", old, any_fleet.session) == {401}
    new = any_fleet.shake("b1", any_fleet.token()).json["credential"]
    assert any_fleet.app.post("/api/v1/bots/b1/revoke", headers=key).status == 200
    assert calls_of(any_fleet, "b1", new, any_fleet.session) == {200}, "the call that was repeated meant the old one"
    assert any_fleet.app.post("/api/v1/bots/nobody/revoke").code == "not_found"


def test_a_credential_of_before_there_were_epochs_is_good_until_it_is_revoked(fleet):
    fleet.shake("old", fleet.token())
    content = f"old\n{fleet.session}".encode()  # as older code has issued it
    credential = f"myb_{_to_base64(content)}.{_sign(fleet.app.context.keys.bot, content)}"
    fleet.app.context.db.engine.write(lambda tx: tx.run("UPDATE bots SET epoch = 0 WHERE id = 'old'"))
    fleet.app.context.hub.forget("old")
    assert calls_of(fleet, "old", credential, fleet.session) == {200}
    given = fleet.shake("old", credential).json["credential"]
    assert calls_of(fleet, "old", given, fleet.session) == {200}
    fleet.app.post("/api/v1/bots/old/revoke")
    assert calls_of(fleet, "old", credential, fleet.session) == calls_of(fleet, "old", given, fleet.session) == {401}


# ---------------------------------------------------------------- two bots of one id


def test_two_processes_that_displace_each_other_are_quarantined_with_the_reason(any_fleet):
    mine = any_fleet.shake("b1", any_fleet.token()).json["credential"]
    first = any_fleet.session
    assert any_fleet.shake("b1", mine).status == 200  # a copy of its folder, elsewhere
    second = any_fleet.session
    assert any_fleet.shake("b1", mine, session=first).status == 409
    assert any_fleet.shake("b1", mine, session=first).status == 409
    assert any_fleet.row("b1").quarantined is None, "the first has lost, and ends"
    assert any_fleet.shake("b1", mine).json["quarantined"] is None  # it was started again
    assert any_fleet.shake("b1", mine, session=second).status == 409
    why = any_fleet.app.get("/api/v1/bots/b1").json["quarantined"]
    assert f"session {first} " in why
    assert f"session {second} " in why
    assert any_fleet.shake("b1", mine).json["quarantined"] == why, "whichever of them comes next"
    kinds = [one["kind"] for one in any_fleet.app.get("/api/v1/bots/b1/events").json["events"]]
    assert (kinds.count("bot_displaced"), kinds.count("bot_quarantined")) == (2, 1)
    any_fleet.app.post("/api/v1/bots/b1/quarantine", {"reason": None})
    assert any_fleet.row("b1").quarantined is None


def test_a_bot_that_is_killed_and_started_again_and_again_is_not_quarantined(any_fleet):
    mine = any_fleet.shake("b1", any_fleet.token()).json["credential"]
    for _ in range(5):
        assert any_fleet.shake("b1", mine).json["quarantined"] is None


def test_displacements_that_lie_far_apart_are_two_restarts_with_late_calls(fleet):
    mine = fleet.shake("slow", fleet.token()).json["credential"]
    clock = fleet.app.context.now
    try:
        for _ in range(3):
            before = fleet.session
            assert fleet.shake("slow", mine).status == 200
            assert fleet.shake("slow", mine, session=before).status == 409
            fleet.session += 1000
            later = fleet.app.context.now() + 601 * SECOND
            fleet.app.context.now = lambda later=later: later
    finally:
        fleet.app.context.now = clock
    assert fleet.row("slow").quarantined is None
