"""What plan, up's question and status say of money: list prices, the time that machines were seen, and no guess."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from provisioner.cli import lifecycle
from provisioner.cli import status as cli
from provisioner.cli.display import Lines
from provisioner.common.paths import private_dir
from provisioner.lifecycle import planning, running_cost
from provisioner.lifecycle.cost import summary, wanted
from provisioner.lifecycle.node_changes import NodeChanges
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.status import status
from provisioner.output.plan import PlanOutput
from provisioner.rundir import node_state
from provisioner.rundir.fleet import Node, save
from provisioner.spec import schema
from tests.support.plans import plan

FILE = """
name: told
sites:
  here: {provider: aws, region: us-east-1}
  lab: {provider: baremetal}
groups:
  train: {site: here, machine: p4d.24xlarge, count: 2}
  block: {site: here, machine: p5.48xlarge, count: 1, capacity: {kind: block, id: cr-0123456789abcdef0}}
  own: {site: lab, machine: dgx-h100, count: 1}
"""
NOW = datetime.now(UTC)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    (tmp_path / "cluster.yaml").write_text(FILE)
    test_cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=False)
    private_dir(test_cluster.paths.root)
    return test_cluster


def node(name: str, number: str = "", machine: str = "p4d.24xlarge", site: str = "here") -> Node:
    return Node(name, name.rpartition("-")[0], site, machine, number or f"i-{name}", "", "203.0.113.7", "10.0.0.7")


def aged(cluster: Cluster, hours: float) -> None:
    """As if every machine had been seen that much earlier."""
    rows = {number: asdict(row) for number, row in node_state.load(cluster.paths).machines.items()}
    for row in rows.values():
        for key in ("since", "until"):
            if row[key]:
                row[key] = running_cost._text(running_cost._time(row[key]) - timedelta(hours=hours))
    node_state.note(cluster.paths, machines=rows)


def test_cost_so_far_is_list_price_by_the_time_that_machines_were_seen(cluster: Cluster) -> None:
    assert running_cost.so_far(cluster) is None
    running_cost.note_machines(cluster, [node("train-0"), node("train-1")])
    aged(cluster, 10)
    running_cost.note_machines(cluster, [node("train-0"), node("train-1")])  # a second `up` starts no clock again
    cost_so_far = running_cost.so_far(cluster)
    assert cost_so_far is not None
    (total,) = cost_so_far.sums
    assert total.amount == pytest.approx(2 * 10 * 21.9576, abs=0.1)
    assert (total.hour, total.dates, cost_so_far.unknown) == (2 * 21.9576, ["2026-07-20"], [])


def test_a_machine_that_was_replaced_has_cost_until_then(cluster: Cluster) -> None:
    running_cost.note_machines(cluster, [node("train-0"), node("train-1")])
    aged(cluster, 10)
    running_cost.note_machines(cluster, [node("train-0"), node("train-1", "i-new")])
    aged(cluster, 5)
    cost_so_far = running_cost.so_far(cluster)
    assert cost_so_far is not None
    assert cost_so_far.sums[0].amount == pytest.approx((15 + 10 + 5) * 21.9576, abs=0.1)
    assert cost_so_far.sums[0].hour == 2 * 21.9576


def test_what_has_no_price_is_named_and_what_is_ones_own_is_not(cluster: Cluster) -> None:
    rows = [node("block-0", machine="p5.48xlarge"), node("own-0", machine="dgx-h100", site="lab")]
    running_cost.note_machines(cluster, [*rows, node("gone-0", machine="p4d.24xlarge", site="nowhere")])
    cost_so_far = running_cost.so_far(cluster)
    assert cost_so_far is not None
    assert (cost_so_far.sums, cost_so_far.unknown) == ([], ["block-0", "gone-0"])
    assert running_cost.lines(cost_so_far) == ["cost so far unknown: block-0, gone-0: no list price"]


def test_a_sandbox_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "cluster.yaml").write_text(FILE)
    sandbox_cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    running_cost.note_machines(sandbox_cluster, [node("train-0")])
    assert running_cost.so_far(sandbox_cluster) is None
    assert not sandbox_cluster.paths.exists()


DAMAGED: dict[str, Any] = {
    "a list": [], "text": "x", "a row that is no row": {"i-1": 3}, "a time that is none": {"i-1": {
        "node": "a", "machine": "p4d.24xlarge", "region": "us-east-1", "kind": "on-demand", "since": "soon",
        "until": None,
    }},
}  # fmt: skip


@pytest.mark.parametrize("name", list(DAMAGED))
def test_what_is_damaged_is_left_out(cluster: Cluster, name: str) -> None:
    (cluster.paths.root / "state.json").write_text(json.dumps({"machines": DAMAGED[name]}))
    assert running_cost.so_far(cluster) is None


def test_status_shows_it(cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    save(cluster.paths, [node("train-0")])
    running_cost.note_machines(cluster, [node("train-0")])
    aged(cluster, 2)
    document = status(cluster, ask=False).to_json()
    jsonschema.validate(document, schema.schema("status"))
    assert document["cost"]["sums"][0]["hour"] == 21.9576
    cli.status(cluster.file, offline=True)
    text = capsys.readouterr().out
    assert re.search(r"cost so far: about 43\.9\d USD, 21\.96 USD an hour now; an estimate", text)
    assert "list prices on demand (of 2026-07-20)" in text


def test_plan_says_the_list_price_its_date_and_what_is_unknown(cluster: Cluster) -> None:
    cost = summary.planned(cluster.spec, tuple(cluster.spec.sites)).to_json()
    document = {
        "cluster": "told",
        "sandbox": False,
        "nodes": [],
        "changes": {},
        "stack": {},
        "findings": [],
        "cost": cost,
    }
    jsonschema.validate(document, schema.schema("plan"))
    text = planning.text(PlanOutput.model_validate(document))
    assert "list price on demand: 98.96 USD an hour, 72,237 USD in a month of 730 hours (prices of 2026-07-20; " in text
    assert "block: price as block is unknown: a block is paid for as a whole when it is bought" in text
    assert "own: your own machines cost nothing here: gpuprov buys nothing" in text


def test_a_sandboxs_plan_says_no_price() -> None:
    document = {
        "cluster": "told",
        "sandbox": True,
        "nodes": [],
        "changes": {},
        "stack": {},
        "findings": [],
        "cost": None,
    }
    assert "price" not in planning.text(PlanOutput.model_validate(document))


def test_what_is_made_is_priced_and_what_is_there_is_not(cluster: Cluster) -> None:
    fleet = wanted(cluster.spec)
    assert summary.making(fleet, {"train": 2}) == "43.92 USD an hour at list prices of 2026-07-20"
    assert summary.making(fleet, {"train": 1}) == "21.96 USD an hour at list prices of 2026-07-20"
    assert summary.making(fleet, {"train": 0, "own": 1}) == ""


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (NodeChanges(create=("train-0", "train-1"), total=5), "Create 2 p4d.24xlarge in the sandbox (5 resources)?"),
        (NodeChanges(remove=("train-1", "train-2"), total=2), "Remove train-1, train-2 in the sandbox (2 resources)?"),
        (
            NodeChanges(
                create=("train-1",),
                recreate=("train-0", "train-2"),
                change=("head-0",),
                remove=("old-0",),
                total=7,
                reasons={"train-2": "image changed"},
            ),
            "Create 1 p4d.24xlarge; recreate train-0; recreate train-2 (image changed); change head-0; remove old-0 "
            "in the sandbox (7 resources)?",
        ),
        (NodeChanges(total=1), "Change no machine, but what they share in the sandbox (1 resource)?"),
    ],
)
def test_ups_question_names_what_is_removed(
    tmp_path: Path, changes: NodeChanges, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = FILE.split("  block:", maxsplit=1)[0].replace("  lab: {provider: baremetal}\n", "")
    (tmp_path / "cluster.yaml").write_text(text)
    sandbox_cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    questions: list[str] = []
    monkeypatch.setattr(lifecycle, "confirmed", lambda question, **_: bool(questions.append(question)))
    lifecycle._confirm(Lines(), sandbox_cluster, yes=False)(plan(sandbox_cluster.spec), changes)
    assert questions == [expected]


@pytest.mark.parametrize("sandbox", [False, True])
def test_ups_question_says_the_price(tmp_path: Path, sandbox: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    text = FILE.split("  block:", maxsplit=1)[0].replace("  lab: {provider: baremetal}\n", "")
    (tmp_path / "cluster.yaml").write_text(text)
    priced_cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=sandbox)
    private_dir(priced_cluster.paths.root)
    save(priced_cluster.paths, [node("train-0")])
    questions: list[str] = []
    monkeypatch.setattr(lifecycle, "confirmed", lambda question, **_: bool(questions.append(question)))
    changes = NodeChanges(create=("train-1",), total=7)
    assert lifecycle._confirm(Lines(), priced_cluster, yes=False)(plan(priced_cluster.spec), changes) is False
    assert questions == [
        "Create 1 p4d.24xlarge in the sandbox (7 resources)?"
        if sandbox
        else "Create 1 p4d.24xlarge (7 resources; new: 21.96 USD an hour at list prices of 2026-07-20)?"
    ]
