"""A storm of two minutes on each database; `make chaos` runs longer ones."""

from __future__ import annotations

import pytest

from tests import databases, servers
from tests.chaos.__main__ import storm

pytestmark = [pytest.mark.full, pytest.mark.untraced]


@pytest.mark.parametrize("kind", databases.DIALECTS)
def test_a_storm_breaks_no_promise(kind: str):
    if why := servers.available().get(kind):
        pytest.skip(why)
    outcome = storm(kind, seconds=120, seed=1)
    assert not outcome.violations, outcome.text()
