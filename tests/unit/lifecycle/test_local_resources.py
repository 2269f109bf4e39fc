"""Limits that are met before machines are paid: ten thousand nodes, on computers that are too small for them."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from provisioner.common.errors import GpuprovError, InputError, ProviderError
from provisioner.common.events import Events
from provisioner.common.paths import private_dir
from provisioner.common.preflight import Finding
from provisioner.lifecycle import hooks, local_resources, machines, preflight
from provisioner.lifecycle.quarantine.book import Book, Entry
from provisioner.lifecycle.rollout import Place
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.sharing import shared_files
from provisioner.lifecycle.upgrade.journal import Journal
from provisioner.plan.models import Plan, build_plan
from provisioner.rundir import fleet, node_state
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger
from provisioner.spec import rules
from provisioner.stack.models import Lock
from provisioner.transport import ssh_config, ssh_sockets
from tests.support import plans

GIB = 1 << 30
STACK = plans.plan(plans.cluster_spec("p4d.24xlarge")).groups[0].stack


class Computer:
    """What a computer has; plenty, unless a test says otherwise."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.free_bytes, self.free_files, self.inodes = 100 * GIB, 10_000_000, 20_000_000
        self.memory_kib = 100 * GIB // 1024
        self.limits = {
            resource.RLIMIT_STACK: (8 << 20, resource.RLIM_INFINITY),
            resource.RLIMIT_NOFILE: (1024, 4096),
            resource.RLIMIT_NPROC: (30_000, 30_000),
        }
        self.user, self._meminfo = 1000, folder / "meminfo"
        patch.setattr(os, "statvfs", self._statvfs)
        patch.setattr(os, "geteuid", lambda: self.user)
        patch.setattr(resource, "getrlimit", self.limits.__getitem__)
        patch.setattr(local_resources, "MEMINFO", self._meminfo)
        for name in list(os.environ):
            if name not in ("PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR"):
                patch.delenv(name)

    def _statvfs(self, _: Path) -> Any:
        free = self.free_bytes // 4096
        return SimpleNamespace(
            f_bavail=free, f_bfree=2 * free, f_frsize=4096, f_favail=self.free_files, f_files=self.inodes
        )

    def findings(self, cluster: Cluster, plan: Plan) -> list[Finding]:
        self._meminfo.write_text(f"MemTotal: 9 kB\nMemAvailable: {self.memory_kib} kB\n")
        return local_resources.findings(cluster, plan)


@pytest.fixture
def computer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Computer:
    return Computer(tmp_path, monkeypatch)


def planned(folder: Path, *counts: int, more: str = "") -> tuple[Cluster, Plan]:
    groups = ", ".join(f"g{n}: {{machine: p4d.24xlarge, count: {count}}}" for n, count in enumerate(counts))
    site = "sites: {here: {provider: aws, region: us-east-1}}"
    (folder / "cluster.yaml").write_text(f"name: big\n{site}\ngroups: {{{groups}}}\n{more}")
    cluster = open_cluster(folder / "cluster.yaml", sandbox=False)
    lock = Lock(request={}, simulated=True, groups={f"g{n}": STACK for n in range(len(counts))})
    return cluster, replace(build_plan(cluster.spec, lock), simulated=False)


HOOKS = "hooks: {drain: 'true', resume: 'true'}\n"


def test_ten_thousand_nodes_meet_no_limit_of_a_usual_computer(tmp_path: Path, computer: Computer) -> None:
    cluster, plan = planned(tmp_path, 4000, 6000, more=HOOKS)
    began = time.process_time()
    assert computer.findings(cluster, plan) == []
    assert time.process_time() - began < 2
    assert not cluster.paths.root.exists(), "nothing is made"


@pytest.mark.parametrize(
    ("change", "subject", "message", "action"),
    [
        ({"free_bytes": 10 * GIB}, "disk space", "needs 11,024 MiB in", "move cluster.yaml and .gpuprov"),
        ({"free_files": 639_999}, "disk space", "makes 640,000 files in", "free inodes"),
        ({"stack": 2 << 20}, "Terraform", "of arguments, and a process of this shell takes 512 KiB", "ulimit -s"),
        ({"files": 1024}, "hooks", "need 2256 open files; a process of this shell has at most 1024",
         "ulimit -Hn 2256"),
    ],
)  # fmt: skip
def test_a_computer_that_is_too_small_is_refused(
    tmp_path: Path, computer: Computer, change: dict[str, int], subject: str, message: str, action: str
) -> None:
    for name, value in change.items():
        if name in ("stack", "files"):
            number = resource.RLIMIT_STACK if name == "stack" else resource.RLIMIT_NOFILE
            computer.limits[number] = (min(value, 1024) if name == "files" else value, value)
        else:
            setattr(computer, name, value)
    (finding,) = computer.findings(*planned(tmp_path, 10_000, more=HOOKS))
    assert (finding.status, finding.subject) == ("blocks", subject)
    assert message in finding.message and action in finding.action
    assert computer.findings(*planned(tmp_path, 100, more=HOOKS)) == [], "and a hundred nodes fit"


@pytest.mark.parametrize(
    ("processes", "memory_kib", "subject"),
    [(4096, 100 * GIB // 1024, "ssh"), (30_000, 4 << 20, "memory")],
)
def test_what_may_suffice_all_the_same_is_a_warning(
    tmp_path: Path, computer: Computer, processes: int, memory_kib: int, subject: str
) -> None:
    computer.limits[resource.RLIMIT_NPROC] = (processes, processes)
    computer.memory_kib = memory_kib
    (finding,) = computer.findings(*planned(tmp_path, 10_000))
    assert (finding.status, finding.subject) == ("warning", subject)


def test_a_limit_that_the_system_does_not_have_is_none(tmp_path: Path, computer: Computer) -> None:
    computer.inodes = computer.free_files = 0  # btrfs: inodes are made as they are needed
    computer.limits.update(dict.fromkeys(computer.limits, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)))
    assert computer.findings(*planned(tmp_path, 10_000, more=HOOKS)) == []


def test_root_has_what_is_reserved_and_no_limit_of_processes(tmp_path: Path, computer: Computer) -> None:
    computer.user, computer.free_bytes = 0, 6 * GIB
    computer.limits[resource.RLIMIT_NPROC] = (100, 100)
    assert computer.findings(*planned(tmp_path, 10_000)) == []


def test_more_nodes_than_a_cluster_has_are_refused_where_cluster_yaml_is_read(
    tmp_path: Path, computer: Computer
) -> None:
    computer.free_bytes = GIB
    with pytest.raises(InputError, match="all groups together have 20,000 nodes, and one cluster has at most 10,000"):
        planned(tmp_path, 10_000, 10_000)
    with mock.patch.object(rules, "MOST_NODES", 20_000):
        blocking = computer.findings(*planned(tmp_path, 10_000, 10_000))
    assert [finding.subject for finding in blocking] == ["disk space"]


def test_what_operators_share_has_a_limit_of_its_own(tmp_path: Path, computer: Computer) -> None:
    with mock.patch.object(rules, "MOST_NODES", 20_000):
        cluster, plan = planned(tmp_path, 10_000, 7_000)
    cluster.sharing = SimpleNamespace()  # type: ignore[assignment]
    assert [finding.subject for finding in computer.findings(cluster, plan)] == ["shared state"]
    cluster, plan = planned(tmp_path, 10_000)
    cluster.sharing = SimpleNamespace()  # type: ignore[assignment]
    assert computer.findings(cluster, plan) == []


def test_providers_that_are_fetched_need_no_space(tmp_path: Path, computer: Computer) -> None:
    cluster, plan = planned(tmp_path, 10)
    computer.free_bytes = 100 << 20
    (finding,) = computer.findings(cluster, plan)
    assert "needs 1,034 MiB" in finding.message
    (cluster.paths.site("here") / ".terraform" / "providers").mkdir(parents=True)
    assert computer.findings(cluster, plan) == []


def test_a_sandbox_pays_nothing_and_needs_no_space(tmp_path: Path, computer: Computer) -> None:
    cluster, plan = planned(tmp_path, 10)
    computer.free_bytes = computer.free_files = computer.memory_kib = 1
    assert computer.findings(cluster, replace(plan, simulated=True)) == []


def test_a_run_directory_whose_paths_are_too_long_is_refused(
    tmp_path: Path, computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_resources, "PATH_MAX", len(os.fsencode(tmp_path)) + 200)
    (finding,) = computer.findings(*planned(tmp_path, 1))
    assert finding.subject == "run directory" and "shorter path" in finding.action


@pytest.mark.parametrize("obstacle", ["long", "read-only"])
def test_sockets_of_ssh_that_have_no_place_are_refused_before_there_is_a_machine(
    tmp_path: Path, computer: Computer, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    base = tmp_path / ("x" * ssh_sockets.SOCKET_PATH_MAX if obstacle == "long" else "run")
    base.mkdir()
    cluster, plan = planned(tmp_path, 1)
    monkeypatch.setattr(ssh_sockets, "_is_short", lambda folder: obstacle != "long" and folder.parent == base)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    if obstacle == "read-only":
        monkeypatch.setattr(os, "access", lambda *_: False)
    (finding,) = computer.findings(cluster, plan)
    assert (finding.status, finding.subject) == ("blocks", "ssh")
    assert "no folder for ssh's control sockets" in finding.message and "XDG_RUNTIME_DIR" in finding.action
    if obstacle != "read-only":
        with pytest.raises(GpuprovError, match="no folder for ssh's control sockets"):
            ssh_sockets.control_dir(cluster.paths)


def test_preflight_has_them_and_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, plan = planned(tmp_path, 1)
    monkeypatch.setattr(local_resources, "PATH_MAX", 10)
    monkeypatch.setattr(type(cluster.providers.at("here")), "preflight", lambda *_: [])
    blocked = preflight.blocked(preflight.look(cluster, replace(plan, simulated=True), Events()))
    assert isinstance(blocked[""], ProviderError)
    assert "run directory: " in blocked[""].message


def test_what_is_counted_for_a_node_is_enough_for_the_longest_records(tmp_path: Path) -> None:
    """Ids as long as Azure's, reasons of 200 characters, every node in quarantine and in an upgrade."""
    count, group = 200, "g" * 32
    text = f"name: {'n' * 32}\nsites: {{{'s' * 32}: {{provider: aws, region: us-gov-east-1}}}}\n"
    (tmp_path / "cluster.yaml").write_text(f"{text}groups: {{{group}: {{machine: p4d.24xlarge, count: {count}}}}}\n")
    cluster = open_cluster(tmp_path / "cluster.yaml", sandbox=False)
    root, lock = private_dir(cluster.paths.root), Lock(request={}, simulated=True, groups={group: STACK})
    names = [f"{group}-{number:05}" for number in range(count)]
    nodes = [
        Node(name, group, "s" * 32, "p4d.24xlarge", f"/subscriptions/{'i' * 200}/{name}", "us-gov-east-1a",
             "203.0.113.255", "10.255.255.255")
        for name in names
    ]  # fmt: skip
    fleet.save(cluster.paths, nodes)
    pins = {node.name: (node.id, f"ssh-ed25519 {'A' * 68}") for node in nodes}
    ssh_config.save(cluster.paths, nodes, pins, dict.fromkeys(names, "ubuntu"))
    Ledger(cluster.paths).record(nodes, lock)
    (root / "locks").rename(root / "kept")  # a lock is one for all of them
    node_state.note_stage(cluster.paths, "unhealthy", names, ok=False)
    reason, checks = "r" * hooks.REASON, ("gpu.count", "load.completes")
    entry = Entry(nodes[0].id, "gpuprov", reason, "2026-01-31T12:00:00Z", checks, "standard", owed=checks)
    Book(dict.fromkeys(names, entry)).save(cluster.paths)
    Journal(nodes={name: Place("0123456789ab", "moved", reason) for name in names}).save(cluster.paths)
    private_dir(cluster.paths.site("s" * 32))
    machines.write_intent(cluster, build_plan(cluster.spec, lock))
    shared = shared_files.SharedFiles(cluster.paths, cluster.spec, SimpleNamespace(where="s3://b"))  # type: ignore[arg-type]
    sizes = {name: (root / name).stat().st_size for name in shared._local()}
    assert {"nodes.json", "quarantine.json", "upgrade.json", "ssh/pins.json", "intent.json"} <= set(sizes)
    assert max(sizes.values()) < count * local_resources.RECORD_BYTES
    escaped = 1.25  # as texts within JSON: quotes and line ends are two characters
    assert sum(sizes.values()) * escaped < count * local_resources.SHARED_BYTES
    assert rules.MOST_NODES * local_resources.SHARED_BYTES < shared_files.LIMIT
