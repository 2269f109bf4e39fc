"""torchrun's options, NCCL's log, and what several nodes say of one job."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from provisioner.lifecycle.jobs import follow, on_node, supervisor
from provisioner.lifecycle.jobs.on_nodes import NodeJob
from provisioner.verify.fabric import wrong_way


def job(*command: str, node: str = "train-1", **overrides: Any) -> dict[str, Any]:
    return {
        "id": "ddp-1", "node": node, "port": 29400, "gpus": 8, "command": list(command), "rdma": False,
        "nodes": [{"name": "train-0", "address": "10.0.0.4"}, {"name": "train-1", "address": "10.0.0.5"}],
        **overrides,
    }  # fmt: skip


def test_torchrun_meets_on_the_first_nodes_own_address() -> None:
    command = supervisor.torchrun_command(job("torchrun", "train.py", "--steps", "5"))
    assert command[0] == "torchrun" and command[-3:] == ["train.py", "--steps", "5"]
    assert {"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=10.0.0.4:29400", "--local-addr=10.0.0.5"} < {*command}
    assert {"--nproc-per-node=8", "--max-restarts=0", "--tee=3"} < {*command}
    assert "--rdzv-conf=join_timeout=600,read_timeout=600,is_host=false" in command
    first = supervisor.torchrun_command(job("torchrun", "train.py", node="train-0"))
    assert "--rdzv-conf=join_timeout=600,read_timeout=600,is_host=true" in first


def test_an_address_of_ipv6_is_bracketed() -> None:
    nodes = [{"name": "train-1", "address": "fd00::5"}]
    assert "--rdzv-endpoint=[fd00::5]:29400" in supervisor.torchrun_command(job("torchrun", "a.py", nodes=nodes))


@pytest.mark.parametrize(
    ("arguments", "absent", "present"),
    [
        (["--standalone", "train.py"], "--nnodes=2", "--nproc-per-node=8"),
        (["--nnodes", "1", "train.py"], "--rdzv-backend=c10d", "--tee=3"),
        (["--nproc_per_node=2", "train.py"], "--nproc-per-node=8", "--nnodes=2"),
        (["--log-dir", "/x", "train.py"], "--tee=3", "--nnodes=2"),
        (["train.py", "--nnodes", "3", "--tee"], "", "--nnodes=2"),
        (["-m", "my.module", "--standalone"], "", "--nnodes=2"),
    ],
)
def test_options_of_the_user_stay(arguments: list[str], absent: str, present: str) -> None:
    """Those of torchrun, not those of the program behind it."""
    command = supervisor.torchrun_command(job("torchrun", *arguments))
    assert absent not in command and present in command
    assert command[-len(arguments) :] == arguments


def test_another_command_is_run_as_it_is() -> None:
    assert supervisor.torchrun_command(job("python", "train.py")) == ["python", "train.py"]


LINES = (
    "ip:61:82 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    "ip:61:82 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/AWS Libfabric/0/GDRDMA",
    "ip:61:82 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/2/GDRDMA",
    "ip:61:82 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/2",
    "ip:61:82 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/Socket/0",
    "ip:61:82 [0] NCCL INFO Using network AWS Libfabric",
    "ip:61:82 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct",
)


def transports_of_verify() -> Callable[[str], dict[str, int]]:
    """How the load program reads NCCL's log; the program itself needs PyTorch."""
    tree = ast.parse(files("provisioner.verify.load").joinpath("program.py").read_text())
    function = next(row for row in tree.body if isinstance(row, ast.FunctionDef) and row.name == "transports")
    names: dict[str, Any] = {"re": re, "os": os}
    exec(compile(ast.Module([function], []), "program.py", "exec"), names)
    read: Callable[[str], dict[str, int]] = names["transports"]
    return read


@pytest.mark.parametrize("gpudirect", [True, False])
@pytest.mark.parametrize("line", LINES)
def test_the_rule_on_transports_is_that_of_verify(line: str, gpudirect: bool, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(line + "\n")
    by_verify = wrong_way(transports_of_verify()(str(log)), rdma=True, gpudirect=gpudirect)
    assert bool(supervisor.wrong_transport([line], gpudirect)) == bool(by_verify)


def row(state: str, status: int | None = None, **overrides: Any) -> NodeJob:
    fields = {
        "id": "ddp-1", "name": "ddp", "owner": "ann", "command": ["torchrun"], "nodes": ["train-0", "train-1"],
        "state": state, "status": status, "reason": overrides.pop("reason", ""), "began": 5.0,
        "ended": None if state == "running" else 9.0, "pid": None, "log_bytes": 0,
    }  # fmt: skip
    return NodeJob.model_validate({**fields, **overrides})


def test_a_job_runs_as_long_as_it_runs_anywhere() -> None:
    merged = follow.merge({"train-0": row("failed", 7, reason="why"), "train-1": row("running")})
    assert (merged.state, merged.status, merged.reason, merged.ended) == ("running", None, "", None)


def test_the_first_node_that_knows_the_outcome_tells_it() -> None:
    merged = follow.merge({"train-0": row("lost"), "train-1": row("failed", 7, reason="why")})
    assert (merged.state, merged.status, merged.reason) == ("failed", 7, "why")
    assert follow.merge({"train-1": row("completed", 0)}).missing == ["train-0"]
    assert follow.merge({"train-0": row("lost"), "train-1": row("lost")}).state == "lost"


@pytest.mark.parametrize("text", ["../x", "a b", "", "-x", "a;reboot", "A", "x" * 80])
def test_an_id_is_no_path_and_no_option(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    on_node.main({"do": "stop", "id": text, "reason": ""})
    assert "is not the id of a job" in capsys.readouterr().out


def test_lines_come_whole_however_they_arrive() -> None:
    lines = follow.Lines()
    assert lines.add(b"a\nb") == ["a"] and lines.add(b"c\r\nd") == ["bc"] and lines.unfinished == b"d"
    assert lines.add(b"x" * 150_000)[0] == "d" + "x" * (follow.LINE - 1)
    assert len(lines.unfinished) < follow.LINE


def test_of_a_progress_bar_a_state_is_shown_now_and_then() -> None:
    clock = [0.0]
    lines = follow.Lines(lambda: clock[0])
    assert lines.add(b" 1 %\r 2 %") == [" 1 %"]
    assert lines.add(b"\r 3 %\r 4 %") == []
    clock[0] += follow.PROGRESS_S
    assert lines.add(b"\r 5 %\r 6 %") == [" 5 %"]
    assert lines.add(b"\r100 %\nended\n") == ["100 %", "ended"]


def test_a_job_that_did_not_start_leaves_nothing_and_old_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_node, "ROOT", str(tmp_path))
    monkeypatch.setattr(on_node, "active", lambda: {"job-30"})
    for number in range(31):
        folder = tmp_path / f"job-{number}"
        (folder / "work").mkdir(parents=True)
        document = {"name": "job", "owner": "ann", "command": [], "nodes": [], "began": float(number)}
        (folder / "job.json").write_text(json.dumps(document))
    (tmp_path / "refused" / "work").mkdir(parents=True)
    (tmp_path / "current" / "work").mkdir(parents=True)
    on_node.remove_old("current")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"current", *(f"job-{number}" for number in range(11, 31))}
    assert (tmp_path / "current" / "work").is_dir() and (tmp_path / "job-30" / "work").is_dir()
    assert not (tmp_path / "job-29" / "work").exists()
