"""The pages for people: every link leads to a page and a heading that are there, every path that they name is there, and
so is every page that a source file names."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")],
    key=lambda page: page.relative_to(ROOT),
)
# Of a path in back quotes: those that begin with a folder of the repository.
NAMED = re.compile(
    r"`((?:benchmarks|docs|examples|native|packaging|src|tests)/[\w./-]+\.(?:h|cpp|py|pyi|md|txt|sh|patch))`"
)
WIDTH = 120


def prose(page: Path) -> str:
    """Without what stands in fenced blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The anchors of its headings, as they are made where the repository is shown."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page: Path) -> Iterator[str]:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and (target.is_dir() or anchor not in anchors(target))):
            yield link
    yield from (named for named in NAMED.findall(prose(page)) if not (ROOT / named).exists())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_prose_are_not_too_long(page: Path) -> None:
    lines = (line for line in prose(page).splitlines() if not line.startswith(("|", "    ", "#", "![")))
    assert [line for line in lines if len(line) > WIDTH] == []


def test_pages_that_sources_name_are_there() -> None:
    sources = [
        path
        for folder in ("benchmarks", "examples", "native", "packaging", "src", "tests")
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in {".h", ".cpp", ".py", ".pyi", ".sh"}
    ]
    missing = [
        f"{path.relative_to(ROOT)}: {page}"
        for path in sources
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text())
        if not (ROOT / page).exists()
    ]
    assert missing == []
