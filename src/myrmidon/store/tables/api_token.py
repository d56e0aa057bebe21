"""Bearer tokens. Only a digest of the secret part is stored, so the table gives nobody access."""

from msgspec import Struct, structs

from myrmidon.model.ids import Micros
from myrmidon.store.engine.db import Tx
from myrmidon.store.engine.sql import Insert


class Token(Struct, frozen=True):
    """One token. It is valid only in its resource group; ``resource_group_id`` is None for administrators.

    A bot-bootstrap token introduces only bots of ``bot_group`` whose ids match ``bot_ids``, puts them into
    ``bot_pool``, and does so ``uses_left`` times more; None for no limit.
    """

    id: int
    name: str
    secret_hash: str
    role: str
    resource_group_id: int | None
    created_at: Micros
    expires_at: Micros | None
    revoked_at: Micros | None
    bot_pool: str | None = None
    bot_group: str | None = None
    bot_ids: str | None = None
    uses_left: int | None = None


_COLUMNS = ", ".join(Token.__struct_fields__)
_TOKENS = Insert("tokens", _COLUMNS)
LOCK = f"SELECT {_COLUMNS} FROM tokens WHERE id = :id {{for_update}}"
USE = "UPDATE tokens SET uses_left = uses_left - 1 WHERE id = :id AND uses_left > 0"
READ = f"SELECT {_COLUMNS} FROM tokens WHERE id = :id"
PAGE = f"SELECT {_COLUMNS} FROM tokens WHERE id < :before ORDER BY id DESC LIMIT :n"
HAS_ROLE = "SELECT 1 FROM tokens WHERE role = :role AND revoked_at IS NULL LIMIT 1"
REVOKE = "UPDATE tokens SET revoked_at = :now WHERE id = :id AND revoked_at IS NULL"


def insert(tx: Tx, token: Token) -> bool:
    """Add a token; False when the id exists already."""
    return tx.insert_new(_TOKENS, [structs.astuple(token)]) == 1


def read(tx: Tx, token_id: int) -> Token | None:
    row = tx.one(READ, id=token_id)
    return Token(*row) if row else None


def lock(tx: Tx, token_id: int) -> Token | None:
    """Lock a token. In the order of locks it comes first."""
    row = tx.one(LOCK, id=token_id)
    return Token(*row) if row else None


def use(tx: Tx, token_id: int) -> None:
    """Count one use of a locked token."""
    tx.run(USE, id=token_id)


def page(tx: Tx, *, before: int, n: int) -> list[Token]:
    """Tokens, newest first."""
    return [Token(*row) for row in tx.all(PAGE, before=before, n=n)]


def has_role(tx: Tx, role: str) -> bool:
    """Whether a token with this role exists that is not revoked."""
    return tx.one(HAS_ROLE, role=role) is not None


def revoke(tx: Tx, token_id: int, now: Micros) -> bool:
    """Revoke a token; False when it is revoked already or unknown."""
    return tx.run(REVOKE, id=token_id, now=now) == 1
