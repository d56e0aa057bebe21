"""Certificates for tests, made by openssl: an authority, and servers whose certificates it has signed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

_NEW_KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


class Certificate(NamedTuple):
    """PEM files."""

    file: Path
    key: Path


def why_no_certificates() -> str | None:
    return None if shutil.which("openssl") else "there is no openssl here"


class Authority:
    """Signs certificates. ``file`` is what those who trust it load."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.file, self._key = folder / "ca.pem", folder / "ca.key"
        _openssl(
            "req", "-x509", *_NEW_KEY, "-days", "2", "-subj", f"/CN={folder.name}",
            "-keyout", self._key, "-out", self.file,
        )  # fmt: skip

    def certificate(self, *names: str) -> Certificate:
        """One for a server with these names, such as ``DNS:localhost`` or ``IP:127.0.0.1``."""
        made = self._folder / names[0].replace(":", "-")
        signed, key, request, extensions = (made.with_suffix(end) for end in (".pem", ".key", ".csr", ".ext"))
        extensions.write_text(f"subjectAltName={','.join(names)}\n")
        _openssl("req", "-new", *_NEW_KEY, "-subj", "/CN=test", "-keyout", key, "-out", request)
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self._key, "-CAcreateserial", "-days", "2",
            "-extfile", extensions, "-out", signed,
        )  # fmt: skip
        return Certificate(signed, key)


def _openssl(*words: str | Path) -> None:
    subprocess.run(["openssl", *map(str, words)], capture_output=True, check=True)
