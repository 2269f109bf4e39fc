"""`gpuprov exec`: how it ends when it is interrupted, and what it takes for a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from provisioner.cli.main import run
from provisioner.common.paths import private_dir
from provisioner.lifecycle.session import open_cluster
from provisioner.rundir import fleet
from provisioner.rundir.fleet import PARALLEL, Node
from tests.support.sandbox_cluster import ROOT

FILE = """
name: reached
sites: {here: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge, count: 4}}
"""
SSH = """#!/bin/sh
trap '' INT
sleep 300 &
echo $! > "$PIDS/$!"
wait
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    cluster = open_cluster(path, sandbox=False)
    private_dir(cluster.paths.root)
    nodes = [
        Node(f"train-{i}", "train", "here", "p4d.24xlarge", f"i-{i}", "", "203.0.113.7", "10.0.0.7")
        for i in range(PARALLEL + 8)
    ]
    fleet.save(cluster.paths, nodes)
    return path


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_every_ssh_and_starts_no_other(sign: signal.Signals, file: Path, tmp_path: Path) -> None:
    tools, pids = tmp_path / "tools", tmp_path / "pids"
    tools.mkdir()
    pids.mkdir()
    (tools / "ssh").write_text(SSH)
    (tools / "ssh").chmod(0o755)
    env = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "PIDS": str(pids)}
    argv = [sys.executable, "-m", "provisioner", "exec", str(file), "sleep", "300"]
    with subprocess.Popen(argv, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True) as process:
        while len(list(pids.iterdir())) < PARALLEL and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(sign)
        _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "gpuprov: interrupted\n")
    started = [int(path.name) for path in pids.iterdir()]
    assert len(started) == PARALLEL
    assert all(has_ended(pid) for pid in started)


@pytest.mark.parametrize("seconds", ["nan", "-1", "0", "inf", "1e9"])
def test_a_time_that_is_none_is_refused(seconds: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["exec", "--timeout", seconds, str(file), "true"]) == 2
    assert "at most 604800" in capsys.readouterr().err


def test_without_a_fleet_it_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    assert run(["exec", str(path), "true"]) == 2
    assert capsys.readouterr().err == f"{path}: there is no fleet yet\n  run `gpuprov up {path}` first\n"
