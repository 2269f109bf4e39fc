"""`verify.reboot`: which machines boot again, and what is made of both verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provisioner.cli import lifecycle as cli
from provisioner.cli.display import Lines
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import private_dir
from provisioner.lifecycle import second_boot
from provisioner.lifecycle.node_changes import NodeChanges
from provisioner.lifecycle.second_boot import chosen, free, merged, reboot, reboot_all
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.transport import ssh_config, ssh_sockets
from provisioner.verify.results import CheckResult, NodeReport, Report
from tests.support.plans import plan

FILE = """
name: twice
sites: {{here: {{provider: aws, region: us-east-1}}}}
groups: {{train: {{machine: p4d.24xlarge, count: 3}}, infer: {{machine: g5.xlarge, count: 2}}}}
verify: {{reboot: {reboot}}}
"""
NAMES = ("train-0", "train-1", "train-2", "infer-0", "infer-1")


def node(name: str) -> Node:
    return Node(name, name.partition("-")[0], "here", "m", f"i-{name}", "", "203.0.113.7", "10.0.0.7")


NODES = [node(name) for name in NAMES]


def check(id: str, status: Any = "pass", message: str = "") -> CheckResult:
    return CheckResult(id, "fatal", status, "replace", says=f"{id} is right", message=message)


def node_report(name: str, *checks: CheckResult, error: str = "") -> NodeReport:
    return NodeReport(name, name.partition("-")[0], "here", "m", True, checks or (check("gpu.count"),), error=error)


def report(*nodes: NodeReport, judge: float = 1.0) -> Report:
    return Report(nodes, {"judge": judge}, 0.0)


def cluster(folder: Path, reboot: str) -> Cluster:
    (folder / "cluster.yaml").write_text(FILE.format(reboot=reboot))
    test_cluster = open_cluster(folder / "cluster.yaml", sandbox=True)
    private_dir(test_cluster.paths.root)
    fleet.save(test_cluster.paths, NODES)
    return test_cluster


def proven(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """These machines were handed over by an earlier run."""
    monkeypatch.setattr(second_boot.Ledger, "of", lambda _, n: "0123456789ab" if n.name in names else None)


WELL = report(*(node_report(name) for name in NAMES))


@pytest.mark.parametrize(("setting", "names"), [("never", []), ("first", ["train-0", "infer-0"]), ("all", list(NAMES))])
def test_who_boots_again(tmp_path: Path, setting: str, names: list[str]) -> None:
    assert sorted(n.name for n in chosen(cluster(tmp_path, setting), WELL, NODES)) == sorted(names)


def test_the_first_is_one_that_is_healthy_and_was_never_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proven(monkeypatch, "train-0", "infer-0", "infer-1")
    bad = report(*(node_report(name, check("gpu.count", "fail" if name == "train-1" else "pass")) for name in NAMES))
    first_cluster = cluster(tmp_path, "first")
    assert [n.name for n in chosen(first_cluster, bad, NODES)] == ["train-2"]


def test_all_leaves_alone_who_may_have_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proven(monkeypatch, "train-0", "infer-1")
    assert [n.name for n in chosen(cluster(tmp_path, "all"), WELL, NODES)] == ["train-1", "train-2", "infer-0"]


def test_gpuprovs_own_machine_is_left_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    all_cluster = cluster(tmp_path, "all")
    all_cluster.events.subscribe(lambda event: messages.append(f"{event.node}: {event.message}"))
    monkeypatch.setattr(ssh_config, "local", lambda _: frozenset({"train-0"}))
    assert "train-0" not in [n.name for n in chosen(all_cluster, WELL, NODES)]
    assert len(messages) == 1 and messages[0].startswith(
        "train-0: verify.reboot: it is the machine that gpuprov runs on"
    )


def test_the_second_verdict_counts_and_says_so() -> None:
    second = report(node_report("train-0", check("gpu.count", "fail", "7 of 8")), judge=2.0)
    both = merged(WELL, second, {})
    assert [n.name for n in both.nodes] == list(NAMES)
    assert [n.name for n in both.nodes if not n.ok] == ["train-0"]
    assert both.nodes[0].why == "gpu.count: after a reboot: 7 of 8"
    assert both.seconds == {"judge": 3.0}


def test_a_check_without_an_answer_says_after_what() -> None:
    both = merged(WELL, report(node_report("train-0", check("gpu.count", "unknown"))), {})
    assert both.nodes[0].verdict == "unknown"
    assert both.nodes[0].why == "gpu.count: after a reboot: gpu.count is right"


def test_what_needs_the_group_is_as_it_was_before() -> None:
    """One node alone has nobody to be compared with."""
    first = report(node_report("train-0", check("gpu.count"), check("fleet.driver")), node_report("train-1"))
    second = report(node_report("train-0", check("gpu.count"), check("fleet.driver", "skip", "nobody to compare with")))
    assert [(c.id, c.status) for c in merged(first, second, {}).nodes[0].checks] == [
        ("gpu.count", "pass"),
        ("fleet.driver", "pass"),
    ]


@pytest.mark.parametrize(
    ("second", "failed", "reason"),
    [
        (node_report("train-0", error="did not answer"), {}, "after a reboot: did not answer"),
        (node_report("train-0"), {"train-0": "it did not come back"}, "after a reboot: it did not come back"),
    ],
)
def test_who_does_not_come_back_is_not_healthy(second: NodeReport, failed: dict[str, str], reason: str) -> None:
    merged_report = merged(WELL, report(second), failed).nodes[0]
    assert (merged_report.verdict, merged_report.why) == ("not healthy", reason)


def test_one_that_does_not_answer_does_not_keep_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def back(_: Cluster, node: Node, stage: str) -> None:
        assert stage == "verify"
        if node.name == "train-1":
            raise GpuprovError("it does not answer", where=node.name)

    monkeypatch.setattr(second_boot, "reboot", back)
    assert reboot_all(cluster(tmp_path, "all"), NODES) == {"train-1": "it does not answer"}


def test_a_machine_at_work_is_left_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    answers = {"train-0": "asked", "train-1": "4711, python\nasked", "train-2": "NVIDIA-SMI has failed", "infer-0": ""}
    all_cluster = cluster(tmp_path, "all")
    all_cluster.events.subscribe(
        lambda event: messages.append(f"{event.node}: {event.message.removeprefix('verify.reboot: ')}")
    )
    monkeypatch.setattr(second_boot, "ask", lambda _, n, __: answers.get(n.name, "asked"))
    assert [n.name for n in free(all_cluster, NODES)] == ["train-0", "infer-1"]
    assert messages == [
        "train-1: not rebooted: a process has its GPUs: 4711, python",
        "train-2: not rebooted: nobody can tell whether a process has its GPUs",
        "infer-0: not rebooted: nobody can tell whether a process has its GPUs",
    ]


class Machine:
    """What a machine says of itself over a reboot, one answer for each question about its boot."""

    def __init__(self, *boots: str, state: str = "running") -> None:
        self.boots, self.state, self.commands = list(boots), state, list[str]()

    def __call__(self, _: Cluster, __: Node, command: str) -> str:
        self.commands.append(command)
        if command == second_boot.BOOT_ID:
            return self.boots.pop(0) if len(self.boots) > 1 else self.boots[0]
        return self.state if command == second_boot.SETTLED else ""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(second_boot.time, "monotonic", lambda: clock.__setitem__(0, clock[0] + 60.0) or clock[0])
    monkeypatch.setattr(second_boot.time, "sleep", lambda _: None)
    monkeypatch.setattr(ssh_sockets, "disconnect", lambda *_: None)


@pytest.mark.parametrize(
    ("machine", "message"),
    [
        (Machine("one", "one", "", "two"), ""),
        (Machine(""), "it does not answer"),
        (Machine("one"), "it did not come back within 1800 s after a reboot"),
        (Machine("one", "", ""), "it did not come back within 1800 s after a reboot"),
        (Machine("one", "two", state="starting"), "it did not come back within 1800 s after a reboot"),
    ],
    ids=["back", "silent-before", "never-went-down", "never-came-up", "services-never-up"],
)
def test_it_is_back_when_another_boot_has_its_services_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None, machine: Machine, message: str
) -> None:
    monkeypatch.setattr(second_boot, "ask", machine)
    all_cluster = cluster(tmp_path, "all")
    if not message:
        reboot(all_cluster, NODES[0])
        assert "sudo -n systemctl reboot" in machine.commands
        return
    with pytest.raises(GpuprovError) as refused:
        reboot(all_cluster, NODES[0])
    assert refused.value.message == message


@pytest.mark.parametrize(
    ("setting", "added"),
    [
        ("never", ""),
        ("first", "; then one new machine of each group is rebooted"),
        ("all", "; then every new machine is rebooted"),
    ],
)
def test_ups_question_says_that_machines_reboot(
    tmp_path: Path, setting: str, added: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_cluster, questions = cluster(tmp_path, setting), list[str]()
    monkeypatch.setattr(cli, "confirmed", lambda question, **_: bool(questions.append(question)))
    changes = NodeChanges(create=tuple(new_cluster.spec.node_groups()), total=7)
    assert cli._confirm(Lines(), new_cluster, yes=False)(plan(new_cluster.spec), changes) is False
    assert questions == [f"Create 3 p4d.24xlarge, 2 g5.xlarge in the sandbox (7 resources{added})?"]
