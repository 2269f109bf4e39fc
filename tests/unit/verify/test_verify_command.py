"""`gpuprov verify`, `facts`, `collect` as processes see them: standard output, standard error, exit status."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import provisioner.verify.report
import provisioner.verify.run
from provisioner.cli.main import main
from provisioner.common.paths import private_dir
from provisioner.lifecycle import baselines, subjects, verifying
from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.lifecycle.session import open_cluster
from provisioner.rundir import fleet, node_state
from provisioner.rundir.fleet import Node
from provisioner.verify.bundle import Bundle
from provisioner.verify.results import Report
from provisioner.verify.subject import Subject
from tests.support.healthy_bundle import bundle, capture, expected, healthy, nth
from tests.support.sandbox_cluster import ROOT

pytestmark = pytest.mark.heavy

P4D = "p4d.24xlarge"


def gpuprov(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "provisioner.cli.main", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env=os.environ | environment
    )


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A healthy p4d as a directory of files, as somebody copied them."""
    for name, text in healthy(P4D).items():
        (tmp_path / "node").mkdir(exist_ok=True)
        (tmp_path / "node" / name).write_text(str(text))
    return tmp_path / "node"


def test_a_bundle_is_judged_offline(node: Path, tmp_path: Path) -> None:
    done = gpuprov("verify", "--bundle", node, "--machine", P4D, "--json", "--report", tmp_path / "report")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["ok"] is True
    assert {c["status"] for c in document["nodes"][0]["checks"]} <= {"pass", "skip"}
    assert (tmp_path / "report" / "report.html").exists()
    assert str(tmp_path / "report" / "report.html") in done.stderr


def test_a_fault_in_a_bundle_is_exit_one(node: Path) -> None:
    (node / "dmesg.txt").write_text(capture("dmesg/gpu-fallen-off-bus-single-line-docs.txt"))
    done = gpuprov("verify", "--bundle", node, "--machine", P4D, "--json")
    assert done.returncode == 1
    checks = json.loads(done.stdout)["nodes"][0]["checks"]
    assert [c["id"] for c in checks if c["status"] == "fail"] == ["gpu.xid"]
    table = gpuprov("verify", "--bundle", node, "--machine", P4D)
    assert table.returncode == 1
    assert "gpu.xid" in table.stdout


def test_an_absent_file_is_unknown_and_not_healthy(node: Path) -> None:
    (node / "topo.txt").unlink()
    done = gpuprov("verify", "--bundle", node, "--machine", P4D, "--json")
    assert done.returncode == 1
    checks = {c["id"]: c["status"] for c in json.loads(done.stdout)["nodes"][0]["checks"]}
    assert checks["nvlink.topology"] == "unknown"
    assert "fail" not in checks.values()


@pytest.mark.parametrize("command", [("verify", "--machine", P4D), ("facts",)])
def test_an_empty_bundle_is_refused(command: tuple[str, ...], tmp_path: Path) -> None:
    done = gpuprov(*command, "--bundle", tmp_path)
    assert done.returncode == 2
    assert f"{tmp_path}: the bundle is empty" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "--machine", P4D, "--sandbox"), "--sandbox is for the fleet of a cluster.yaml"),
        (("verify", "--machine", P4D, "--no-sandbox"), "--no-sandbox is for the fleet"),
        (("verify", "--machine", P4D, "--node", "train-0"), "--node is for the fleet"),
        (("facts", "--sandbox"), "--sandbox is for the fleet"),
    ],
)
def test_what_is_for_a_fleet_is_refused_beside_a_bundle(
    arguments: tuple[str, ...], message: str, node: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments, "--bundle", node) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify",),
        ("verify", "--bundle", "/nowhere", "--machine", P4D),
        ("verify", "--bundle", str(ROOT / "examples"), "--machine", "p4d.24xlargo"),
        ("verify", "--bundle", str(ROOT / "examples"), "--host", "local", "--machine", P4D),
        ("verify", "--host", "-oProxyCommand=x", "--machine", P4D),
        ("verify", "--host", "me@dgx[01-", "--machine", P4D),
        ("verify", "--host", "me@dgx[1-99999]", "--machine", P4D),
        ("facts", "--host", "me@dgx[01-02]"),
        ("verify", "--host", "", "--machine", P4D),
        ("verify", "--host", "me@127.0.0.1:2299", "--machine", P4D),
        ("facts",),
        ("facts", "--bundle", "/nowhere"),
    ],
)
def test_bad_input_is_exit_two_with_a_sentence(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*arguments) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert "Traceback" not in output.err
    assert "internal error" not in output.err
    assert output.err.strip()


def test_a_text_that_no_tool_printed_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("the node is slow since Monday\n")
    assert run("verify", "--bundle", tmp_path) == 1
    output = capsys.readouterr()
    sentence = (
        "UNKNOWN: nothing in it is the output of a tool that gpuprov reads (`gpuprov docs verify bundles` lists them)"
    )
    assert output.out == f"{tmp_path.name}: {sentence}\n"
    assert output.err == "not used: notes.txt: not the output of a tool that is judged\n"
    assert run("verify", "--bundle", tmp_path, "--json") == 1
    output = capsys.readouterr()
    assert json.loads(output.out)["bundle"]["placed"] == [] and sentence in output.err


def test_facts_are_shown_before_any_judgement(node: Path) -> None:
    done = gpuprov("facts", "--bundle", node, "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["driver_version"] == "580.173.02"
    assert len(document["gpus"]) == 8
    assert document["topology"]["GPU0"]["GPU1"] == "NV12"
    assert document["nvlinks"]["7"]["active"] == 12
    assert document["efa_devices"] == 4
    plain = gpuprov("facts", "--bundle", node)
    assert plain.returncode == 0
    assert "driver_version" in plain.stdout


def test_this_machine_is_probed_and_is_no_p4d() -> None:
    done = gpuprov("verify", "--host", "local", "--machine", P4D, "--level", "quick", "--json")
    assert done.returncode == 1
    checks = {c["id"]: c["status"] for c in json.loads(done.stdout)["nodes"][0]["checks"]}
    assert checks["gpu.count"] in ("unknown", "fail")


def test_machines_of_a_range_are_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probed side by side, each once, and compared with each other (fleet.*): none keeps the others from a verdict."""
    verified: list[Subject] = []

    def verify(subjects: Sequence[Subject], **_: object) -> Report:
        verified.extend(subjects)
        return Report((), {}, 0.0)

    monkeypatch.setattr(provisioner.verify.run, "verify", verify)
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--host", "me@dgx[08-10,08].lab", "--machine", "dgx-h100", "--level", "quick", "--json"])
    assert ended.value.code == 1
    assert [subject.name for subject in verified] == ["me@dgx08.lab", "me@dgx09.lab", "me@dgx10.lab"]
    assert {(subject.group, subject.expected.gpu_count, subject.expected.packages) for subject in verified} == {
        ("dgx-h100", 8, None)
    }
    assert all(
        "StrictHostKeyChecking=yes" in subject.source and subject.source[-1] == subject.name for subject in verified
    )


def test_an_unknown_host_key_is_refused_and_the_hint_says_how_to_pin_it(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\necho "Host key verification failed." >&2\nexit 255\n')
    ssh.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    for command in (("facts",), ("verify", "--machine", P4D)):
        done = gpuprov(*command, "--host", "me@192.0.2.7", PATH=path)
        assert done.returncode != 0
        assert "ssh-keyscan 192.0.2.7" in done.stderr
    assert "StrictHostKeyChecking=yes" in (tmp_path / "arguments").read_text()


@pytest.mark.parametrize("heading", ["", "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @"])
def test_a_changed_host_key_warns_and_says_not_to_take_the_new_one(tmp_path: Path, heading: str) -> None:
    ssh = tmp_path / "ssh"
    changed = "Host key for 192.0.2.7 has changed and you have requested strict checking."
    ssh.write_text(f'#!/bin/sh\nprintf "%s\\n" "{heading}" "{changed}" "Host key verification failed." >&2\nexit 255\n')
    ssh.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = gpuprov("facts", "--host", "me@192.0.2.7", PATH=path)
    assert done.returncode == 2
    assert "man-in-the-middle" in done.stderr
    assert "ssh-keyscan" not in done.stderr


def test_a_log_without_a_fault_is_unknown_and_exit_one(tmp_path: Path) -> None:
    (tmp_path / "messages").write_text(
        "[    0.000000] Linux version 5.15.0-1052-azure\n[    9.1] usb 1-1: new device\n"
    )
    done = gpuprov("verify", "--bundle", tmp_path / "messages", "--machine", P4D)
    assert done.returncode == 1
    assert "UNKNOWN" in done.stdout and "NOT HEALTHY" not in done.stdout
    assert "read as dmesg: messages" in done.stderr


def test_a_file_that_holds_no_output_is_no_bundle(tmp_path: Path) -> None:
    archive = tmp_path / "bundle.tar.gz"
    archive.write_bytes(b"x")
    done = gpuprov("facts", "--bundle", archive)
    assert (done.returncode, "nothing in it is the output of a tool" in done.stderr) == (2, True)


@pytest.mark.parametrize("target", ["/proc/x", "bundle.tar.gz", "/dev/null"])
def test_a_bundle_that_can_not_be_written_is_told_before_anything_is_asked(target: str, tmp_path: Path) -> None:
    (tmp_path / "bundle.tar.gz").write_bytes(b"x")
    done = gpuprov("collect", "/nowhere.yaml", "train-0", "-o", tmp_path / target)
    assert done.returncode == 2
    assert "cannot write the bundle" in done.stderr
    assert "Traceback" not in done.stderr and "internal error" not in done.stderr


FILE = """
name: vision
sites: {lab: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 2, site: lab}}
verify: {checks: [mine], min_healthy: 50%}
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster of two nodes, one of them without its topology."""
    texts = nth(P4D, 1)
    del texts["topo.txt"]
    sources = {"train-0": bundle(nth(P4D, 0)), "train-1": bundle(texts)}
    monkeypatch.setattr(verifying, "subjects_of", lambda _, nodes: picked(nodes))
    monkeypatch.setattr(subjects, "subjects_of", lambda _, nodes: picked(nodes))

    def picked(nodes: Sequence[Node]) -> list[Subject]:
        return [Subject(n.name, "train", "lab", P4D, sources[n.name], expected(P4D)) for n in nodes]

    # What follows from a verdict is tests/unit/lifecycle/test_quarantine.py's.
    monkeypatch.setattr(quarantine, "after_verdict", lambda _cluster, report, *_, **__: report)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "site.py").write_text("def test_site(node):\n    assert node.kernel\n")
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE)
    opened = open_cluster(file, sandbox=False)
    private_dir(opened.paths.root)
    fleet.save(opened.paths, [machine(name) for name in sources])
    return file


def machine(name: str) -> Node:
    return Node(name, "train", "lab", P4D, f"i-{name}", "", "203.0.113.7", "10.0.0.7")


def noted(file: Path) -> dict[str, bool]:
    """What `status` will say of each node."""
    state = node_state.load(open_cluster(file, sandbox=False).paths)
    return {name: node.ok is True for name, node in state.nodes.items()}


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_the_fleet_of_a_file(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", cluster, "--json") == 0  # min_healthy is 50%
    document = json.loads(capsys.readouterr().out)
    assert document["ok"]  # as the exit status says; each node has its own
    assert noted(cluster) == {"train-0": True, "train-1": False}
    assert [node["ok"] for node in document["nodes"]] == [True, False]
    assert all(any(c["id"] == "site.site" for c in node["checks"]) for node in document["nodes"])
    assert run("verify", cluster, "--node", "train-1", "--json") == 1
    assert [node["name"] for node in json.loads(capsys.readouterr().out)["nodes"]] == ["train-1"]
    assert run("verify", cluster, "--node", "train-9") == 2
    assert "train-" in capsys.readouterr().err


def test_a_half_made_replacement_is_told(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    journal = open_cluster(cluster, sandbox=False).paths.root / "replace.json"
    nodes = {"train-0": {"id": "i-old", "step": "proving"}, "train-1": {"id": "i-old", "step": "proving"}}
    journal.write_text(json.dumps({"nodes": nodes}))
    assert run("verify", cluster) == 0  # min_healthy is 50%
    err = capsys.readouterr().err
    lines = [line for line in err.splitlines() if "an interrupted `replace` had not verified" in line]
    assert len(lines) == 1 and "train-1" in lines[0] and f"`gpuprov up {cluster}` goes on with this machine" in lines[0]


def test_a_node_that_is_wanted_and_not_there_is_not_healthy(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.write_text(FILE.replace("count: 2", "count: 3"))
    paths = open_cluster(cluster, sandbox=False).paths
    fleet.save(paths, [machine(name) for name in ("train-0", "train-1", "old-0")])
    assert run("verify", cluster, "--json") == 1  # one of three
    output = capsys.readouterr()
    document = json.loads(output.out)
    assert not document["ok"]
    assert [(n["name"], n.get("absent", False)) for n in document["nodes"]][2:] == [("train-2", True)]
    assert "old-0: skipped, it is not in cluster.yaml any more" in output.err
    assert noted(cluster) == {"train-0": True, "train-1": False}
    assert run("verify", cluster, "--node", "train-0") == 0
    capsys.readouterr()
    assert run("verify", cluster, "--node", "old-0") == 2
    assert "node old-0 is not in cluster.yaml any more" in capsys.readouterr().err
    assert run("verify", cluster, "--report", cluster.parent / "page") == 1
    assert "no machine exists" in capsys.readouterr().out
    page = (cluster.parent / "page" / "report.html").read_text()
    assert "node.exists" in page and "1 of 3 healthy" in page


@pytest.mark.parametrize("target", ["cluster.yaml", "/proc/nowhere"])
def test_where_no_report_can_be_written_nothing_is_looked_at(
    target: str, cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("verify", cluster, "--report", cluster.parent / target) == 2
    stderr = capsys.readouterr().err
    assert "cannot write the report" in stderr
    assert "internal error" not in stderr
    assert noted(cluster) == {}


def test_a_verdict_is_told_also_where_it_cannot_be_written_down(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", "report.json")

    monkeypatch.setattr(provisioner.verify.report, "write", full)
    assert run("verify", cluster, "--report", cluster.parent / "page", "--json") == 2
    output = capsys.readouterr()
    assert json.loads(output.out)["ok"]
    assert "the verdict above could not be written to disk: " in output.err
    monkeypatch.setattr(baselines, "note", full)
    assert run("verify", cluster) == 2
    assert "1 of 2 nodes healthy" in capsys.readouterr().out


def test_a_support_bundle(cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("collect", cluster, "train-0", "-o", tmp_path / "support") == 0
    assert set(Bundle.read(tmp_path / "support").files) == set(healthy(P4D))
    written = len(list((tmp_path / "support").iterdir()))
    assert f"{written} files in {tmp_path / 'support'}" in capsys.readouterr().err
    assert run("collect", cluster, "train-0", "-o", tmp_path / "support") == 2
    assert run("collect", cluster, "train-99", "-o", tmp_path / "none") == 2
    assert not (tmp_path / "none").exists()
    assert run("facts", cluster, "train-0", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["gpus"]) == 8


def test_a_missing_directory_of_checks_is_bad_input(cluster: Path) -> None:
    (cluster.parent / "mine" / "site.py").unlink()
    (cluster.parent / "mine").rmdir()
    assert run("verify", cluster) == 2
