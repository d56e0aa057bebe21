"""The README's program runs as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.architecture import source


def test_the_first_look_of_the_readme_runs(tmp_path: Path) -> None:
    programs = re.findall(r"```python\n(.*?)```", (source.ROOT / "README.md").read_text(), re.DOTALL)
    [program] = [one for one in programs if "from myrmidon import" not in one]  # that one needs a server: test_examples
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "accepted" in done.stdout
