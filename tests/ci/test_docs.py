"""The pages that people read first."""

import re
from pathlib import Path

import pytest

from tests.ci.sandbox import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


def test_index_lists_every_page() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    unlisted = [page.name for page in PAGES if page.parent.name == "docs" and page.name not in index]
    assert unlisted == ["index.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_scripts_that_are_named_exist(page: Path) -> None:
    named = set(re.findall(r"\bci/[\w/.-]*\w", page.read_text()))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
