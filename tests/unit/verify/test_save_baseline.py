"""`gpuprov verify FILE --save-baseline` and the runs after it, as a person at a terminal has them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from provisioner.catalog import load
from provisioner.cli.main import main
from provisioner.common.paths import private_dir
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.spec import schema
from provisioner.stack import lockfile
from provisioner.stack.models import Lock
from provisioner.verify.subject import Subject
from tests.support.healthy_bundle import bundle, expected, nth, stack
from tests.support.healthy_load import load_files, ran, result

pytestmark = pytest.mark.heavy

P4D = "p4d.24xlarge"
FILE = """
name: fast
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 3}}
verify: {min_healthy: 1}
"""
BUSY = json.dumps({"state": "busy", "busy": [{"pid": 7, "name": "python3"}]})
Nodes = dict[str, Callable[[dict[str, Any]], object]]


def memory(value: float) -> Callable[[dict[str, Any]], object]:
    """GPUs whose memory has that rate, all of them."""

    def change(texts: dict[str, Any]) -> None:
        document = deepcopy(result(load().machine(P4D)))
        for gpu in document["gpus"]:
            gpu["memory_gbps"] = value
        texts["load.json"] = ran(document)

    return change


@pytest.fixture
def nodes() -> Nodes:
    """Node → what is done to its healthy texts; to be changed between two runs."""
    return {f"train-{i}": memory(2900.0) for i in range(3)}


@pytest.fixture
def file(tmp_path: Path, nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sandbox whose nodes answer with bundles."""
    (tmp_path / "cluster.yaml").write_text(FILE)
    cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=True)
    private_dir(cluster.paths.root)
    fleet.save(cluster.paths, [Node(n, "train", "here", P4D, f"i-{n}", "", "203.0.113.7", "10.0.0.7") for n in nodes])
    lockfile.write(cluster.paths.lock_file, Lock(request={}, simulated=True, groups={"train": stack(P4D)}))

    def subjects(cluster: Cluster, chosen: Sequence[Node]) -> list[Subject]:
        listed = []
        for index, (name, change) in enumerate(nodes.items()):
            texts = dict(nth(P4D, index))
            texts |= load_files(load().machine(P4D), texts)
            change(texts)
            want = expected(P4D, cluster.spec.verify.level)
            listed.append(Subject(name, "train", "here", P4D, bundle(texts), want, simulated=True))
        return [subject for subject in listed if subject.name in {node.name for node in chosen}]

    monkeypatch.setattr("provisioner.lifecycle.verifying.subjects_of", subjects)
    return tmp_path / "cluster.yaml"


def gpuprov(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_a_fleet_that_got_slower_is_told(
    file: Path, nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(texts: dict[str, Any]) -> None:
        texts["fi_info.txt"] = ""

    nodes["train-1"], nodes["train-2"] = lost, lambda t: t.update({"load.json": BUSY})
    assert gpuprov("verify", file, "--save-baseline", "--report", tmp_path / "first") == 0
    stderr = capsys.readouterr().err
    root = tmp_path / ".gpuprov" / "fast.sandbox"
    assert "baseline: train-1 left out: not healthy: efa.devices" in stderr
    assert "baseline: train-2 left out: nothing was measured: " in stderr and "python3 (pid 7)" in stderr
    assert f"baseline: 1 of 3 nodes, saved in {root / 'baseline.json'}" in stderr
    assert list(json.loads((root / "baseline.json").read_text())["nodes"]) == ["train-0"]

    for name, value in zip(nodes, (2500.0, 2890.0, 2600.0), strict=True):
        nodes[name] = memory(value)
    assert gpuprov("verify", file, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema.schema("report"))
    measures = {node["name"]: node["measures"]["memory"] for node in document["nodes"]}
    assert measures["train-0"] == {
        "value": 2500.0, "unit": "GB/s", "record": 2900.0, "of": "node", "change": -0.1379, "published": None,
        "slower": True,
    }  # fmt: skip
    assert {name: (measure["of"], measure["slower"]) for name, measure in measures.items() if name != "train-0"} == {
        "train-1": ("group", False), "train-2": ("group", True),
    }  # fmt: skip
    failed = {n["name"]: [c["id"] for c in n["checks"] if c["status"] == "fail"] for n in document["nodes"]}
    assert failed == {"train-0": ["speed.memory"], "train-1": [], "train-2": ["speed.memory"]}

    assert gpuprov("verify", file, "--report", tmp_path / "third") == 0
    stdout = " ".join(capsys.readouterr().out.split())
    assert "slower than the fleet's own record: train-0 (GPU memory -13.8%), train-2 (GPU memory -10.3%)" in stdout
    page = (tmp_path / "third" / "report.html").read_text()
    assert "last 3 runs: from 2900 to 2500 GB/s, at least 2500, at most 2900" in page
    assert len((root / "measures.jsonl").read_text().splitlines()) == 2 + 3 + 3

    assert gpuprov("verify", file, "--save-baseline", "--node", "train-0") == 0
    assert "baseline: train-0 is lower than its previous baseline: GPU memory -13.8%" in capsys.readouterr().err
    assert gpuprov("verify", file, "--node", "train-0") == 0
    assert "slower than" not in capsys.readouterr().out


def test_a_condemned_node_is_exit_one_with_the_record_saved(
    file: Path, nodes: Nodes, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes["train-1"] = lambda texts: texts.update({"fi_info.txt": ""})
    assert gpuprov("verify", file, "--save-baseline", "--node", "train-0", "--node", "train-1") == 1
    assert "baseline: 1 of 2 nodes, saved in" in capsys.readouterr().err


def test_without_a_measurement_nothing_is_saved(file: Path, nodes: Nodes, capsys: pytest.CaptureFixture[str]) -> None:
    for name in nodes:
        nodes[name] = lambda texts: texts.update({"load.json": BUSY})
    assert gpuprov("verify", file, "--save-baseline") == 0
    assert "baseline: 0 of 3 nodes, nothing was saved" in capsys.readouterr().err
    assert not (file.parent / ".gpuprov" / "fast.sandbox" / "baseline.json").exists()


def test_what_cannot_be_saved_is_refused_before_anything_runs(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("it was run")

    monkeypatch.setattr("provisioner.verify.run.verify", never)
    assert gpuprov("verify", file, "--save-baseline", "--level", "quick") == 2
    assert "quick measures nothing" in capsys.readouterr().err
    file.write_text(FILE.replace("verify: {", "verify: {level: quick, "))
    assert gpuprov("verify", file, "--save-baseline") == 2
    assert gpuprov("verify", "--bundle", file.parent, "--machine", P4D, "--save-baseline") == 2
    assert "--save-baseline needs a fleet" in capsys.readouterr().err
    damaged = file.parent / ".gpuprov" / "fast.sandbox" / "baseline.json"
    damaged.write_text('{"schema": 1, "nodes": {"train-0": 7}}')
    assert gpuprov("verify", file) == 2
    stderr = capsys.readouterr().err
    assert str(damaged) in stderr and "--save-baseline" in stderr and "Traceback" not in stderr
