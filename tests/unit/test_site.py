"""The site of docs/: every page is in its navigation, and it builds without a broken link or a foreign server."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import sentences, site_hooks
from tests.support.sandbox_cluster import ROOT

FETCHED = re.compile(
    r"""<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)="?(https?:[^" >]*)|@import|url\(["']?http"""
)


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml without the functions that it names."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


@pytest.fixture(scope="module")
def navigation() -> list[Any]:
    document = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)
    return [site_hooks.expand(entry) for entry in document["nav"]]


def test_the_navigation_has_every_page_once(navigation: list[Any]) -> None:
    docs = ROOT / "docs"
    files = Counter(file.relative_to(docs).as_posix() for file in docs.rglob("*.md"))
    assert Counter(site_hooks.pages(navigation)) == files


def test_the_readme_fits_two_screens() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 80
    assert "`make test`" in text
    targets = [target for target in re.findall(r"\]\(([^)#\s]+)", text) if not target.startswith("https:")]
    assert len(targets) > 20
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_a_link_out_of_the_pages_becomes_a_path() -> None:
    def replaced(text: str) -> str:
        return site_hooks.without_outer_links(text, "guides/aws.md")

    assert replaced("[the module](../../terraform/aws/README.md)") == "the module (`terraform/aws/README.md`)"
    assert replaced("[`hooks`](../../examples/hooks)") == "`examples/hooks`"
    for text in ("[lock](../concepts/stack.md#lock)", "![report](../images/report.png)"):
        assert replaced(text) == text
    with pytest.raises(ValueError, match="the repository has no terraform/nowhere"):
        replaced("[module](../../terraform/nowhere)")


@pytest.mark.slow
def test_the_site_builds_and_fetches_nothing(tmp_path: Path) -> None:
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is missing: make docs installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300)
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not FETCHED.search(text), f"{page}: {FETCHED.search(text)}"
        assert str(ROOT) not in text
    assert (tmp_path / site_hooks.WORKER).is_file()


def test_commands_after_a_list_are_a_code_block() -> None:
    """Four spaces right after a list are another paragraph of its last item: a sentence stands between them."""
    command = re.compile(r"^    (\$ |sudo |gpuprov |make |export |python3? )")
    for file in sorted((ROOT / "docs").rglob("*.md")):
        in_list = in_fence = False
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            in_fence ^= line.startswith("```")
            if re.match(r" {0,3}([-*]|[0-9]+\.) ", line):
                in_list = True
            elif line and not line.startswith(" "):
                in_list = False
            assert in_fence or not (in_list and command.match(line)), f"{file}:{number}: {line}"


def test_long_sentences_are_counted() -> None:
    short = "`gpuprov up FILE --sandbox` counts [as one word](concepts/stack.md). Here is another one."
    long = " ".join(["Word", *["word"] * 25]) + "."
    page = f"# {long}\n\n{short}\n{long}\n\n```\n{long}\n```\n\n    {long}\n\n- {long}\n\n| a | {long} |\n"
    generated = f"<!-- options: begin -->\n{long}\n<!-- options: end -->\n"
    counted = [(row.line, row.length) for row in sentences.long_sentences(page + generated)]
    assert counted == [(3, 26), (12, 26), (14, 26)]
    assert [row.length for row in sentences.sentences(short)] == [5, 4]


def test_the_readme_has_no_long_sentence() -> None:
    assert sentences.long_sentences((ROOT / "README.md").read_text(encoding="utf-8")) == []
