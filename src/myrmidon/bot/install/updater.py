"""Installs new zips: verify, self-test in a separate process, then select for the next start.

    bot.zip                  the known good zip: started by people, and returned to when a new one fails
    bot.1.zip, bot.2.zip     new zips, alternating, so that the running zip is never overwritten
    next.json                the zip that the supervisor starts next, with its digest
    failed.json              a new zip that failed after its start, until this is reported to the server
    bad.json                 versions that failed, and when: not tried again for an hour

The version of a zip is a digest of the names and contents of its files. A zip is started only if its digest is the one
that the server has announced, and the server has signed that digest with this bot's credential. The supervisor starts
it, and returns to the known good zip if it fails.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from io import BytesIO

from myrmidon.bot.install import exit_codes
from myrmidon.bot.system import filesystem, processes

GOOD_ZIP = "bot.zip"
NEW_ZIPS = ("bot.1.zip", "bot.2.zip")
NEXT_FILE = "next.json"
FAILED_FILE = "failed.json"
BAD_FILE = "bad.json"
SELF_TEST_S = 60.0
BAD_S = 3600.0
PROVE_S = float(os.environ.get("MYRMIDON_BOT_PROVE_S") or 60.0)
WEEK_S = 7 * 86400.0
# What a damaged zip makes the standard library raise; NotImplementedError is a RuntimeError.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, LookupError, RuntimeError, ValueError)


class BadZip(Exception):
    """A zip that must not be started; the message says why."""


class SelfTestFailed(BadZip):
    """The self-test of a verified zip failed."""


class ServerUnreachable(BadZip):
    """The self-test of a verified zip got no response from the server. The zip or the server may be at fault."""


def digest_of(files: dict[str, bytes]) -> str:
    """The version of a zip with these files. Independent of compression and order."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        raw = name.encode()
        digest.update(b"%d:%s%d:" % (len(raw), raw, len(content)))
        digest.update(content)
    return digest.hexdigest()


def content_digest(zipped: bytes) -> str:
    """The version of a zip. Raises BadZip when it cannot be read or contains a file name twice."""
    try:
        with zipfile.ZipFile(BytesIO(zipped)) as archive:
            names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
            if len(set(names)) != len(names):
                raise BadZip("the zip contains a file name twice")
            return digest_of({name: archive.read(name) for name in names})
    except _ZIP_ERRORS as error:
        raise BadZip(f"the zip cannot be read: {error}") from error


def own_zip() -> str | None:
    """The zip from which this process runs; None when it runs from a source tree."""
    path = os.path.abspath(__file__)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path if os.path.isfile(path) and zipfile.is_zipfile(path) else None


def own_version() -> str:
    path = own_zip()
    return content_digest(_read(path)) if path else "source"


def check(zipped: bytes, version: str, signature: str, credential: str) -> None:
    """Verify the server's signature of the version, and that the zip has that version. Raises BadZip."""
    expected = hmac.new(credential.encode(), version.encode(), "sha256").hexdigest()
    if not hmac.compare_digest(expected, signature):
        raise BadZip("the signature of the new version is invalid")
    found = content_digest(zipped)
    if found != version:
        raise BadZip(f"the new zip has the digest {found}, not {version}")


def install(folder: str, zipped: bytes, version: str, server: str) -> None:
    """Store a verified zip beside the running one, run its self-test, and select it for the next start.

    Raises SelfTestFailed, ServerUnreachable, or OSError for a full disk.
    """
    name = NEW_ZIPS[1] if os.path.basename(own_zip() or "") == NEW_ZIPS[0] else NEW_ZIPS[0]
    path = os.path.join(folder, name)
    filesystem.write_private(path, zipped)
    run_self_test(path, server)
    filesystem.write_private(os.path.join(folder, NEXT_FILE), json.dumps({"zip": name, "digest": version}).encode())


def run_self_test(path: str, server: str, timeout_s: float = SELF_TEST_S) -> None:
    """Run the self-test of a zip in a separate process. Raises SelfTestFailed, ServerUnreachable or OSError."""
    with tempfile.TemporaryFile(dir=os.path.dirname(path)) as output:  # not a pipe, which its children could keep open
        child = subprocess.Popen(
            [sys.executable, "-I", path, "self-test", "--server", server],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd="/",
        )
        try:
            child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise SelfTestFailed(f"the self-test did not finish within {timeout_s:.0f} s") from None
        finally:
            processes.kill_group(child.pid)
            child.wait()
        output.seek(0)
        output_bytes = output.read()
    if child.returncode == exit_codes.SELF_TEST_DISK_FULL:
        raise OSError(errno.ENOSPC, "the self-test could not run: the disk is full")
    message = output_bytes[-500:].decode(errors="replace").strip()
    if child.returncode == exit_codes.SELF_TEST_SERVER_UNREACHABLE:
        raise ServerUnreachable(f"the new zip cannot reach the server: {message}")
    if child.returncode != 0:
        raise SelfTestFailed(f"the self-test failed: {message}")


def take_next(folder: str) -> str | None:
    """The zip selected by `install`, once; None when there is none, or it has changed since it was verified."""
    path = os.path.join(folder, NEXT_FILE)
    try:
        chosen = json.loads(_read(path))
        os.unlink(path)
        name = str(chosen["zip"])
        if name in NEW_ZIPS and content_digest(_read(os.path.join(folder, name))) == chosen["digest"]:
            return os.path.join(folder, name)
    except (OSError, ValueError, KeyError, TypeError, BadZip):
        pass
    return None


def is_proved(folder: str, alive_s: float, *, succeeded: bool) -> bool:
    """Whether the running zip may become the known good one.

    It must have run a task successfully and have been alive for PROVE_S, so that a zip that crashes after some seconds
    does not replace a good one. Without tasks, it may replace a zip that is older than a week.
    """
    try:
        age = time.time() - os.stat(os.path.join(folder, GOOD_ZIP)).st_mtime
    except OSError:
        return True
    return alive_s >= PROVE_S and (succeeded or age > WEEK_S)


def runs_good_zip(folder: str) -> bool:
    """Whether this process runs the known good zip, or a source tree."""
    return own_zip() in (None, os.path.join(folder, GOOD_ZIP))


def promote_own_zip(folder: str) -> None:
    """Make the running zip the known good one. Raises OSError when the disk is full."""
    own = own_zip()
    if own is not None and not runs_good_zip(folder):
        filesystem.write_private(os.path.join(folder, GOOD_ZIP), _read(own))


def record_bad(folder: str, version: str, now: float | None = None) -> None:
    """Record that a version has failed, so that it is not tried again for BAD_S."""
    now = time.time() if now is None else now
    bad = {known: at for known, at in _bad_versions(folder).items() if 0 <= now - at < BAD_S}
    with contextlib.suppress(OSError):
        filesystem.write_private(os.path.join(folder, BAD_FILE), json.dumps({**bad, version: now}).encode())


def is_bad(folder: str, version: str, now: float | None = None) -> bool:
    now = time.time() if now is None else now
    return 0 <= now - _bad_versions(folder).get(version, now + 1) < BAD_S


def _bad_versions(folder: str) -> dict[str, float]:
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        return {str(version): float(at) for version, at in json.loads(_read(os.path.join(folder, BAD_FILE))).items()}
    return {}


def record_failure(folder: str, path: str, why: str, *, blamed: bool = True) -> None:
    """Record that a new zip has failed after its start; the next worker reports it to the server.

    ``blamed``: the zip is at fault, and not something else on this machine.
    """
    version = ""
    with contextlib.suppress(OSError, BadZip):
        version = content_digest(_read(path))
        record_bad(folder, version)
    failure = {"version": version, "why": why, "blamed": blamed}
    with contextlib.suppress(OSError):
        filesystem.write_private(os.path.join(folder, FAILED_FILE), json.dumps(failure).encode())


def take_failure(folder: str) -> tuple[str, str, bool] | None:
    """(version, reason, blamed) of a new zip that has failed after its start; returned once."""
    path = os.path.join(folder, FAILED_FILE)
    try:
        failure = json.loads(_read(path))
        os.unlink(path)
        return str(failure["version"]), str(failure["why"]), bool(failure.get("blamed", True))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
