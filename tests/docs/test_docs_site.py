"""The docs site: it builds without a warning, holds every page, and asks nothing of the network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from places import ROOT

pytest.importorskip("material", reason="no mkdocs-material here (make docs installs it)")
pytestmark = [pytest.mark.slow, pytest.mark.requirement("S0.32")]

PAGES = sorted((ROOT / "docs" / "en").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={"NO_MKDOCS_2_WARNING": "1", "PATH": ""}
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return folder


def nav(entries: list) -> list[str]:
    found = []
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            found += nav(value) if isinstance(value, list) else [value]
    return found


def test_every_page_is_in_the_navigation_and_on_the_site(site):
    text = (ROOT / "mkdocs.yml").read_text()
    listed = nav(yaml.safe_load("nav:" + text.partition("\nnav:")[2])["nav"])
    assert sorted(listed) == [page.name for page in PAGES]
    for page in PAGES:
        assert (site / page.with_suffix(".html").name).is_file()
    assert (site / "search" / "search_index.json").stat().st_size > 50_000


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.glob("*.html"):
        loaded = re.findall(r'<(?:script|link|img|iframe)[^>]*?(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert not [url for url in loaded if "localhost" not in url], page.name


def test_formulas_are_drawn_without_scripts(site):
    text = (site / "ppo.html").read_text()
    assert text.count("<math") > 10 and "arithmatex" not in text and "$$" not in text


@pytest.mark.requirement("S0.29", "S3.39")
def test_the_founding_diagrams_are_there(site):
    text = (site / "diagrams.html").read_text()
    assert text.count('class="mermaid"') >= 5
    for title in ("The training loop", "One PPO update", "Networks", "A buffer is rows", "From trajectories"):
        assert title in text


def test_pictures_have_texts_and_pages_one_title():
    for page in [*PAGES, ROOT / "README.md"]:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        assert not re.findall(r"!\[\s*\]\(", text), page.name
        assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1, page.name


@pytest.mark.requirement("S0.30")
def test_glossary_licence_changelog_and_where_to_send_problems():
    words = re.findall(r"^\| ([\w ,_()-]+?) \|", (ROOT / "docs" / "en" / "glossary.md").read_text(), re.MULTILINE)
    assert {"iteration", "rollout", "terminated", "truncated", "journal"} <= set(words)
    assert "MIT" in (ROOT / "LICENSE").read_text() and "0.1.0" in (ROOT / "CHANGELOG.md").read_text()
    assert "problem" in (ROOT / "CONTRIBUTING.md").read_text().lower()
