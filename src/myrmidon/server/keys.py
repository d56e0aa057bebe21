"""The secret keys of an installation, shared by its servers through the database. They must never be logged."""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64encode

from msgspec import Struct

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Db, Tx
from myrmidon.store.tables import server_keys

_KEY_BYTES = 32


class Keys(Struct, frozen=True, repr_omit_defaults=True):
    """Keys for HMACs, one for each purpose."""

    run_token: bytes
    """Tokens of runs."""
    secret: bytes
    """Digests that callers must not be able to compute, such as those of requests."""
    bot: bytes
    """Credentials of bots."""
    run_api: bytes
    """Tokens with which runs call the API."""
    cursor: bytes
    """Cursors of lists."""
    hawk: bytes
    """Keys of clients that sign their calls with Hawk."""
    csrf: bytes
    """What a page sends with each change that it makes by its session's cookie."""

    def webhook_secret(self, webhook_id: int) -> bytes:
        """The secret that a webhook's messages are signed with: derived, so that it is stored nowhere."""
        digest = hmac.digest(self.secret, b"webhook %d" % webhook_id, "sha256")
        return urlsafe_b64encode(digest).rstrip(b"=")

    def __repr__(self) -> str:
        return "Keys(...)"


def open_keys(db: Db, now: Micros) -> Keys:
    """Load the keys from the database; the first server to start creates them."""
    candidates = [(name, secrets.token_bytes(_KEY_BYTES)) for name in Keys.__struct_fields__]

    def get_or_create(tx: Tx) -> Keys:
        keys = server_keys.get_or_create(tx, candidates, now)
        return Keys(**{name: keys[name] for name in Keys.__struct_fields__})

    return db.write(get_or_create)
