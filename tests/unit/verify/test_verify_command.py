"""`gpuprov verify`, `facts`, `collect` as processes see them: standard output, standard error, exit status."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import provisioner.lifecycle.subjects
import provisioner.session
import provisioner.verify.report
from provisioner import node_state
from provisioner.cli.main import main
from provisioner.events import Events
from provisioner.lifecycle import baselines, diff
from provisioner.lifecycle.quarantine import actions as quarantine
from provisioner.paths import ClusterPaths, private_dir
from provisioner.verify.bundle import Bundle
from provisioner.verify.results import NodeReport
from provisioner.verify.run import Subject
from tests.support.healthy_bundle import bundle, capture, expected, healthy, nth

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
    shown = gpuprov("verify", "--bundle", node, "--machine", P4D)
    assert shown.returncode == 1
    assert "gpu.xid" in shown.stdout


def test_an_absent_file_is_unknown_and_not_healthy(node: Path) -> None:
    (node / "topo.txt").unlink()
    done = gpuprov("verify", "--bundle", node, "--machine", P4D, "--json")
    assert done.returncode == 1
    checks = {c["id"]: c["status"] for c in json.loads(done.stdout)["nodes"][0]["checks"]}
    assert checks["nvlink.topology"] == "unknown"
    assert "fail" not in checks.values()


def test_an_empty_bundle_is_not_healthy(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert gpuprov("verify", "--bundle", tmp_path / "empty", "--machine", P4D).returncode == 1
    assert gpuprov("facts", "--bundle", tmp_path / "empty").returncode == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("verify",),
        ("verify", "--bundle", "/nowhere", "--machine", P4D),
        ("verify", "--bundle", "/"),
        ("verify", "--bundle", "/", "--machine", "p4d.24xlargo"),
        ("verify", "--bundle", "/", "--host", "local", "--machine", P4D),
        ("verify", "--host", "-oProxyCommand=x", "--machine", P4D),
        ("facts",),
        ("facts", "--bundle", "/nowhere"),
    ],
)
def test_bad_input_is_exit_two_with_a_sentence(arguments: tuple[str, ...]) -> None:
    done = gpuprov(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


def test_facts_are_shown_before_any_judgement(node: Path) -> None:
    done = gpuprov("facts", "--bundle", node, "--json")
    assert done.returncode == 0
    document = json.loads(done.stdout)
    assert document["driver_version"] == "580.105.08"
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


def test_a_changed_host_key_warns_and_says_not_to_take_the_new_one(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    changed = "Host key for 192.0.2.7 has changed and you have requested strict checking."
    ssh.write_text(f'#!/bin/sh\nprintf "%s\\n" "{changed}" "Host key verification failed." >&2\nexit 255\n')
    ssh.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = gpuprov("facts", "--host", "me@192.0.2.7", PATH=path)
    assert done.returncode == 2
    assert "another machine answers there, or somebody in between" in done.stderr
    assert "ssh-keyscan" not in done.stderr


def test_an_archive_is_no_bundle_and_is_called_what_it_is(tmp_path: Path) -> None:
    archive = tmp_path / "bundle.tar.gz"
    archive.write_bytes(b"x")
    done = gpuprov("facts", "--bundle", archive)
    assert (done.returncode, "this is a file" in done.stderr) == (2, True)


@pytest.mark.parametrize("where", ["/proc/x", "bundle.tar.gz", "/dev/null"])
def test_a_bundle_that_can_not_be_written_is_told_before_anything_is_asked(where: str, tmp_path: Path) -> None:
    (tmp_path / "bundle.tar.gz").write_bytes(b"x")
    done = gpuprov("collect", "/nowhere.yaml", "train-0", "-o", tmp_path / where)
    assert done.returncode == 2
    assert "no bundle can be written" in done.stderr
    assert "Traceback" not in done.stderr and "defect" not in done.stderr


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster of two nodes, one of them without its topology, behind `open_cluster`."""
    texts = nth(P4D, 1)
    del texts["topo.txt"]
    sources = {"train-0": bundle(nth(P4D, 0)), "train-1": bundle(texts)}
    subjects = [Subject(n, "train", "lab", P4D, source, expected(P4D)) for n, source in sources.items()]
    spec = SimpleNamespace(
        name="vision", groups={}, verify=SimpleNamespace(checks=("mine",), min_healthy="50%", level="standard")
    )

    def note_verdicts(_: object, report: Any, page: Path | None = None) -> None:
        (tmp_path / "noted").write_text(" ".join(f"{n.name}={n.ok}" for n in report.nodes))

    def picked(_: object, nodes: Any = ()) -> list[Subject]:
        return [subject for subject in subjects if not nodes or subject.name in nodes]

    def open_cluster(file: Path, sandbox: bool | None = None) -> Any:
        return SimpleNamespace(
            nodes=list, node=lambda name: name, spec=spec, events=Events(), file=file,
            paths=ClusterPaths(file, spec.name, sandbox=False),
            noted=lambda _: contextlib.nullcontext(False), run_dir=lambda: private_dir(tmp_path / "run"),
        )  # fmt: skip

    monkeypatch.setattr(provisioner.session, "open_cluster", open_cluster)
    monkeypatch.setattr(provisioner.lifecycle.subjects, "subjects_of", picked)
    monkeypatch.setattr(node_state, "note_verdicts", note_verdicts)
    # What follows from a verdict is tests/unit/lifecycle/test_quarantine.py's.
    monkeypatch.setattr(quarantine, "after_verdict", lambda _cluster, report, *_, **__: report)
    monkeypatch.setattr(diff, "compare", lambda _: diff.Diff((), {}, ()))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "site.py").write_text("def test_site(node):\n    assert node.kernel\n")
    (tmp_path / "cluster.yaml").write_text("name: vision\n")
    return tmp_path / "cluster.yaml"


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


def test_the_fleet_of_a_file(cluster: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("verify", cluster, "--json") == 0  # min_healthy is 50%
    document = json.loads(capsys.readouterr().out)
    assert document["ok"]  # as the exit status says; each node has its own
    assert (cluster.parent / "noted").read_text() == "train-0=True train-1=False"
    assert [node["ok"] for node in document["nodes"]] == [True, False]
    assert all(any(c["id"] == "site.site" for c in node["checks"]) for node in document["nodes"])
    assert run("verify", cluster, "--node", "train-1", "--json") == 1
    assert [node["name"] for node in json.loads(capsys.readouterr().out)["nodes"]] == ["train-1"]
    assert run("verify", cluster, "--node", "train-9") == 2
    assert "train-" in capsys.readouterr().err


def test_a_node_that_is_wanted_and_not_there_is_not_healthy(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = NodeReport("train-2", "train", "lab", P4D, False, (), error=diff.ABSENT, absent=True)
    monkeypatch.setattr(diff, "compare", lambda _: diff.Diff((), {"train-2": "train"}, ("old-0",)))
    monkeypatch.setattr(diff, "absent_reports", lambda *_: (absent,))
    assert run("verify", cluster, "--json") == 1  # one of three
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert not document["ok"]
    assert [(n["name"], n.get("absent", False)) for n in document["nodes"]][2:] == [("train-2", True)]
    assert "old-0: not looked at, cluster.yaml wants it no more" in said.err
    assert (cluster.parent / "noted").read_text() == "train-0=True train-1=False"
    assert run("verify", cluster, "--node", "train-0") == 0
    assert run("verify", cluster, "--report", cluster.parent / "page") == 1
    assert "`gpuprov up` makes it" in capsys.readouterr().out
    page = (cluster.parent / "page" / "report.html").read_text()
    assert "node.exists" in page and "1 of 3 healthy" in page


@pytest.mark.parametrize("place", ["cluster.yaml", "/proc/nowhere"])
def test_where_no_report_can_be_written_nothing_is_looked_at(
    place: str, cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("verify", cluster, "--report", cluster.parent / place) == 2
    said = capsys.readouterr().err
    assert "no report can be written" in said
    assert "defect" not in said
    assert not (cluster.parent / "noted").exists()


def test_a_verdict_is_told_also_where_it_cannot_be_written_down(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device", "report.json")

    monkeypatch.setattr(provisioner.verify.report, "write", full)
    assert run("verify", cluster, "--report", cluster.parent / "page", "--json") == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["ok"]
    assert "the verdict above could not be written down: " in said.err
    monkeypatch.setattr(baselines, "note", full)
    assert run("verify", cluster) == 2
    assert "1 of 2 nodes healthy" in capsys.readouterr().out


def test_a_support_bundle(cluster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("collect", cluster, "train-0", "-o", tmp_path / "support") == 0
    assert set(Bundle.read(tmp_path / "support").files) == set(healthy(P4D))
    assert run("collect", cluster, "train-0", "-o", tmp_path / "support") == 2
    assert run("facts", cluster, "train-0", "--json") == 0
    assert len(json.loads(capsys.readouterr().out)["gpus"]) == 8


def test_a_missing_directory_of_checks_is_bad_input(cluster: Path) -> None:
    (cluster.parent / "mine" / "site.py").unlink()
    (cluster.parent / "mine").rmdir()
    assert run("verify", cluster) == 2
