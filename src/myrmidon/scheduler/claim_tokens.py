"""Tokens of claims: all runs of a claim share one, and only the bot that has it can report on them."""

from hashlib import blake2s

from myrmidon.model.keyed_hash import keyed_hash


def claim_token(key: bytes, *, bot_id: str, session: int, nonce: int) -> str:
    """The token of a claim. It is derived from the claim, so that a repeated claim returns the same token."""
    return keyed_hash(key, f"{bot_id}\n{session}\n{nonce}".encode())


def token_hash(token: str) -> str:
    """The stored form of a token, which can verify the token but not replace it."""
    return blake2s(token.encode()).hexdigest()
