"""The links of the documents lead somewhere."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from tests.architecture import source

DOCUMENTS = [*source.ROOT.glob("*.md"), *(source.ROOT / "docs").rglob("*.md")]
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@cache
def anchors(document: Path) -> set[str]:
    """The names of a document's headings, as GitHub makes them."""
    headings = HEADING.findall(FENCED.sub("", document.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def broken_links(document: Path) -> list[str]:
    broken = []
    for link in LINK.findall(document.read_text()):
        path, _, anchor = link.partition("#")
        if "://" in path:
            continue
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(f"{document.relative_to(source.ROOT)}: {link}")
    return broken


def test_every_link_leads_to_a_file_and_a_heading_that_exist():
    assert len(DOCUMENTS) > 20
    assert [link for document in DOCUMENTS for link in broken_links(document)] == []


def test_commands_below_a_list_are_fenced():
    """An indented block after a list is a paragraph of its last item, not code."""
    below_a_list = re.compile(r"^(?:- .*\n(?:  .*\n)*)\n {4}myrmidon ", re.MULTILINE)
    assert [document.name for document in DOCUMENTS if below_a_list.search(document.read_text())] == []


def test_a_walk_of_the_architecture_has_at_most_12_links():
    """Each is read in one sitting; a walk that needs more says that the code is too winding."""
    sections = (source.ROOT / "ARCHITECTURE.md").read_text().split("\n## ")
    walks = {text.partition("\n")[0]: len(LINK.findall(text)) for text in sections if text.startswith("The walk of")}
    assert len(walks) == 3
    assert max(walks.values()) <= 12, walks
