"""docs/reference/cli has every command and option, docs/reference/documents what gpuprov prints as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from provisioner.cli.main import COMMANDS, load
from provisioner.common import manual
from provisioner.common.errors import Exit
from provisioner.output import OUTPUTS
from provisioner.sandbox.faults import FAULTS
from provisioner.spec import schema
from scripts import cli_docs
from scripts.doc_tables import TABLES, Table
from tests.support.sandbox_cluster import ROOT

PAGES = dict(cli_docs.pages())
HELP = {name: file.read_text(encoding="utf-8") for name in COMMANDS for file in [cli_docs.COMMAND_PAGES / f"{name}.md"]}


def options(command: Any) -> Iterator[str]:
    """Every option of a command and of its own commands; --help goes without saying."""
    for inner in getattr(command, "commands", {}).values():
        yield from options(inner)
    for parameter in command.params:
        if parameter.param_type_name == "option":
            yield from (o for o in (*parameter.opts, *parameter.secondary_opts) if o not in ("--help", "-h"))


@pytest.mark.parametrize("file", PAGES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_a_generated_page_is_as_the_code_has_it(file: Path) -> None:
    assert file.read_text(encoding="utf-8") == PAGES[file], "run: python -m scripts.check_docs"


def test_no_page_is_left_over() -> None:
    files = {file for folder in (cli_docs.COMMAND_PAGES, cli_docs.DOCUMENT_PAGES) for file in folder.glob("*.md")}
    assert files == set(PAGES)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_described(name: str) -> None:
    generated = HELP[name].partition(cli_docs.END)[0]
    for option in options(load(name, COMMANDS[name])):
        assert re.search(rf"`{re.escape(option)}[` ]", generated), option


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_invented(name: str) -> None:
    have = {*options(load(name, COMMANDS[name])), "--json"}
    explanation = re.sub(r"```.*?```|^    .*$", "", HELP[name].partition(cli_docs.END)[2], flags=re.S | re.M)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", explanation)) <= have


@pytest.mark.parametrize("name", COMMANDS)
def test_gpuprov_docs_finds_every_command(name: str) -> None:
    assert manual.section(manual.page("cli"), name).startswith(f"# {name}\n")


def test_every_exit_code_is_described() -> None:
    text = (cli_docs.COMMAND_PAGES / "README.md").read_text(encoding="utf-8")
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.M)} == {int(code) for code in Exit}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_example_has_its_shape(name: str) -> None:
    jsonschema.validate(
        json.loads((cli_docs.EXAMPLES / f"{name}.json").read_text(encoding="utf-8")), schema.schema(name)
    )


def test_every_example_is_of_a_document_that_a_command_prints() -> None:
    assert {file.stem for file in cli_docs.EXAMPLES.iterdir()} == set(OUTPUTS) == set(cli_docs.PRINTED_BY)
    assert {command for commands in cli_docs.PRINTED_BY.values() for command in commands} <= set(COMMANDS)


@pytest.mark.parametrize("table", TABLES, ids=[table.page.name for table in TABLES])
def test_a_generated_table_is_as_the_code_has_it(table: Table) -> None:
    assert table.placed() == table.page.read_text(encoding="utf-8"), "run: python scripts/doc_tables.py --write"


def test_the_faults_of_the_docs_are_those_of_the_sandbox() -> None:
    page = (ROOT / "docs/concepts/sandbox.md").read_text(encoding="utf-8")
    assert all(f"| `{fault.name}` |" in page for fault in FAULTS)
