"""What `status` says of the run at work, and of one that was broken off."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from provisioner.cli.main import run
from provisioner.cli.status import first_lines
from provisioner.common.paths import private_dir
from provisioner.lifecycle.session import open_cluster
from provisioner.output.status import NodeReplacement, StatusNode, StatusOutput, StatusRun
from provisioner.rundir import fleet, node_state, run_events
from provisioner.rundir.fleet import Node
from provisioner.verify.results import CheckResult, NodeReport
from tests.support.sandbox_cluster import ROOT

FILE = """
name: vision
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 1}}
"""
WORK = """
import sys
from provisioner.lifecycle.session import open_cluster
cluster = open_cluster(sys.argv[1], sandbox=False)
with cluster.alone_here("up"):
    cluster.events("stack", "started", "choosing versions")
    cluster.events("configure", "started", "installing")
    print("ready", flush=True)
    sys.stdin.readline()
    if sys.argv[2] == "raise":
        raise KeyboardInterrupt
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    cluster = open_cluster(path, sandbox=False)
    private_dir(cluster.paths.root)
    node = Node("train-0", "train", "here", "p4d.24xlarge", "i-0", "", "203.0.113.7", "10.0.0.7")
    fleet.save(cluster.paths, [node])
    return path


@contextmanager
def at_work(file: Path, ends: str = "") -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", WORK, str(file), ends]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SUDO_USER": "ada"}
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait(60)


def first_line(file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["status", str(file), "--offline"]) == 0
    return capsys.readouterr().out.splitlines()[0]


def test_a_run_at_work_is_the_first_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with at_work(file) as process:
        line = first_line(file, capsys)
        assert line.startswith(f"`gpuprov up` (process {process.pid} of ada) has been at work since 20")
        assert line.endswith(f", at stage configure: `gpuprov status {file} --watch`")
        assert run(["status", str(file), "--offline", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)["run"]
        assert (document["state"], document["process"], document["stage"]) == ("at work", process.pid, "configure")
    assert "vision" in first_line(file, capsys)  # it ended well: the table comes first


@pytest.mark.parametrize(("ends", "state"), [("kill", "was killed"), ("raise", "was interrupted")])
def test_a_run_that_was_broken_off_says_what_goes_on(
    ends: str, state: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with at_work(file, ends) as process:
        if ends == "kill":
            process.send_signal(signal.SIGKILL)
            process.wait(60)
    line = first_line(file, capsys)
    assert f", {state}, at stage configure; `gpuprov up {file}` goes on" in line


def test_a_replace_that_failed_names_its_nodes_or_says_that_nothing_was_done(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = StatusRun(command="replace", state="failed", stage="terraform", since=0.0, process=None, user="")
    rows = [
        StatusNode(name=name, group="train", site="here", machine="p4d.24xlarge", address=None, stage="made", ok=None)
        for name in ("train-0", "train-1")
    ]
    document = StatusOutput(cluster="vision", sandbox=False, nodes=rows, run=run)
    (line,) = first_lines(document, file)
    assert line.endswith(", failed, at stage terraform; it has changed no machine")
    rows[1].replace = NodeReplacement(step="making")
    (line,) = first_lines(document.model_copy(update={"nodes": rows}), file)
    assert line.endswith(f"; `gpuprov replace {file} train-1` goes on")


def test_a_quick_verdict_does_not_answer_for_a_deeper_one(file: Path) -> None:
    paths = open_cluster(file, sandbox=False).paths
    right, wrong = CheckResult("a", "fatal", "pass", "none"), CheckResult("b", "fatal", "fail", "vendor")

    def noted(level: str, *checks: CheckResult) -> object:
        node = NodeReport("train-0", "train", "here", "p4d.24xlarge", False, checks)
        node_state.note_verdicts(paths, {node.name: node.ok}, level)
        return node_state.load(paths).of("train-0").ok

    assert noted("standard", right, wrong) is False
    assert noted("quick", right) is False
    assert noted("standard", right) is True
    assert (noted("quick", right, wrong), noted("quick", right)) == (False, True)
    noted("stress", wrong)
    node_state.note_stage(paths, "made", ["train-0"])
    assert noted("quick", right) is True, "another machine"


def test_a_cluster_that_no_run_has_touched(file: Path) -> None:
    paths = open_cluster(file, sandbox=False).paths
    assert run_events.last_run(paths.root, paths.runs, at_work=False) is None


@pytest.mark.parametrize(
    "record", ["", "[]", "{}", '{"pid": "1", "command": "up"}', '{"pid": 1, "command": "up", "since": 1e99}', "\x00"]
)
def test_a_damaged_record_of_a_run_is_none(record: str, tmp_path: Path) -> None:
    (tmp_path / "holder.json").write_text(record)
    assert run_events.holder(tmp_path) is None


def test_all_clusters_below_a_folder(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    node_state.note(open_cluster(file, sandbox=False).paths, nodes={"train-0": {"stage": "verified", "ok": True}})
    other = tmp_path / "deeper" / "fleet.yaml"
    other.parent.mkdir()
    other.write_text(FILE.replace("vision", "speech"))
    cluster = open_cluster(other, sandbox=True)
    private_dir(cluster.paths.root)
    fleet.save(cluster.paths, [])
    other.unlink()
    (tmp_path / "deeper" / ".gpuprov" / "speech.sandbox" / "nodes.json").write_text("damaged")
    monkeypatch.chdir(tmp_path)
    with at_work(file):
        assert run(["status", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["clusters"]
    assert [(row["cluster"], row["sandbox"], row["nodes"], row["healthy"]) for row in rows] == [
        ("vision", False, 1, 1), ("speech", True, None, 0)
    ]  # fmt: skip
    assert [row["file"] for row in rows] == [str(file), None]
    assert (rows[0]["run"]["state"], rows[1]["run"]) == ("at work", None)
    assert run(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["vision", "cluster.yaml", "1", "1", "up:", "done"], ["speech", "(sandbox)", "-", "?", "0", "-"]
    ]  # fmt: skip
    entries = {"train-0": {"id": "i-0", "owner": "ada", "reason": "x", "since": "y", "checks": []}}
    (file.parent / ".gpuprov" / "vision" / "quarantine.json").write_text(json.dumps({"nodes": entries}))
    assert run(["status"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:4] == ["vision", "cluster.yaml", "1", "0"], "in quarantine"
    assert run(["status", "--watch"]) == 2


def test_a_cluster_whose_file_was_renamed_or_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("renamed", "missing"):
        file = tmp_path / name / "cluster.yaml"
        file.parent.mkdir()
        file.write_text(FILE)
        private_dir(open_cluster(file, sandbox=False).paths.root)
        (file.parent / ".gpuprov" / "vision" / "intent.json").write_text('{"file": "cluster.yaml"}')
    (tmp_path / "renamed" / "cluster.yaml").write_text(FILE.replace("vision", "speech"))
    (tmp_path / "missing" / "cluster.yaml").unlink()
    assert run(["status", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["clusters"]
    assert [(row["cluster"], row["file"], row["created_from"], row["renamed_to"]) for row in rows] == [
        ("vision", None, str(tmp_path / "missing" / "cluster.yaml"), None),
        ("vision", None, str(tmp_path / "renamed" / "cluster.yaml"), "speech"),
    ]
    assert run(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()[:3]) for line in lines[1:3]] == [
        "vision missing/cluster.yaml (missing)", "vision renamed/cluster.yaml (renamed)"
    ]  # fmt: skip
    assert lines[3:] == [
        "vision: renamed/cluster.yaml has `name: speech` now; every command needs `name: vision` there"
    ]


def test_a_folder_without_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["status"]) == 0
    assert capsys.readouterr().out == "no cluster below this folder\n"
