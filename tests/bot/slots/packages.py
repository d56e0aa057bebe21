"""Small packages for tests of environments, and the variables that let installers find them and nothing else."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import tarfile
import zipfile
from pathlib import Path
from shutil import which

UV = which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def a_wheel(folder: Path, name: str, version: str, files: dict[str, str], requires: tuple[str, ...] = ()) -> Path:
    """A wheel for every interpreter."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    content[f"{info}/RECORD"] = "".join(f"{one},,\n" for one in (*content, f"{info}/RECORD"))
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for one, text in content.items():
            archive.writestr(one, text)
    return path


BACKEND = """
import os, zipfile

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    {code}
    name = "{name}-1.0-py3-none-any.whl"
    info = "{name}-1.0.dist-info"
    content = {{
        "{name}.py": globals().get("MODULE", "value = 'built'"),
        f"{{info}}/METADATA": "Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n",
        f"{{info}}/WHEEL": "Wheel-Version: 1.0\\nGenerator: tests\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }}
    content[f"{{info}}/RECORD"] = "".join(f"{{one}},,\\n" for one in content)
    with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as archive:
        for one, text in content.items():
            archive.writestr(one, text)
    return name
"""


def an_sdist(folder: Path, name: str, code: str) -> Path:
    """A source package that runs this code (one indented block) when it is built; it needs no other package for that.

    The code may set the text of the module: ``globals()["MODULE"] = ...``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    indented = "\n    ".join(code.strip("\n").splitlines())
    content = {
        "pyproject.toml": (
            "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n"
            f"[project]\nname = '{name}'\nversion = '1.0'\n"
        ),
        "backend.py": BACKEND.format(code=indented, name=name),
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
    }
    path = folder / f"{name}-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for one, text in content.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{one}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return path


def installers(folder: Path, *, uv: bool) -> dict[str, str]:
    """The variables of a bot whose builds find the packages in a folder only; with or without uv."""
    folders = [one for one in os.environ.get("PATH", "").split(os.pathsep) if not (Path(one) / "uv").exists()]
    if uv:
        assert UV is not None
        folders.insert(0, str(uv_alone(folder)))
    return {
        "PATH": os.pathsep.join(folders),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(folder),
        "UV_OFFLINE": "1",
        "UV_FIND_LINKS": str(folder),
    }


def uv_alone(folder: Path) -> Path:
    """A folder with uv and no interpreter."""
    made = folder / "bin"
    made.mkdir(parents=True, exist_ok=True)
    if not (made / "uv").exists():
        assert UV is not None
        (made / "uv").symlink_to(UV)
    return made


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
