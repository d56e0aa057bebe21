"""HMAC-SHA256 with keys that are used again and again, and the tokens of claims that are made with it.

All runs of a claim share a token, and only the bot that has it can report on them.
"""

from functools import lru_cache
from hashlib import blake2s
from hmac import HMAC


def keyed_hash(key: bytes, content: bytes) -> str:
    """The HMAC-SHA256 of the content, in hexadecimal.

    A copy of a state that has the key already costs a third of ``hmac.digest``, which also looks up the algorithm.
    """
    state = _keyed(key).copy()
    state.update(content)
    return state.hexdigest()


@lru_cache(maxsize=16)
def _keyed(key: bytes) -> HMAC:
    return HMAC(key, digestmod="sha256")


def claim_token(key: bytes, *, bot_id: str, session: int, nonce: int) -> str:
    """The token of a claim. It is derived from the claim, so that a repeated claim returns the same token."""
    return keyed_hash(key, f"{bot_id}\n{session}\n{nonce}".encode())


def token_hash(token: str) -> str:
    """The stored form of a token, which can verify the token but not replace it."""
    return blake2s(token.encode()).hexdigest()
