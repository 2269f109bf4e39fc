"""Tools are declared once: what follows from a declaration, and what fails where one is not wired."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest

from provisioner.verify import facts, parsers, probe
from provisioner.verify.probe.runner import COLLECTORS
from provisioner.verify.request import ProbeRequest, unknown_machine_request
from provisioner.verify.tools import FILES, TOOLS


def modules(package: ModuleType) -> list[ModuleType]:
    return [
        importlib.import_module(f"{package.__name__}.{info.name}") for info in pkgutil.iter_modules(package.__path__)
    ]


PROBE, PARSERS = modules(probe), modules(parsers)


def hint(field: str) -> Any:
    owner, _, name = field.rpartition(".")
    return get_type_hints(facts.NESTED[owner] if owner else facts.Facts)[name]


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.field)
def test_the_field_of_facts_has_the_type_that_the_parser_returns(tool: Any) -> None:
    assert hint(tool.field) == get_type_hints(tool.parse)["return"] | None


def test_every_parser_is_declared() -> None:
    declared = {tool.parse for tool in TOOLS}
    functions = [value for module in PARSERS for name, value in vars(module).items() if re.match(r"parse(_|$)", name)]
    assert [function for function in functions if function not in declared] == []


def test_every_field_is_filled_by_one_tool() -> None:
    filled = Counter(tool.field for tool in TOOLS)
    assert set(filled.values()) == {1}
    fields = {field for field in get_type_hints(facts.Facts) if field not in (*facts.NESTED, "smi_failure")}
    about = {"sources", "outputs", "error", "simulated", "collected", "received"}
    assert {field for field in filled if "." not in field} == fields - about
    nested = {f"{outer}.{name}" for outer, kind in facts.NESTED.items() for name in get_type_hints(kind)}
    assert {field for field in filled if "." in field} == nested


def test_a_tool_without_its_field_of_facts_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "TOOLS", (*TOOLS, replace(TOOLS[0], file="new.txt", field="brand_new")))
    with pytest.raises(LookupError, match=r"'brand_new', which the tool new\.txt fills"):
        facts._in_order()


def test_every_file_can_be_made() -> None:
    """By a command, off files of the node, or by a function of the probe's; never in two ways. What is asked elsewhere
    is none of the node's."""
    for tool in FILES.values():
        sources = [bool(tool.command), bool(tool.paths), tool.file in COLLECTORS]
        assert sum(sources) == (tool.asked != "elsewhere"), tool.file
    assert set(COLLECTORS) <= set(FILES)


def test_what_the_probe_is_told_of_a_tool() -> None:
    tools = ProbeRequest({"topo.txt": 5, "reboot.txt": 5, "host.json": 5}).to_json()["tools"]
    assert tools == {
        "topo.txt": {"argv": ["nvidia-smi", "topo", "-m"], "merge": True, "omit": ""},
        "reboot.txt": {"paths": ["/run/reboot-required", "/run/reboot-required.pkgs"], "empty": True},
    }


def test_a_machine_of_which_nothing_is_known_is_asked_by_every_vendors_tools() -> None:
    files = set(unknown_machine_request().files)
    assert {"nvidia-smi.xml", "rocm-smi.json", "ibstat.txt", "fi_info.txt", "fabricmanager.txt", "host.json"} <= files
    assert "units.txt" in files
    assert "slurmd.service" in unknown_machine_request().units
    assert {"stamp.json", "container-images.json", "load.json"}.isdisjoint(files)


def test_no_two_modules_of_the_probe_define_the_same_name() -> None:
    """They are sent as one text, where the later definition would win."""
    names: Counter[str] = Counter()
    for module in PROBE:
        for node in ast.parse(Path(module.__file__ or "").read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names[node.name] += 1
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names.update(target.id for target in targets if isinstance(target, ast.Name))
    assert [name for name, count in names.items() if count > 1] == []
