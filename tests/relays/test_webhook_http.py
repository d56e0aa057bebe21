"""What a webhook's URL may reach, and what its receiver may answer: nothing private, nothing unbounded."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from ipaddress import ip_network

import pytest

from myrmidon.relays import webhook_http
from myrmidon.relays.webhook_http import Refused, checked_addresses, is_allowed, parse_url, post, signature
from tests.deadline import HANG_S

LOCAL = [ip_network("127.0.0.0/8")]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/", "http://", "http:///x", "http://u:p@h/", "http://h:22/", "http://h:0/", "http://h:70000/", "//h/",
        "http://h/a b", "http://h/\r\nX: y", "http://h\n", "http://h/é", "http://h#f", "http://h/" + "x" * 3000,
        "", "javascript:alert(1)", "http://[::1", "http://h:x/",
    ],
)  # fmt: skip
def test_a_url_of_another_form_is_refused(url):
    with pytest.raises(Refused):
        parse_url(url)


def test_a_url_is_taken_apart():
    assert parse_url("https://Hooks.example/a?b=1") == webhook_http.Target(
        https=True, host="hooks.example", port=443, path="/a?b=1", host_header="Hooks.example"
    )
    assert parse_url("http://[::1]:8080").host == "::1"


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
        "255.255.255.255", "224.0.0.1", "192.0.2.1", "192.88.99.1", "198.18.0.1", "240.0.0.1", "::", "::1", "fe80::1",
        "fe80::1%eth0",
        "fc00::1", "fd12::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1",
        "2002:7f00:1::", "2002:a00:1::", "2001:db8::1", "fec0::1", "feff::1", "::7f00:1", "::10.0.0.1",
        "::ffff:0:127.0.0.1", "::ffff:0:10.0.0.1", "3fff::1", "3fff:fff::1", "5f00::1", "5f00:ffff::1",
    ],
)  # fmt: skip
def test_an_address_that_is_not_public_is_refused(address):
    assert not is_allowed(address, [])


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34"])
def test_a_public_address_is_allowed(address):
    assert is_allowed(address, [])


def test_an_allowed_network_is_allowed_and_no_other():
    assert is_allowed("127.0.0.5", LOCAL)
    assert is_allowed("::ffff:127.0.0.5", LOCAL)
    assert not is_allowed("10.0.0.1", LOCAL)
    assert is_allowed("::1", [ip_network("::1/128")])


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "0x7f.1", "2130706433", "017700000001", "[::1]", "0"])
def test_every_way_to_write_the_own_machine_is_refused(host):
    with pytest.raises(Refused):
        asyncio.run(checked_addresses(parse_url(f"http://{host}:8080/"), []))


def test_a_name_with_one_private_address_among_public_ones_is_refused(monkeypatch):
    resolving_to(monkeypatch, ["93.184.216.34", "127.0.0.1"])
    with pytest.raises(Refused, match=r"127\.0\.0\.1, which is not public; .*allowed_networks"):
        asyncio.run(checked_addresses(parse_url("http://hooks.example/"), []))


def resolving_to(monkeypatch, *answers):
    """Names have these addresses, at the second question others than at the first."""
    asked = []

    async def resolve(host, port):
        asked.append(host)
        return answers[min(len(asked), len(answers)) - 1]

    monkeypatch.setattr(webhook_http, "resolve", resolve)
    return asked


class Receiver:
    """An HTTP server that answers every request with the same bytes, and hangs up or does not."""

    def __init__(self, answer: bytes, *, hang: bool = False) -> None:
        self.answer, self.hang = answer, hang
        self.requests: list[bytes] = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.on_connect, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/hook"
        return self

    async def __aexit__(self, *_: object):
        self.server.close()

    async def on_connect(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        self.requests.append(head + await reader.readexactly(length))
        writer.write(self.answer)
        if self.hang:
            await reader.read()
        writer.close()


def ask(answer: bytes, *, hang: bool = False, url: str | None = None):
    async def story():
        async with Receiver(answer, hang=hang) as receiver:
            return await post(url or receiver.url, {"X-A": "1"}, b"{}", allowed=LOCAL), receiver

    return asyncio.run(asyncio.wait_for(story(), HANG_S))


def test_a_request_is_sent_whole_and_success_is_the_status():
    outcome, receiver = ask(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert (outcome.ok, outcome.status, outcome.error) == (True, 204, None)
    (request,) = receiver.requests
    assert request.startswith(b"POST /hook HTTP/1.1\r\nHost: 127.0.0.1:")
    assert request.endswith(b"X-A: 1\r\n\r\n{}")


@pytest.mark.parametrize(
    ("answer", "status", "words"),
    [
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 5\r\n\r\nsorry", 500, "status 500: sorry"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", 302, "status 302"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 99999999999\r\n\r\nshort", 500, "status 500: short"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 1\r\n\r\n" + b"x" * 1_000_000, 500, "status 500: xxx"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, None, "larger than 65536 bytes"),
        (b"not http at all\r\n\r\n", None, "not HTTP"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 10, None, "interim"),
        (b"", None, "closed before the response"),
    ],
)
def test_any_other_answer_is_a_failure_that_says_what_came(answer, status, words):
    outcome, receiver = ask(answer)
    assert (outcome.ok, outcome.status) == (False, status)
    assert words in outcome.error
    assert len(outcome.error) < 1200
    assert len(receiver.requests) == 1, "no redirect is followed"


def test_a_length_that_is_a_lie_does_not_matter_once_the_status_came():
    assert ask(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nx", hang=True)[0].ok


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nX: y"])
def test_a_receiver_that_hangs_is_given_up(monkeypatch, answer):
    monkeypatch.setattr(webhook_http, "TIMEOUT_S", 0.2)
    assert "no response within" in ask(answer, hang=True)[0].error


def test_nobody_listening_is_a_failure():
    assert "Error" in ask(b"", url="http://127.0.0.1:65535/")[0].error


def test_the_connection_goes_to_the_address_that_was_checked(monkeypatch):
    """DNS rebinding: the second question would be answered with an address that must not be called."""
    asked = resolving_to(monkeypatch, ["127.0.0.1"], ["10.0.0.1"])

    async def story():
        async with Receiver(b"HTTP/1.1 200 OK\r\n\r\n") as receiver:
            url = receiver.url.replace("127.0.0.1", "hooks.example")
            return await post(url, {}, b"{}", allowed=LOCAL), receiver

    outcome, receiver = asyncio.run(story())
    assert outcome.ok
    assert asked == ["hooks.example"]
    assert b"Host: hooks.example:" in receiver.requests[0]


def test_a_name_that_has_become_private_is_not_called(monkeypatch):
    resolving_to(monkeypatch, ["127.0.0.1"])

    async def story():
        async with Receiver(b"HTTP/1.1 200 OK\r\n\r\n") as receiver:
            return await post(receiver.url.replace("127.0.0.1", "hooks.example"), {}, b"{}", allowed=[]), receiver

    outcome, receiver = asyncio.run(story())
    assert "not public" in outcome.error
    assert receiver.requests == []


def test_the_signature_is_one_that_a_receiver_can_compute():
    expected = hmac.new(b"secret", b'1700000000.{"a":1}', hashlib.sha256).hexdigest()
    assert signature(b"secret", 1_700_000_000, b'{"a":1}') == f"v1={expected}"
