"""The files of the run directory by their models: what is left out of one that decides nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import DamagedFileError
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.machines.journal import Installation, InstallationFile, Journal
from provisioner.rundir import intent, node_state, records
from provisioner.rundir.intent import Choice, IntendedNode, Intent
from provisioner.rundir.node_state import FILE, NewerReport, NodeProgress, NodeState, SeenMachine

PAGE = "runs/20260131-000000/report.html"
MACHINE = {"node": "a-0", "machine": "p5.48xlarge", "region": "us-east-1", "kind": "spot"}
SINCE = "2026-01-31T12:00:00Z"


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    cluster_paths = ClusterPaths(tmp_path / "cluster.yaml", "vision", sandbox=False)
    private_dir(cluster_paths.root)
    return cluster_paths


@pytest.mark.parametrize(
    ("document", "state", "remaining"),
    [
        ({}, NodeState(), {}),
        ({"nodes": 7, "other": [7]}, NodeState(), {"other": [7]}),
        (
            {"nodes": {"a": {"stage": "made", "ok": "yes"}, "b": 7, "c": {"stage": [], "strange": 1}}},
            NodeState(nodes={"a": NodeProgress("made"), "c": NodeProgress()}),
            {"nodes": {"a": {"stage": "made"}, "c": {}}},
        ),
        ({"failed": {"x": "y", "z": None}}, NodeState(failed={"x": "y"}), {"failed": {"x": "y"}}),
        ({"report": "../x", "partial_report": {"report": PAGE}}, NodeState(), {}),
        (
            {"partial_report": {"report": PAGE, "nodes": ["a", 7, "b", None]}},
            NodeState(partial_report=NewerReport(PAGE, ["a", "b"])),
            {"partial_report": {"report": PAGE, "nodes": ["a", "b"]}},
        ),
        (
            {"machines": {"i-1": {**MACHINE, "since": SINCE, "until": "soon"}, "i-2": MACHINE, "i-3": {"since": 7}}},
            NodeState(machines={"i-1": SeenMachine(**MACHINE, since=SINCE)}),
            {"machines": {"i-1": {**MACHINE, "since": SINCE}}},
        ),
        ({"ends": [["a", SINCE], "?", ["b"], ["c", "soon"], [1, SINCE]]}, NodeState(ends=[("a", SINCE)]), None),
        (
            {"nodes": {"a": json.loads("[" * 500 + "]" * 500), "b": {"ok": True}}, "report": PAGE},
            NodeState(nodes={"b": NodeProgress(ok=True)}, report=PAGE),
            {"nodes": {"b": {"ok": True}}, "report": PAGE},
        ),
    ],
)
def test_what_does_not_fit_is_left_out(document: dict[str, Any], state: NodeState, remaining: object) -> None:
    assert records.fit(NodeState, document) == state
    assert remaining is None or document == remaining
    assert records.fit(NodeState, document) == state


def test_state_json_keeps_the_order_of_its_keys_and_those_that_the_model_does_not_have(paths: ClusterPaths) -> None:
    node_state.note_stage(paths, "made", ["b-0", "a-0"])
    assert json.loads((paths.root / FILE).read_text()).keys() == {"nodes"}
    node_state.note(paths, later={"x": 1})
    node_state.note_report(paths, paths.root / PAGE, ["a-0"])
    node_state.note_verdicts(paths, {"a-0": False, "b-0": True}, "standard")
    expected = {
        "nodes": {
            "b-0": {"stage": "verified", "ok": True},
            "a-0": {"stage": "unhealthy", "ok": False, "level": "standard"},
        },
        "failed": {},
        "report": None,
        "later": {"x": 1},
        "partial_report": {"report": PAGE, "nodes": ["a-0"]},
    }
    assert (paths.root / FILE).read_text() == json.dumps(expected, indent=1) + "\n"


NODES = {"a-0": {"site": "ohio", "machine": "p5.48xlarge"}}
CHOICES = {"a": {"site": "ohio", "refused": {"oregon": "shortage"}}}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"file": "x.yaml", "nodes": NODES}, Intent(file="x.yaml", nodes={"a-0": IntendedNode("ohio", "p5.48xlarge")})),
        ({"nodes": {"a-0": 7, "a-1": {}}}, Intent(nodes={"a-0": IntendedNode(), "a-1": IntendedNode()})),
        ({"choices": CHOICES}, Intent(choices={"a": Choice("ohio", {"oregon": "shortage"})})),
        ({"choices": {**CHOICES, "b": 7}, "file": 7, "sites": ["a", 7]}, Intent(choices=None, sites=["a"])),
        ({"nodes": ["a-0", 7]}, Intent(nodes={"a-0": IntendedNode()})),
        ([], Intent(choices=None)),
    ],
)
def test_an_intent_of_which_a_part_is_damaged(document: object, expected: Intent, paths: ClusterPaths) -> None:
    """Names of nodes count, because `down` looks for their machines; of choices all count, or none."""
    paths.intent.write_text(json.dumps(document))
    assert intent.load(paths) == expected


@pytest.mark.parametrize("choices", [{}, {"a": Choice("ohio", {"oregon": "shortage"})}])
def test_intent_json_is_written_with_choices_where_there_are_any(
    choices: dict[str, Choice], paths: ClusterPaths
) -> None:
    written = Intent("vision", "x.yaml", False, ["ohio"], {"a-0": IntendedNode("ohio", "p5.48xlarge")}, choices)
    intent.save(paths, written)
    expected = {"cluster": "vision", "file": "x.yaml", "sandbox": False, "sites": ["ohio"], "nodes": NODES}
    expected |= {"choices": CHOICES} if choices else {}
    assert paths.intent.read_text() == json.dumps(expected, indent=1) + "\n"
    assert intent.load(paths) == written


@pytest.mark.parametrize(
    ("changed", "location"),
    [
        ({"token": "../x"}, "hosts.n1.token: "),
        ({"order": "x"}, "hosts.n1.order: "),
        ({"serial": 7}, "hosts.n1.serial: "),
    ],
)
def test_a_damaged_journal_of_installations_is_refused_with_the_location(
    changed: dict[str, object], location: str, tmp_path: Path
) -> None:
    journal = Journal(tmp_path / "bmc.json")
    journal.note(Installation("n1", "S1", token="ab" * 16), "attaching", order=("Hdd",))
    row = {"serial": "S1", "step": "attaching", "token": "ab" * 16, "url": "", "order": ["Hdd"]}
    written = {"schema": 1, "hosts": {"n1": row | {"drive": "", "host_key": ""}}}
    assert journal.file.read_text() == json.dumps(written, indent=1) + "\n"
    journal.file.write_text(json.dumps({"schema": 1, "hosts": {"n1": row}}))
    assert journal.load() == {"n1": Installation("n1", "S1", "attaching", "ab" * 16, order=("Hdd",))}
    journal.file.write_text(json.dumps({"schema": 1, "hosts": {"n1": row | changed}}))
    with pytest.raises(DamagedFileError, match=f"is damaged: {location}") as raised:
        journal.load()
    assert (raised.value.where, raised.value.hint) == (str(journal.file), InstallationFile.REPAIR)
