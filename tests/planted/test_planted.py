"""Each planted bug turns its tests red; without any bug the same tests are green."""

from __future__ import annotations

import pytest

from tests import databases, servers
from tests.planted.bugs import BUGS, ROOT, Bug, run_tests, why_missed

pytestmark = pytest.mark.untraced
QUICK = [bug for bug in BUGS if bug.database == "sqlite"]
SLOW = [bug for bug in BUGS if bug.database != "sqlite"]


@pytest.mark.full
def test_without_a_bug_the_catchers_are_green() -> None:
    done = run_tests(ROOT / "src", sorted({test for bug in QUICK for test in bug.caught_by}), "sqlite")
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.full
@pytest.mark.parametrize("bug", QUICK, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: Bug) -> None:
    assert not (trouble := why_missed(bug)), trouble


@pytest.mark.full
@pytest.mark.parametrize("bug", SLOW, ids=lambda bug: bug.name)
def test_a_planted_race_is_caught(bug: Bug) -> None:
    if why := servers.available()[bug.database]:
        pytest.skip(why)
    assert not (trouble := why_missed(bug)), trouble


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_can_still_be_planted(bug: Bug) -> None:
    text = (ROOT / "src" / "myrmidon" / bug.file).read_text()
    assert text.count(bug.old) == 1, f"{bug.name}: its text in {bug.file} has changed; plant it again"


@pytest.mark.parametrize("database", databases.DIALECTS)
def test_the_short_suite_has_the_tests_that_catch_each_bug(database: str) -> None:
    catchers = sorted({test for bug in BUGS if bug.database == database for test in bug.caught_by})
    listed = run_tests(ROOT / "src", catchers, database, "--collect-only").stdout if catchers else ""
    assert [test for test in catchers if f"{test}[{database}" not in listed and f"{test}\n" not in listed] == []


def test_there_are_enough_bugs_and_each_is_another() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 15
