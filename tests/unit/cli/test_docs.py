"""docs/reference/cli.md has every command, every option, and examples that are what gpuprov prints."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from provisioner.cli.main import COMMANDS, load
from provisioner.errors import Exit
from provisioner.sandbox.faults import FAULTS
from provisioner.spec import schema
from scripts.doc_tables import TABLES, Table
from tests.support.rehearsal import ROOT

TEXT = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
SECTIONS = {part.split("\n", 1)[0]: part for part in re.split(r"^## ", TEXT, flags=re.M)[1:]}
EXAMPLES = re.findall(r"^```json ([\w-]+)\n(.*?)^```", TEXT, re.M | re.S)


def options(command: Any) -> Iterator[str]:
    """Every option of a command and of its own commands; --help goes without saying."""
    for inner in getattr(command, "commands", {}).values():
        yield from options(inner)
    for parameter in command.params:
        if parameter.param_type_name == "option":
            yield from (o for o in (*parameter.opts, *parameter.secondary_opts) if o not in ("--help", "-h"))


def test_the_headings_are_the_commands_in_their_order() -> None:
    assert list(SECTIONS) == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_described(name: str) -> None:
    for option in options(load(name, COMMANDS[name])):
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", SECTIONS[name]), option


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_invented(name: str) -> None:
    have = {*options(load(name, COMMANDS[name])), "--json"}
    usage = re.sub(r"```.*?```", "", SECTIONS[name], flags=re.S)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", usage)) <= have


def test_commands_of_commands_are_described() -> None:
    for name, entry in COMMANDS.items():
        for inner in getattr(load(name, entry), "commands", {}):
            assert f"gpuprov {name} {inner}" in SECTIONS[name]


def test_every_exit_code_is_described() -> None:
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.M)} == {int(code) for code in Exit}


@pytest.mark.parametrize(("name", "text"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_an_example_has_its_shape(name: str, text: str) -> None:
    jsonschema.validate(json.loads(text), schema.schema(name))


def test_every_shape_has_an_example() -> None:
    assert {name for name, _ in EXAMPLES} == set(schema.NAMES) - {"cluster"}


def test_every_schema_is_named() -> None:
    for name in schema.NAMES:
        assert f"`{name}`" in SECTIONS["schema"], name


@pytest.mark.parametrize("table", TABLES, ids=[table.page.name for table in TABLES])
def test_a_generated_table_is_as_the_code_has_it(table: Table) -> None:
    assert table.placed() == table.page.read_text(encoding="utf-8"), "run: python scripts/doc_tables.py --write"


def test_the_faults_of_the_docs_are_those_of_the_sandbox() -> None:
    page = (ROOT / "docs/concepts/sandbox.md").read_text(encoding="utf-8")
    assert all(f"| `{fault.name}` |" in page for fault in FAULTS)
