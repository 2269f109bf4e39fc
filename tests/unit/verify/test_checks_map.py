"""What health checks of GPU nodes elsewhere look for (checks_map.yaml): each row breaks a healthy bundle, and the
verdict has exactly the findings of the row."""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.spec.groups import Group, Storage
from provisioner.verify.bundle import Output
from provisioner.verify.expectations import Expected
from provisioner.verify.pytest_runner import Case, Judged
from provisioner.verify.registry import declared
from tests.support.healthy_bundle import KERNEL, bundle, edit, expected, nth
from tests.support.healthy_fio import fio_json
from tests.support.healthy_host import KEY
from tests.support.judging import judge
from tests.support.sandbox_cluster import ROOT

Texts = dict[str, Any]
Row = dict[str, Any]
ROWS: dict[str, Row] = list(yaml.safe_load_all((Path(__file__).parent / "checks_map.yaml").read_text("utf-8")))[-1]
MACHINE = "dgx-h100"
ENDS = {"finds", "test", "not_covered", "not_gpuprovs"}
"""A row has one of these."""


def _replace(texts: Texts, files: dict[str, list[str]]) -> None:
    for file, (old, new) in files.items():
        assert old in str(texts[file]), f"{old!r} is not in {file}"
        texts[file] = str(texts[file]).replace(old, new, 1)


def _replace_pattern(texts: Texts, files: dict[str, list[str]]) -> None:
    for file, (pattern, new) in files.items():
        assert re.search(pattern, str(texts[file])), f"{pattern!r} is not in {file}"
        texts[file] = re.sub(pattern, new, str(texts[file]), count=1)


def _append(texts: Texts, files: dict[str, str]) -> None:
    for file, text in files.items():
        texts[file] = str(texts[file]) + text


def _log(file: str) -> Callable[[Texts, list[str]], None]:
    def change(texts: Texts, rows: list[str]) -> None:
        texts[file] = str(texts[file]).rstrip("\n") + "\n" + "\n".join(rows) + "\n"

    return change


def _parent(document: Any, path: str) -> tuple[Any, Any]:
    *parents, last = path.split("|")
    for part in parents:
        document = document[int(part) if isinstance(document, list) else part]
    return document, int(last) if isinstance(document, list) else last


def _put(document: Any, path: str, value: Any) -> None:
    """A value below keys that are joined by bars; None takes the last one away."""
    inner, last = _parent(document, path)
    if value is None:
        del inner[last]
    else:
        inner[last] = value


def _json(texts: Texts, files: dict[str, dict[str, Any]]) -> None:
    for file, values in files.items():
        document = json.loads(str(texts[file]))
        for path, value in values.items():
            _put(document, path, value)
        texts[file] = json.dumps(document)


def _host_text(texts: Texts, values: dict[str, list[str]]) -> None:
    document = json.loads(str(texts["host.json"]))
    for path, (old, new) in values.items():
        inner, last = _parent(document, path)
        assert old in inner[last], f"{old!r} is not in {path} of host.json"
        inner[last] = inner[last].replace(old, new)
    texts["host.json"] = json.dumps(document)


def _smi(file: str) -> Callable[[Texts, dict[str, Any]], None]:
    def change(texts: Texts, values: dict[str, Any]) -> None:
        """Of `gpu`, or of all."""
        count = str(texts[file]).count("<gpu ")
        paths = {path.replace("/", "__"): str(value) for path, value in values.items() if path != "gpu"}
        for gpu in [values["gpu"]] if "gpu" in values else range(count):
            texts[file] = edit(str(texts[file]), gpu, **paths)

    return change


def _load(texts: Texts, values: dict[str, Any]) -> None:
    """The load program's result: of `gpu` where one is named, of `gpus` all, else of the node."""
    document = json.loads(str(texts["load.json"]))
    head, _, result_text = document["output"].rpartition(" result ")
    result = json.loads(result_text)
    changed = {key: value for key, value in values.items() if key not in ("gpu", "gpus")}
    for target in (
        [result["gpus"][values["gpu"]]] if "gpu" in values else result["gpus"] if values.get("gpus") else [result]
    ):
        target.update(changed)
    texts["load.json"] = json.dumps(document | {"output": f"{head} result {json.dumps(result)}"})


def _unit(texts: Texts, units: dict[str, list[str]]) -> None:
    for name, (old, new) in units.items():
        head, _, after = str(texts["units.txt"]).partition(f"Id={name}\n")
        assert old in after, name
        texts["units.txt"] = f"{head}Id={name}\n{after.replace(old, new, 1)}"


def _version(texts: Texts, versions: list[str]) -> None:
    """A version wherever it stands."""
    for file in texts:
        texts[file] = str(texts[file]).replace(*versions)


EDITS: dict[str, Callable[[Texts, Any], object]] = {
    "sub": _replace,
    "regex": _replace_pattern,
    "append": _append,
    "text": lambda texts, files: texts.update(files),
    "remove": lambda texts, files: [texts.pop(file) for file in files],
    "output": lambda texts, files: texts.update({
        file: Output(**({"text": str(texts.get(file, "")) if "rc" in how else ""} | how)) for file, how in files.items()
    }),
    "log": _log("dmesg.txt"),
    "log_after": _log("dmesg-after.txt"),
    "log_before": _log("dmesg-before.txt"),
    "json": _json,
    "host": lambda texts, values: _json(texts, {"host.json": values}),
    "host_sub": _host_text,
    "smi": _smi("nvidia-smi.xml"),
    "smi_load": _smi("nvidia-smi-load.xml"),
    "smi_after": _smi("nvidia-smi-after.xml"),
    "load": _load,
    "unit": _unit,
    "version": _version,
}  # fmt: skip


def broken(texts: Texts, how: dict[str, Any]) -> Texts:
    for kind, values in how.items():
        original = dict(texts)
        EDITS[kind](texts, values)
        assert texts != original, f"{kind} changes nothing"
    return texts


def expectation_of(row: Row) -> Expected:
    """Of a node of a group with scratch, configured by a lock."""
    machine = row.get("machine", MACHINE)
    want = expected(machine, "stress", Group(machine=machine, storage=Storage(scratch="/scratch")))
    units = ("gpuprov-cdi.service", "nvidia-dcgm.service") if want.vendor == "nvidia" else ()
    more = {"units": (*(want.units or ()), *units), "kernel": KERNEL, "repo_keys": {"gpuprov-cuda.asc": KEY}}
    document = json.dumps(want.to_json() | more)
    for old, new in row.get("locked", {}).items():
        assert old in document, old
        document = document.replace(old, new)
    return Expected.from_json(json.loads(document) | row.get("expected", {}))


def cases(row: Row, how: dict[str, Any]) -> dict[str, Case]:
    """The node n0, broken so, with the others of its group."""
    machine, want = row.get("machine", MACHINE), expectation_of(row)
    by_node = {}
    for number in range(row.get("in_group", 1)):
        texts = {**nth(machine, number), "fio.json": fio_json()}
        by_node[f"n{number}"] = Case(bundle(broken(texts, how) if number == 0 else texts), want, group="a")
    return by_node


def failing(verdict: Judged) -> dict[str, str]:
    return {check.id: check.severity for check in verdict.checks if check.status in ("fail", "note")}


def tries() -> Iterator[Any]:
    for name, row in ROWS.items():
        if "finds" in row:
            for index, attempt in enumerate((row, *row.get("also", ()))):
                yield pytest.param(name, attempt, id=f"{name}-{index}" if index else name)


@pytest.mark.parametrize(("name", "attempt"), list(tries()))
def test_a_row_has_its_findings_and_no_other(name: str, attempt: Row) -> None:
    judged = judge(cases(ROWS[name] | attempt, attempt["break"]))["n0"]
    findings = failing(judged)
    silent = {check.id for check in judged.checks if check.status == "unknown"}
    assert silent >= {*attempt.get("unknown", ())}
    assert findings == attempt["finds"], {
        c.id: (c.status, c.message) for c in judged.checks if c.id in {**findings, **attempt["finds"]}
    }


@pytest.mark.parametrize(
    "machine", sorted({(row.get("machine", MACHINE), row.get("in_group", 1)) for row in ROWS.values()})
)
def test_the_bundles_are_healthy(machine: tuple[str, int]) -> None:
    judged = judge(cases({"machine": machine[0], "in_group": machine[1]}, {}))
    assert {name: failing(verdict) for name, verdict in judged.items() if failing(verdict)} == {}


def test_every_row_says_one_thing() -> None:
    known = {check.id for check in declared()}
    for name, row in ROWS.items():
        assert row["looks_for"], name
        assert len(ENDS & {*row}) == 1, name
        assert ("break" in row) == ("finds" in row), name
        assert not {*row.get("finds", {})} - known, name


def test_tests_that_rows_name_are_there() -> None:
    for name, row in ROWS.items():
        if "test" in row:
            file, _, function = row["test"].partition("::")
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (name, function)


def test_the_documentation_says_why_and_counts_right() -> None:
    text = (ROOT / "docs/concepts/verify.md").read_text(encoding="utf-8")
    milder = text.partition("## Milder than others")[2].partition("### What other")[0]
    unsaid = {
        (name, check)
        for name, row in ROWS.items()
        if "milder" in row
        for check, severity in row["finds"].items()
        if severity != "fatal" and f"`{check}`" not in milder
    }
    assert unsaid == {("ib.gid_roce", "rdma.gids")}  # fatal but for what the catalogue does not verify
    counts = Counter("milder" if "milder" in row else (ENDS & {*row}).pop() for row in ROWS.values())
    table = re.findall(r"(?m)^\| (\d+) \|", text.partition("### What other")[2].partition("## ")[0])
    assert [*map(int, table)] == [counts[key] for key in ("finds", "milder", "test", "not_covered", "not_gpuprovs")]
