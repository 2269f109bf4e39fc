"""What runs on the head node, against the output of a real scontrol and against stand-ins that remember what they are
asked."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from provisioner.scheduler import on_head

CAPTURE = Path(__file__).parent / "captures" / "show-nodes-22.05.8.txt"
"""`scontrol show nodes --oneliner` of Debian's slurmctld 22.05.8. Of the last two lines the ends are real."""
LINE = "NodeName={name} Arch=x86_64 State={state} ThreadsPerCore=1"


def test_states_and_reasons_are_read() -> None:
    nodes = on_head.parse_nodes(CAPTURE.read_text())
    assert nodes == {
        "work-0": {"state": ["DOWN"], "reason": "cooling works [hall 3]", "user": "root", "comment": ""},
        "work-1": {
            "state": ["IDLE", "DRAIN"], "reason": "gpuprov quarantine: gpu.count: 7 of 8 GPUs answer [x] State=IDLE",
            "user": "root", "comment": "",
        },
        # of slurm.conf, without a user; and a reason that looks like the end of one
        "work-2": {
            "state": ["IDLE", "DRAIN"], "reason": "gpuprov: proving", "user": "", "comment": "gpuprov bad: gpu.count",
        },
        "work-3": {
            "state": ["IDLE", "DRAIN"], "reason": "a [x@y] b", "user": "root", "comment": "gpuprov bad: gpu.count [x]",
        },
    }  # fmt: skip
    assert on_head.is_ours(nodes["work-1"]) and not on_head.is_ours(nodes["work-0"])


@pytest.mark.parametrize(
    ("state", "in_service"),
    [
        (["IDLE"], True), (["MIXED"], True), (["ALLOCATED"], True), (["ALLOCATED", "COMPLETING"], True),
        (["IDLE", "DRAIN"], False), (["MIXED", "DRAIN"], False), (["DOWN"], False), (["IDLE", "NOT_RESPONDING"], False),
        (["UNKNOWN", "NOT_RESPONDING"], False),
        (["IDLE", "INVALID_REG"], False), (["IDLE", "POWERING_DOWN"], False), (["FUTURE"], False),
        (["IDLE", "REBOOT_REQUESTED"], False),
    ],
)  # fmt: skip
def test_what_gets_jobs(state: list[str], in_service: bool) -> None:
    assert on_head.is_in_service({"state": state, "reason": "", "user": ""}) is in_service


class Desk:
    """Stand-ins of scontrol and squeue in front of PATH: nodes as files, with what update makes of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program("scontrol", SCONTROL)
        self.program("squeue", 'echo "squeue $*" >> calls; cat jobs 2>/dev/null || :')

    def program(self, name: str, text: str) -> None:
        file = self.folder / name
        file.write_text(f'#!/bin/sh\ncd "{self.folder}"\n{text}\n')
        file.chmod(0o755)

    def node(self, name: str, state: str, reason: str = "", comment: str = "", user: str = "root") -> None:
        line = LINE.format(name=name, state=state)
        at = f" [{user}@2026-11-27T22:33:02]" if user else ""  # without one the reason is of slurm.conf
        line += f" Reason={reason}{at}" if reason else ""
        line += f" Comment={comment}" if comment else ""
        (self.folder / f"{name}.node").write_text(line + "\n")

    @property
    def updates(self) -> list[str]:
        calls = (self.folder / "calls").read_text().splitlines() if (self.folder / "calls").exists() else []
        return [call for call in calls if "update" in call]


SCONTROL = r"""
echo "scontrol $*" >> calls
case "$1" in
show)
  case "$2$3" in
  hostnamestrain-\[0-1\]) echo "train-0 train-1" ;;
  hostnames*) echo "$3" ;;
  *) cat *.node ;;
  esac ;;
update)
  name=${2#nodename=}
  case "$3" in
  state=drain) echo "NodeName=$name State=IDLE+DRAIN Reason=${4#reason=} [root@2026-11-27T22:33:02]" > "$name.node" ;;
  state=resume) echo "NodeName=$name State=$(cat after 2>/dev/null || echo IDLE) ThreadsPerCore=1" > "$name.node" ;;
  esac ;;
esac
"""


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Desk(tmp_path)


def test_a_drain_has_gpuprovs_name_and_no_shell_reads_the_reason(desk: Desk) -> None:
    desk.node("train-0", "IDLE")
    answer = on_head.drain({"train-0": "quarantine: $(touch owned) `x`\nState=IDLE", "gone-0": "x"})
    assert answer == {"failed": {}, "foreign": {}}  # a node that Slurm does not know runs no job
    assert on_head.states()["train-0"]["reason"] == "gpuprov quarantine: $(touch owned) `x` State=IDLE"
    assert not (desk.folder / "owned").exists()


def test_somebody_elses_drain_is_neither_changed_nor_lifted(desk: Desk) -> None:
    desk.node("train-0", "IDLE+DRAIN", "cooling works")
    assert on_head.drain({"train-0": "upgrade"})["foreign"] == {"train-0": "root: cooling works"}
    assert on_head.resume(["train-0"], 0.0) == {"failed": {}, "foreign": {"train-0": "root: cooling works"}}
    assert desk.updates == []


@pytest.mark.parametrize(
    ("state", "reason", "user"),
    [
        ("IDLE+DRAIN", "gpuprov quarantine: gpu.xid", "root"), ("IDLE+DRAIN", "gpuprov health: gpu.xid", "root"),
        ("IDLE+DRAIN", "gpuprov: proving", ""), ("IDLE+DRAIN", "gpuprov upgrade", "root"),
        ("DOWN", "Node unexpectedly rebooted", "slurm"), ("DOWN+NOT_RESPONDING", "Not responding", "slurm"),
        ("IDLE+DRAIN", "Kill task failed", "slurm"),
    ],
)  # fmt: skip
def test_what_gpuprov_or_slurm_itself_took_out_comes_back(desk: Desk, state: str, reason: str, user: str) -> None:
    desk.node("train-0", state, reason, user=user)
    assert on_head.resume(["train-0"], 10.0) == {"failed": {}, "foreign": {}}
    assert desk.updates == ["scontrol update nodename=train-0 state=resume"]


@pytest.mark.parametrize(
    ("state", "reason", "user"),
    [
        ("IDLE+DRAIN", "Not responding", "root"), ("DOWN", "Node unexpectedly rebooted", "alice"),
        ("IDLE+DRAIN", "gpuprov said GPU 3 is odd", "root"), ("IDLE+DRAIN", "gpuprov health: x", "alice"),
        ("IDLE+DRAIN", "gpuprovider works", "root"),
    ],
)  # fmt: skip
def test_a_reason_that_looks_like_ours_or_slurms_is_a_persons(desk: Desk, state: str, reason: str, user: str) -> None:
    desk.node("train-0", state, reason, user=user)
    assert on_head.resume(["train-0"], 0.0)["foreign"] == {"train-0": f"{user}: {reason}"}
    assert desk.updates == []


def test_a_resume_takes_away_the_comment_of_gpuprov_alone(desk: Desk) -> None:
    desk.node("train-0", "IDLE+DRAIN", "gpuprov quarantine: x", comment="gpuprov bad: gpu.xid")
    desk.node("train-1", "IDLE+DRAIN", "gpuprov quarantine: x", comment="RMA-4712")
    desk.node("train-2", "MIXED", comment="gpuprov bad: gpu.xid")  # it was proven since it said so
    on_head.resume(["train-0", "train-1", "train-2"], 10.0)
    assert desk.updates == [
        "scontrol update nodename=train-0 state=resume comment=", "scontrol update nodename=train-1 state=resume",
        "scontrol update nodename=train-2 comment=",
    ]  # fmt: skip


def test_a_reason_in_another_encoding_hides_no_node(desk: Desk) -> None:
    desk.node("train-0", "IDLE")
    line = (desk.folder / "train-0.node").read_bytes().replace(b"train-0", b"train-1")
    (desk.folder / "train-1.node").write_bytes(line.rstrip(b"\n") + b" Reason=caf\xe9 [root@2026-11-27T22:33:02]\n")
    assert set(on_head.states()) == {"train-0", "train-1"}


def test_a_node_in_service_is_left_alone(desk: Desk) -> None:
    desk.node("train-0", "MIXED")
    assert on_head.resume(["train-0"], 0.0) == {"failed": {}, "foreign": {}}
    assert desk.updates == []


def test_a_slurmd_that_does_not_answer_is_no_resume(desk: Desk) -> None:
    desk.node("train-0", "IDLE+DRAIN", "gpuprov: proving")
    (desk.folder / "after").write_text("DOWN+NOT_RESPONDING")
    failed = on_head.resume(["train-0"], 0.0)["failed"]
    assert failed == {"train-0": "in Slurm it is DOWN+NOT_RESPONDING after 0 s"}
    assert on_head.resume(["strange-0"], 0.0)["failed"] == {"strange-0": "Slurm does not know the node"}


def test_a_resume_that_complains_and_works_is_one(desk: Desk) -> None:
    desk.program(
        "scontrol", SCONTROL + '[ "$3" != state=resume ] || { echo "Invalid node state specified" >&2; exit 1; }'
    )
    desk.node("train-0", "UNKNOWN+DRAIN+NOT_RESPONDING", "gpuprov: proving")
    assert on_head.resume(["train-0"], 10.0)["failed"] == {}
    desk.node("train-0", "DOWN", "gpuprov quarantine: x")
    (desk.folder / "after").write_text("DOWN")
    (failure,) = on_head.resume(["train-0"], 0.0)["failed"].values()
    assert failure == "in Slurm it is DOWN after 0 s: scontrol: Invalid node state specified"


@pytest.mark.parametrize(
    ("nodes", "bad", "drained"),
    [(10, 1, 1), (10, 2, 2), (10, 3, 0), (2, 1, 1), (2, 2, 0), (100, 8, 8), (100, 9, 0)],
)
def test_nodes_that_say_that_they_are_bad_are_drained_within_the_breaker(
    desk: Desk, nodes: int, bad: int, drained: int
) -> None:
    for number in range(nodes):
        desk.node(f"n-{number:03}", "IDLE", comment="gpuprov bad: gpu.xid" if number < bad else "")
    answer = on_head.watch(20, 8)
    assert len(desk.updates) == drained
    assert ("breaker" in answer) == (drained == 0)
    if drained:
        assert "reason=gpuprov health: gpu.xid" in desk.updates[0]


def test_nodes_that_are_out_already_count_for_the_breaker(desk: Desk) -> None:
    desk.node("n-0", "IDLE+DRAIN", "gpuprov quarantine: gpu.count", comment="gpuprov bad: gpu.count")
    desk.node("n-1", "IDLE+DRAIN", "cooling works", comment="gpuprov bad: gpu.count")  # somebody else's
    desk.node("n-2", "MIXED", comment="gpuprov bad: gpu.xid")
    desk.node("n-3", "IDLE", comment="for alice")
    assert on_head.watch(75, 8) == {"failed": {}, "foreign": {}, "bad": ["n-2"]}
    assert len(desk.updates) == 1
    desk.node("n-3", "IDLE", comment="gpuprov bad: gpu.xid")
    assert on_head.watch(75, 8)["breaker"] == "1 bad nodes and 3 out of service, at most 3"


def test_jobs_of_a_node(desk: Desk) -> None:
    assert on_head.jobs(["train-0"]) == {}
    (desk.folder / "jobs").write_text("17 train-[0-1]\n18 train-0\n19 \n")
    assert on_head.jobs(["train-0", "gone-0"]) == {"train-0": ["17", "18"]}
    assert on_head.jobs(["train-1"]) == {"train-1": ["17"]}


def test_before_slurm_is_installed_no_job_is_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for request in ({"do": "drain", "nodes": {"train-0": "up"}}, {"do": "jobs", "nodes": ["train-0"]}, {"do": "queue"}):
        answer = on_head.answer(request)
        assert not any(answer.values())


def test_a_controller_that_does_not_answer_is_an_error(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.program("scontrol", "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1")
    on_head.main({"do": "states"})
    printed = json.loads(capsys.readouterr().out.removeprefix("gpuprov:"))
    assert printed == {"error": "scontrol: Unable to contact slurm controller (connect failure)"}
