"""A new zip: fetched, checked, tried in a process of its own, and only then chosen.

    bot.zip                  the last known good one: what a person starts, and what is returned to
    bot.1.zip, bot.2.zip     new ones, alternating, so that the running zip is never written to
    next.json                which zip the keeper shall start next, with its digest
    failed.json              a new zip that was started and left again, until the server has been told
    bad.json                 versions that were not fine, and when: not tried again for an hour

The version of a zip is a digest over the names and contents of its files. A zip is started only if its digest is
the one the server has named and the server has signed that digest with this bot's credential. Starting it, and
going back when it fails, is the keeper's work.
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
from myrmidon.bot.system import host

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
    """A zip that must not be started, and why."""


class SelfTestFailed(BadZip):
    """The right zip, but it does not work."""


class ServerUnreachable(BadZip):
    """The right zip, but it got no answer from the server; whose fault that is remains to be seen."""


def digest_of(files: dict[str, bytes]) -> str:
    """The version of a zip with these files; how it was packed makes no difference."""
    digest = hashlib.sha256()
    for name, content in sorted(files.items()):
        raw = name.encode()
        digest.update(b"%d:%s%d:" % (len(raw), raw, len(content)))
        digest.update(content)
    return digest.hexdigest()


def content_digest(zipped: bytes) -> str:
    """The version of a zip. Raises BadZip when it cannot be read, or holds two files of one name."""
    try:
        with zipfile.ZipFile(BytesIO(zipped)) as archive:
            names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
            if len(set(names)) != len(names):
                raise BadZip("two files of the zip have the same name")
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
    """Raise BadZip unless this is the zip that the server has named, and the server has named it."""
    expected = hmac.new(credential.encode(), version.encode(), "sha256").hexdigest()
    if not hmac.compare_digest(expected, signature):
        raise BadZip("the server's signature of the new version is wrong")
    found = content_digest(zipped)
    if found != version:
        raise BadZip(f"the new zip has the digest {found}, not {version}")


def install(folder: str, zipped: bytes, version: str, server: str) -> None:
    """Put a checked zip beside the running one, try it, and choose it.

    Raises NotFine, Unheard, or OSError for a full disk.
    """
    name = NEW_ZIPS[1] if os.path.basename(own_zip() or "") == NEW_ZIPS[0] else NEW_ZIPS[0]
    path = os.path.join(folder, name)
    host.write_private(path, zipped)
    run_self_test(path, server)
    host.write_private(os.path.join(folder, NEXT_FILE), json.dumps({"zip": name, "digest": version}).encode())


def run_self_test(path: str, server: str, timeout_s: float = SELF_TEST_S) -> None:
    """Run the zip's own test of itself in a process of its own. A zip of before does not look at the server."""
    with tempfile.TemporaryFile(dir=os.path.dirname(path)) as output:  # a pipe might be kept open by its children
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
            raise SelfTestFailed(f"the new zip did not start within {timeout_s:.0f} s") from None
        finally:
            host.kill_group(child.pid)
            child.wait()
        output.seek(0)
        output_bytes = output.read()
    if child.returncode == exit_codes.SELF_TEST_DISK_FULL:
        raise OSError(errno.ENOSPC, "the new zip could not be tried: the disk is full")
    message = output_bytes[-500:].decode(errors="replace").strip()
    if child.returncode == exit_codes.SELF_TEST_SERVER_UNREACHABLE:
        raise ServerUnreachable(f"the new zip cannot reach the server: {message}")
    if child.returncode != 0:
        raise SelfTestFailed(f"the new zip is not fine: {message}")


def take_next(folder: str) -> str | None:
    """The zip to start next, chosen by `install`; None when none was, or it is not what was checked any more."""
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
    """Whether the zip of this process has earned to be the one to return to.

    It has run a task well and has lived for a while: a zip that crashes after some seconds must not replace a good
    one. Without tasks, a good one of more than a week ago is too old to return to.
    """
    try:
        age = time.time() - os.stat(os.path.join(folder, GOOD_ZIP)).st_mtime
    except OSError:
        return True
    return alive_s >= PROVE_S and (succeeded or age > WEEK_S)


def runs_good_zip(folder: str) -> bool:
    """Whether this process runs the zip to return to, or none."""
    return own_zip() in (None, os.path.join(folder, GOOD_ZIP))


def promote_own_zip(folder: str) -> None:
    """From now on the zip of this process is the one to return to. Raises OSError when the disk is full."""
    own = own_zip()
    if own is not None and not runs_good_zip(folder):
        host.write_private(os.path.join(folder, GOOD_ZIP), _read(own))


def record_bad(folder: str, version: str, now: float | None = None) -> None:
    """This version is not fine: it is not tried again for a while."""
    now = time.time() if now is None else now
    bad = {known: at for known, at in _bad_versions(folder).items() if 0 <= now - at < BAD_S}
    with contextlib.suppress(OSError):
        host.write_private(os.path.join(folder, BAD_FILE), json.dumps({**bad, version: now}).encode())


def is_bad(folder: str, version: str, now: float | None = None) -> bool:
    now = time.time() if now is None else now
    return 0 <= now - _bad_versions(folder).get(version, now + 1) < BAD_S


def _bad_versions(folder: str) -> dict[str, float]:
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        return {str(version): float(at) for version, at in json.loads(_read(os.path.join(folder, BAD_FILE))).items()}
    return {}


def record_failure(folder: str, path: str, why: str) -> None:
    """The keeper goes back to the good zip; the bot will tell the server why."""
    version = ""
    with contextlib.suppress(OSError, BadZip):
        version = content_digest(_read(path))
        record_bad(folder, version)
    with contextlib.suppress(OSError):
        host.write_private(os.path.join(folder, FAILED_FILE), json.dumps({"version": version, "why": why}).encode())


def take_failure(folder: str) -> tuple[str, str] | None:
    """(version, why) of a new zip that was started and failed; told once."""
    path = os.path.join(folder, FAILED_FILE)
    try:
        failure = json.loads(_read(path))
        os.unlink(path)
        return str(failure["version"]), str(failure["why"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
