"""`gpuprov verify --export-testinfra` and `--testinfra`: what is written, what is refused, how results count."""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from provisioner.catalog import load
from provisioner.cli.main import run
from provisioner.common.paths import private_dir
from provisioner.lifecycle import testinfra
from provisioner.lifecycle.session import open_cluster
from provisioner.lifecycle.testinfra import SuiteError, _batches, _passed_nodes
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.stack import lockfile
from provisioner.stack.models import Lock
from provisioner.verify import testinfra_export
from provisioner.verify.testinfra_export import FACTS, facts_of, suite_files
from tests.support.acceptance_suite import SUITE, Result, modules
from tests.support.healthy_bundle import DRIVER, expected, stack

P4D = "p4d.24xlarge"
FILE = """
name: fast
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 3}}
access: {allow: [203.0.113.0/24]}
verify: {min_healthy: 2}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A cluster.yaml with its lock, and no machine."""
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    cluster = open_cluster(path, sandbox=True)
    private_dir(cluster.paths.root)
    lockfile.write(cluster.paths.lock_file, Lock(request={}, simulated=True, groups={"train": stack(P4D)}))
    return path


def export(file: Path, folder: Path, *options: str) -> int:
    return run(["verify", str(file), "--sandbox", "--export-testinfra", str(folder), *options])


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_export_has_the_suite_and_the_lock_as_data(file: Path, tmp_path: Path) -> None:
    assert export(file, tmp_path / "out") == 0
    document = json.loads((tmp_path / "out" / "expected.json").read_text())
    assert {path.name for path in SUITE.iterdir() if path.is_file()} | {"expected.json"} == content(
        tmp_path / "out"
    ).keys()
    assert document["nodes"] == {f"train-{i}": "train" for i in range(3)}
    facts = document["expectations"]["train"]
    assert (facts["gpu_count"], facts["driver"], facts["rdma_ports"]) == (8, DRIVER, 4)
    assert facts["packages"]["libnccl2"] == "2.27.7-1+cuda13.0"
    assert (document["simulated"], facts["unverified"]) == (True, [])


def test_the_same_fleet_gives_the_same_bytes(file: Path, tmp_path: Path) -> None:
    assert export(file, tmp_path / "one") == export(file, tmp_path / "two") == 0
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_an_earlier_export_is_replaced_and_own_files_stay(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert export(file, out) == 0
    document = json.loads((out / "expected.json").read_text())
    document["files"] += ["test_removed.py", "../cluster.yaml"]
    (out / "expected.json").write_text(json.dumps(document))
    (out / "test_removed.py").write_text("")
    (out / "test_own.py").write_text("")
    assert export(file, out, "--node", "train-1") == 0
    assert "test_removed.py" not in content(out)
    assert "test_own.py" in content(out)
    assert file.exists()
    assert json.loads((out / "expected.json").read_text())["nodes"] == {"train-1": "train"}


def test_another_folder_is_refused(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("")
    assert export(file, tmp_path / "out") == 2
    assert "the directory is not empty and not an earlier export" in capsys.readouterr().err
    assert content(tmp_path / "out") == {"thesis.tex": b""}
    assert export(file, file) == 2


def test_without_a_lock_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cluster.yaml").write_text(FILE)
    assert export(tmp_path / "cluster.yaml", tmp_path / "out") == 2
    assert "no cluster.lock yet" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--testinfra", "--level", "stress"], "--testinfra and --level cannot be combined"),
        (["--testinfra", "--json"], "--testinfra and --json cannot be combined"),
        (["--testinfra", "--export-testinfra", "out"], "--export-testinfra and --testinfra cannot be combined"),
        (["--export-testinfra", "out", "--report", "r"], "--export-testinfra and --report cannot be combined"),
        (["--testinfra", "--node", "train-9"], "there is no node train-9"),
        (["--testinfra", "--node", "train-0"], "there is no node train-0"),
    ],
)
def test_what_does_not_go_together_is_refused(
    file: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run(["verify", str(file), "--sandbox", *options]) == 2
    assert message in capsys.readouterr().err


def test_the_suite_needs_a_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", "--host", "local", "--testinfra"]) == 2
    assert "--testinfra needs a fleet" in capsys.readouterr().err


def test_a_fleet_without_machines_is_not_healthy(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(file), "--sandbox", "--testinfra"]) == 1
    assert "missing: train-0, train-1, train-2" in capsys.readouterr().err


def test_nodes_of_another_lock_have_expectations_of_their_own() -> None:
    old, new = replace(expected(P4D), driver="570.1"), expected(P4D)
    nodes = {"train-0": ("train", old), "train-1": ("train", new), "train-2": ("train", old)}
    document = testinfra_export.document("fast", nodes, simulated=False)
    assert document["nodes"] == {"train-0": "train", "train-1": "train (2)", "train-2": "train"}
    assert document["expectations"]["train (2)"]["driver"] == DRIVER


@pytest.mark.parametrize("machine", [machine.name for machine in load().machines()])
def test_unverified_facts_are_facts_of_the_suite(machine: str) -> None:
    facts = facts_of(expected(machine))
    assert set(facts["unverified"]) <= FACTS.keys() <= facts.keys()


def test_its_readme_names_this_fleets_hosts(tmp_path: Path) -> None:
    nodes = {"eval-0": ("eval", expected(P4D)), "eval-1": ("eval", expected(P4D))}
    testinfra_export.write(tmp_path / "suite", testinfra_export.document("speech", nodes, simulated=False))
    readme = (tmp_path / "suite" / "README.md").read_text()
    assert "--hosts=ssh://speech-eval-0,ssh://speech-eval-1 " in readme
    assert "`eval-0`, or `speech-eval-0`" in readme and "train-0" not in readme


def test_the_suite_imports_nothing_but_pytest_and_the_standard_library() -> None:
    for name, text in suite_files().items():
        for line in ast.walk(ast.parse(text)) if name.endswith(".py") else ():
            names = [alias.name for alias in line.names] if isinstance(line, ast.Import) else []
            names += [str(line.module)] if isinstance(line, ast.ImportFrom) else []
            assert {n.partition(".")[0] for n in names} <= {*sys.stdlib_module_names, "pytest", "gpu_node"}, name


class SilentHost:
    """A host that does not answer, or whose connection fails."""

    def __init__(self, error: str = "") -> None:
        self.error, self.query_count = error, 0

    def run(self, _: str) -> Result:
        self.query_count += 1
        if self.error:  # as testinfra's: the result of the command, whose text has all of the script
            raise RuntimeError(SimpleNamespace(command=b"sh -c ...", stderr=f"{self.error}\n"))
        Event().wait(5)
        return Result(0)


@pytest.mark.parametrize(
    ("error", "reason"),
    [("", "no answer in 0.1 s to `nvidia-smi -q -x`"), ("Connection refused", "no connection: Connection")],
)
def test_a_node_that_does_not_answer_fails_at_once(monkeypatch: pytest.MonkeyPatch, error: str, reason: str) -> None:
    gpu_node, host = modules()[0], SilentHost(error)
    monkeypatch.setattr(gpu_node, "CONNECTION_S", 0.1)
    node = gpu_node.Node(host, "train-0", facts_of(expected(P4D)))
    for command in ("nvidia-smi -q -x", "ibstat"):
        with pytest.raises(pytest.fail.Exception, match=reason):
            node.run(command, seconds=0)
    assert host.query_count == 1


def test_a_difference_from_an_unverified_fact_is_an_expected_failure() -> None:
    facts: dict[str, Any] = facts_of(expected(P4D)) | {"unverified": ["gpu_count"]}
    node = modules()[0].Node(SilentHost(), "train-0", facts)
    node.require(True, "it holds", "gpu_count")
    with pytest.raises(pytest.xfail.Exception, match=r"7 of 8 \(unverified: gpu_count\)"):
        node.require(False, "7 of 8", "gpu_count", "gpu_model")
    with pytest.raises(pytest.fail.Exception, match="train-0: 7 of 8"):
        node.require(False, "7 of 8", "gpu_model")


def test_a_node_passes_where_none_of_its_tests_fails() -> None:
    junit = ElementTree.fromstring(
        '<testsuites><testsuite><testcase name="test_a[ssh://train-0]"/>'
        '<testcase name="test_b[ssh://train-0]"><skipped/></testcase>'
        '<testcase name="test_a[ssh://train-1]"><failure/></testcase>'
        '<testcase name="test_a[ssh://train-2]"><error/></testcase></testsuite></testsuites>'
    )
    assert _passed_nodes(junit) == {"train-0"}


def test_large_fleets_have_several_processes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = open_cluster(file, sandbox=True)
    monkeypatch.setattr(testinfra.ssh_config, "local", lambda _: frozenset({"train-1"}))
    assert _batches(cluster, ["train-1"]) == [["--hosts=local://", "--as-node=train-1"]]
    batches = _batches(cluster, [f"train-{i}" for i in range(1000)])
    assert len(batches) == testinfra.PARALLEL + 1
    assert sum(options[0].count("ssh://") for options in batches) == 999


def test_a_pytest_that_does_not_run_is_an_error(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster = open_cluster(file, sandbox=True)
    fleet.save(cluster.paths, [Node("train-0", "train", "here", P4D, "i-0", "", "203.0.113.7", "10.0.0.7")])
    monkeypatch.setattr(testinfra, "_batches", lambda *_: [["--no-such-option"]])
    with pytest.raises(SuiteError, match="pytest ended with status 4") as raised:
        testinfra.run_suite(cluster)
    assert raised.value.exit_code == 1
    assert "--no-such-option" in capfd.readouterr().err


def test_a_node_that_cannot_be_reached_is_not_healthy(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The whole way of --testinfra, over an ssh that fails."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text("#!/bin/sh\necho 'Connection refused' >&2\nexit 255\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:/usr/bin:/bin")
    cluster = open_cluster(file, sandbox=True)
    names = [f"train-{i}" for i in range(2)]
    fleet.save(cluster.paths, [Node(n, "train", "here", P4D, f"i-{n}", "", "203.0.113.7", "10.0.0.7") for n in names])
    report = tmp_path / "report"
    assert run(["verify", str(file), "--sandbox", "--testinfra", "--report", str(report)]) == 1
    output = capfd.readouterr()
    assert "train-0: no connection: " in output.out
    assert "not healthy: train-0, train-1" in output.err
    cases = list(ElementTree.parse(report / "report.xml").iter("testcase"))
    assert {case.get("name", "").rpartition("[")[2] for case in cases} == {"ssh://train-0]", "ssh://train-1]"}
