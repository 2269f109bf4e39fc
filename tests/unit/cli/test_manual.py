"""`gpuprov docs`, and that messages name pages that it prints, never a file of the source tree."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from provisioner.cli.main import run
from provisioner.common import manual
from provisioner.common.errors import GpuprovError
from provisioner.verify.report.terminal import NOT_LOOKED_AT
from tests.support.sandbox_cluster import ROOT

PAGE = "# Top\n\none\n\n## First step\n\ntwo\n```\n# a comment\n```\n\n### Below\n\nthree\n\n## Second\n\nfour\n"


@cache
def messages() -> tuple[tuple[str, str], ...]:
    """File and text of everything in the package that may be shown: strings but docstrings, and values of YAML."""
    return tuple(_messages())


def _messages() -> Iterator[tuple[str, str]]:
    for file in sorted((ROOT / "provisioner").rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documentation:
                yield f"{file}:{node.lineno}", node.value
    for file in sorted((ROOT / "provisioner").rglob("errors.yaml")):
        yield str(file), re.sub(r"^\s*#.*$", "", file.read_text(encoding="utf-8"), flags=re.M)


def test_no_message_names_a_file_of_the_source_tree() -> None:
    assert [location for location, text in messages() if re.search(r"docs/[\w/-]+\.md", text)] == []


def test_each_page_that_a_message_names_is_there_with_its_section() -> None:
    named_pages = {
        (location, command) for location, text in messages() for command in re.findall(r"`gpuprov docs ([^`{]+)`", text)
    }
    assert len(named_pages) > 20
    for location, command in named_pages:
        topic, *heading = shlex.split(command)
        assert len(heading) <= 1, location
        assert manual.section(manual.page(topic), heading[0]) if heading else manual.page(topic), location


@pytest.mark.parametrize(
    ("heading", "begins", "ends"),
    [("first", "## First", "three\n"), ("below", "### Below", "three\n"), ("second", "## Second", "four\n"),
     ("STEP", "## First", "three\n"), ("top", "# Top", "four\n")],
)  # fmt: skip
def test_a_section_has_what_is_below_it(heading: str, begins: str, ends: str) -> None:
    text = manual.section(PAGE, heading)
    assert text.startswith(begins) and text.endswith(ends)


def test_a_heading_that_is_not_there_gets_the_nearest() -> None:
    with pytest.raises(GpuprovError) as caught:
        manual.section(PAGE, "a comment")
    assert "First step" in caught.value.hint


def test_the_list_and_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["docs"]) == 0
    listed = capsys.readouterr().out
    assert re.search(r"^runbook +Runbook$", listed, re.M) and re.search(r"^extending +Extending", listed, re.M)
    assert run(["docs", "docs/guides/upgrade.md"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs/guides/upgrade.md").read_text(encoding="utf-8")
    assert run(["docs", "runbook", "gpu.xid"]) == 0
    assert capsys.readouterr().out.startswith("## gpu.xid\n")
    assert run(["docs", "runbok"]) == 2
    assert "did you mean runbook?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("topic", "title"),
    [("aws", "# Amazon EC2"), ("docs/aws.md", "# Amazon EC2"), ("guides/aws", "# Amazon EC2"),
     ("extending/check", "# "), ("runbook/gpu", "# gpu: GPUs"), ("cluster-yaml-azure", "# cluster.yaml for Azure"),
     ("cli", "# Commands"), ("checks", "# Checks"), ("extending", "# Extending gpuprov")],
)  # fmt: skip
def test_a_page_has_a_topic_without_its_folder(topic: str, title: str) -> None:
    assert manual.page(topic).startswith(title)


def test_a_page_in_parts_is_printed_whole_and_listed_once() -> None:
    assert {"runbook", "checks", "cli", "documents"} <= set(manual.topics())
    assert [topic for topic in manual.topics() if topic.startswith(("runbook/", "cli/"))] == []
    assert "\n# gpu: GPUs\n" in manual.page("runbook") and "\n# nvlink: NVLink\n" in manual.page("runbook")


def test_no_path_leads_out_of_the_pages(tmp_path: Path) -> None:
    for topic in ("../README", "/etc/passwd", ""):
        with pytest.raises(GpuprovError, match="there is no page"):
            manual.page(topic)


def test_the_page_of_a_node_that_was_not_looked_at_is_there() -> None:
    topic, heading = shlex.split(NOT_LOOKED_AT.strip("`"))[2:]
    assert manual.section(manual.page(topic), heading).startswith(f"## {heading}\n")
