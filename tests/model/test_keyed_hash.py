"""Hashes with a key."""

import hmac

from myrmidon.model.keyed_hash import keyed_hash


def test_a_keyed_hash_is_hmac_sha256_also_the_second_time():
    for content in (b"", b"first", b"second", b"first"):
        assert keyed_hash(b"key", content) == hmac.digest(b"key", content, "sha256").hex()


def test_another_key_gives_another_hash():
    assert keyed_hash(b"key", b"content") != keyed_hash(b"other key", b"content")
