"""Masking a secret in a log: the same bytes are hidden, whatever part of the log is looked at."""

from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myrmidon.model.secret_masking import LineFinder, SecretForms, Window, _spans_of

KEY = b"-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA\nabc\n-----END KEY-----\n"


def window(log, *, low=0, high=None, growing=False, missing=()):
    """The window of a log; ``missing`` are offsets that are not stored."""
    high = len(log) if high is None else high
    stored = [(i, log[i : i + 1]) for i in range(low, high) if i not in missing]
    return Window(low=low, high=high, stored=stored, length=len(log), growing=growing)


def shown(secret, log, *, growing=False, missing=()):
    """A log as masking it in one piece shows it; missing bytes as ``_``."""
    masking = SecretForms(secret).find(window(log, growing=growing, missing=missing))
    stored = bytes(95 if i in missing else byte for i, byte in enumerate(masking.apply(0, log)))
    return stored.decode("latin-1")


@pytest.mark.parametrize(
    ("secret", "log", "expected"),
    [
        (b"hunter2", b"login hunter2 ok\n", "login ******* ok\n"),
        (b"hunter2\n", b"hunter2hunter2\n", "**************\n"),
        (b"abcabc", b"xabcabcabcx", "x*********x"),
        (b"hunter2", b"hunter 2\n", "hunter 2\n"),
        (b"", b"anything\n", "anything\n"),
        (b"\r\n", b"a\r\nb\n", "a\r\nb\n"),
        (KEY, b"key: MIIEpAIBAAKCAQEA, abc\n", "key: ****************, abc\n"),
        (KEY, KEY[:20], "*" * 19 + "\n"),
        (KEY, b"<" + KEY.strip() + b">", "<" + "*" * (len(KEY) - 1) + ">"),
        (KEY, KEY.replace(b"\n", b"\r\n"), "*" * 19 + "\r\n" + "*" * 16 + "\r\nabc\r\n" + "*" * 17 + "\r\n"),
        (b"\xff\x00\xfe", b"[\xff\x00\xfe]", "[***]"),
        (b"hunter2\n", b"secret_bytes: " + b64encode(b"hunter2\n"), "secret_bytes: ************"),
    ],
)
def test_the_secret_its_long_lines_and_its_base64_are_masked(secret, log, expected):
    assert shown(secret, log) == expected


@pytest.mark.parametrize(
    ("log", "missing", "expected"),
    [
        (b"x correct-horse y", range(5, 9), "x ***____****** y"),  # in the middle of the secret
        (b"x correct", range(9, 9), "x correct"),  # seven bytes at the end are too few
        (b"x correct-", (), "x ********"),
        (b"c......rest", range(1, 7), "*______rest"),
        (b"abx.orrect-horse!", (3,), "abx_************!"),
        (b"abcdef....horse battery", range(6, 10), "abcdef____***** battery"),
        (b"abcdef..ct-h..rest", (6, 7, 12, 13), "abcdef__****__rest"),  # a piece of the middle between two gaps
        (b"abcdef..ct-h", (6, 7), "abcdef__****"),
    ],
)
def test_a_fragment_beside_missing_bytes_is_masked(log, missing, expected):
    assert shown(b"correct-horse", log, missing=missing) == expected


@pytest.mark.parametrize(
    ("log", "missing", "expected"),
    [
        (b"the password is c", (), "the password is "),
        (b"the password is correct-hors", (), "the password is "),
        (b"the password is correct-horse", (), "the password is *************"),
        (b"correct-horsecorrect-horsecorr", (), "*" * 26),
        (b"the password is correct-house", (), "the password is correct-house"),
        (b"lost ....rect-h", range(5, 9), "lost ____"),
    ],
)
def test_while_a_log_grows_an_end_that_may_begin_a_secret_is_not_shown(log, missing, expected):
    assert shown(b"correct-horse", log, growing=True, missing=missing) == expected


@st.composite
def secrets_and_logs(draw):
    """A secret, and a log that often has it or one of its lines, in a few letters so that they overlap."""
    secret = draw(st.text("ab\n", min_size=1, max_size=12).map(str.encode) | st.just(b"abbababaab\nbbabbbaabaa\n"))
    texts = [b"a", b"b", b"\n", secret, b64encode(secret), *secret.split(b"\n")]
    return secret, b"".join(draw(st.lists(st.sampled_from(texts), max_size=30)))


@st.composite
def secrets_and_logs_with_gaps(draw):
    secret, log = draw(secrets_and_logs())
    gaps = draw(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=3))
    # A log always ends with a stored byte: its length is where the last one was stored.
    missing = {i for start, size in gaps for i in range(start, start + size) if i < len(log) - 1}
    return secret, log, missing


@given(drawn=secrets_and_logs())
def test_exactly_the_bytes_of_occurrences_are_masked(drawn):
    secret, log = drawn
    whole = secret.strip(b"\n")
    lines = [line for line in whole.split(b"\n") if len(line) >= 8]
    forms = [form for form in (whole, *lines, b64encode(secret) if whole else b"") if form]
    hidden = {at + i for form in forms for at in range(len(log)) if log[at:].startswith(form) for i in range(len(form))}
    ends = {len(log) - k for form in forms for k in range(8, len(form)) if log.endswith(form[:k])}
    hidden |= set(range(min(ends, default=len(log)), len(log.rstrip(b"\n"))))
    expected = bytes(42 if i in hidden else byte for i, byte in enumerate(log))
    assert SecretForms(secret).find(window(log)).apply(0, log) == expected


@given(drawn=secrets_and_logs_with_gaps(), growing=st.booleans(), data=st.data())
def test_every_part_of_a_log_shows_the_same_bytes_as_the_whole(drawn, growing, data):
    secret, log, missing = drawn
    forms = SecretForms(secret)
    whole = forms.find(window(log, growing=growing, missing=missing)).apply(0, log)
    a = data.draw(st.integers(0, len(log)))
    b = data.draw(st.integers(a, len(log)))
    around = {"low": max(0, a - forms.reach), "high": min(len(log), b + forms.reach)}
    part = forms.find(window(log, **around, growing=growing, missing=missing)).apply(a, log[a:b])
    stored = [i for i in range(a, min(b, len(whole))) if i not in missing]
    assert [part[i - a] for i in stored] == [whole[i] for i in stored]
    assert len(part) == max(0, min(b, len(whole)) - a)


@given(drawn=secrets_and_logs_with_gaps())
def test_no_byte_that_may_belong_to_a_secret_is_shown_beside_missing_ones(drawn):
    secret, log, missing = drawn
    masked = SecretForms(secret).find(window(log, missing=missing)).apply(0, log)
    form = secret.strip(b"\n")
    for start in range(len(log) - len(form) + 1 if form else 0):
        covered = range(start, start + len(form))
        if all(i in missing or log[i] == form[i - start] for i in covered):
            assert all(i in missing or masked[i] == 42 for i in covered)


@given(drawn=secrets_and_logs(), data=st.data())
def test_what_was_shown_while_a_log_grew_is_how_the_whole_log_is_shown(drawn, data):
    secret, log = drawn
    forms, followed = SecretForms(secret), b""
    for end in sorted(data.draw(st.lists(st.integers(0, len(log)), max_size=6))):
        until_now = forms.find(window(log[:end], growing=True)).apply(0, log[:end])
        assert until_now.startswith(followed)
        followed = until_now
    assert forms.find(window(log)).apply(0, log).startswith(followed)


@given(st.lists(st.text("ab", min_size=1, max_size=6), min_size=1), st.text("abc", max_size=60))
def test_all_lines_searched_at_once_are_those_searched_one_by_one(texts, log):
    lines, content = [text.encode() for text in texts], log.encode()
    assert _covered(LineFinder(lines).spans(content)) == {
        at + offset
        for line in lines
        for at in range(len(content))
        if content.startswith(line, at)
        for offset in range(len(line))
    }


@given(st.text("ab", min_size=1, max_size=8), st.text("ab", max_size=80))
def test_occurrences_that_overlap_are_all_found(text, log):
    form, content = text.encode(), log.encode()
    starts = [at for at in range(len(content)) if content.startswith(form, at)]
    assert _covered(_spans_of(form, content)) == {at + offset for at in starts for offset in range(len(form))}


def _covered(spans):
    return {at for low, high in spans for at in range(low, high)}


def test_a_form_that_repeats_itself_is_searched_only_a_few_times():
    content = Searched(b"a" * 100_000)
    assert list(_spans_of(b"a" * 10_000, content)) == [(0, 100_000)]
    assert content.searches < 10


class Searched(bytes):
    """Bytes that count how often they were searched."""

    searches = 0

    def find(self, *args):
        self.searches += 1
        return super().find(*args)


def test_many_lines_are_masked_like_few():
    lines = [b"line %05d" % number for number in range(2_000)]
    log = b"x line 00007 line 1 line 01999\n"
    assert shown(b"\n".join(lines), log) == "x ********** line 1 **********\n"
