"""docs/reference/checks, docs/reference/runbook and docs/concepts/verify.md say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from provisioner.cli.main import COMMANDS
from provisioner.common import manual
from provisioner.verify.merged_checks import by_id
from provisioner.verify.registry import declared
from provisioner.verify.runbook import by_hand
from provisioner.verify.tools import FILES
from scripts.check_docs import pages, runbook_index

DOCS = Path(__file__).parents[3] / "docs"


PAGES = dict(pages())


@pytest.mark.parametrize("file", PAGES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_page_of_the_checks_is_the_codes(file: Path) -> None:
    assert file.read_text(encoding="utf-8") == PAGES[file], "run: python -m scripts.check_docs"


def test_no_area_is_left_over() -> None:
    files = {file for folder in ("checks", "runbook") for file in (DOCS / "reference" / folder).glob("*.md")}
    assert files == set(PAGES)


def test_gpuprov_docs_finds_every_check() -> None:
    text = manual.page("runbook")
    for check in declared():
        section = manual.section(text, check.id)
        assert section.startswith(f"## {check.id}\n") and check.says in section


def test_every_check_of_the_runbook_can_be_seen_by_hand_or_says_how_its_tool_ended() -> None:
    without = {check.id for check in declared() if not by_hand(check)}
    assert without == {check.id for check in declared() if not check.needs}


def test_every_command_of_the_runbook_is_one() -> None:
    assert set(re.findall(r"`gpuprov ([a-z]+)", runbook_index())) - set(COMMANDS) == set()


def test_every_check_that_the_docs_name_is_one() -> None:
    known = {check.id for check in declared()} | {*by_id()} | set(FILES)
    areas = {id.partition(".")[0] for id in known}
    for name in re.findall(r"`([a-z]+\.[a-z_]+)`", (DOCS / "concepts/verify.md").read_text()):
        assert name in known or name.partition(".")[0] not in areas, name


def test_every_file_of_a_bundle_is_named() -> None:
    text = (DOCS / "concepts/verify.md").read_text()
    assert [name for name in FILES if f"`{name}`" not in text] == []
