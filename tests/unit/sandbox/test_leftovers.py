"""What killed runs leave: only what belongs to the octet is found, and it is taken down as podman would."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import ProviderError
from provisioner.sandbox import backends, layers, leftovers, monitors, namespaces, podman_commands, podman_state
from provisioner.sandbox.backends import Remains, SandboxNetwork
from provisioner.sandbox.monitors import Monitor
from provisioner.sandbox.runtime import Podman
from tests.support.run_processes import until

NETWORK = SandboxNetwork("gpuprov-7", "10.77.7", "127.77.7")
A, B, C, D = (letter * 64 for letter in "abcd")
NODE = "gpuprov-demo-box-0.7"


@dataclass(frozen=True)
class FakePodman(Podman):
    """Podman's answers. `containers`: rows of `ps`; `keys`: container → network namespace of those it can inspect;
    `volumes` and `networks`: name → its label of an octet."""

    path: str = "podman"
    runtime: str = "runc"
    containers: list[dict[str, Any]] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    volumes: dict[str, str] = field(default_factory=dict)
    networks: dict[str, str] = field(default_factory=dict)
    conmon: str = "/usr/bin/conmon"
    backend: str = "cni"
    version: str = "4.3.1"
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def run(self, *args: str, stdin: Any = None, deadline: float = 60, check: bool = True) -> str:
        self.calls.append(args)
        match args:
            case ("ps", *_):
                return json.dumps(self.containers)
            case ("container", "inspect", "--format", _, *ids):
                names = {row["Id"]: row["Names"][0] for row in self.containers}
                if not {*ids} <= self.keys.keys():  # as podman 4.3 does
                    return ""
                return "".join(f"{id_} {names[id_]} {self.keys[id_]}\n" for id_ in ids)
            case ("volume", "ls", *_):
                return json.dumps([{"Name": n, "Labels": {"gpuprov.octet": o}} for n, o in self.volumes.items()])
            case ("network", "ls", *_):  # without labels there is no key
                rows = self.networks.items()
                return json.dumps([{"name": n} | ({"labels": {"gpuprov.octet": o}} if o else {}) for n, o in rows])
            case ("info", "--format", "{{.Host.Conmon.Path}}"):
                return f"{self.conmon}\n"
            case ("info", *_):
                return f"{self.backend}\n"
            case ("version", *_):
                return self.version
        return ""

    def has(self, id_: str, name: str, state: str = "running", key: str | None = None) -> None:
        self.containers.append({"Id": id_, "Names": [name], "State": state})
        if key is not None:
            self.keys[id_] = key


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakePodman:
    """A machine without anything."""
    for name in ("RECORDS", "LEASED", "CGROUPS", "RUN"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(leftovers, name, tmp_path / name)
    (tmp_path / "netns").mkdir()
    monkeypatch.setattr(namespaces, "FOLDER", tmp_path / "netns")
    for name in ("LEASES", "RESULTS", "NETWORKS"):
        (tmp_path / name / NETWORK.name).mkdir(parents=True)
        monkeypatch.setattr(backends, name, tmp_path / name)
    monkeypatch.setattr(leftovers, "LEASES", tmp_path / "LEASES")
    monkeypatch.setattr(backends, "SYSTEM_PATH", str(tmp_path))  # no iptables
    monkeypatch.setattr(podman_state, "processes", dict)
    monkeypatch.setattr(podman_commands, "is_root", lambda _: True)
    monkeypatch.setattr(podman_commands, "_waits", [0.0])
    monkeypatch.setattr(namespaces, "addresses", lambda path: path.read_text().split())
    return FakePodman()


@pytest.fixture
def namespace(podman: FakePodman) -> Callable[[str, str], Path]:
    def make(name: str, address: str) -> Path:
        path = namespaces.FOLDER / name
        path.write_text(address)
        return path

    return make


def lease(address: str, container: str) -> Path:
    path = backends.LEASES / NETWORK.name / address
    path.write_bytes(f"{container}\r\neth0".encode())
    return path


def find(podman: FakePodman) -> list[str]:
    return [str(leftover) for leftover in leftovers.find(NETWORK, podman=podman)]


def test_a_living_sandbox_and_what_is_a_users_is_left_alone(
    podman: FakePodman, namespace: Callable[[str, str], Path]
) -> None:
    podman.has(A, NODE, key=str(namespace("netns-node", "10.77.7.4")))
    lease("10.77.7.4", A)
    podman.has(B, "web", key=str(namespace("netns-web", "")))
    namespace("netns-somebodys", "")  # nothing says whose it is
    podman.has(C, "gpuprov-demo-box-0.17", "storage")
    podman.volumes.update({NODE: "7", "web-data": "", "gpuprov-demo-box-0.17": "17", "gpuprov-backup.7": ""})
    (leftovers.RECORDS / "gpuprov-demo-box-0.17.4711").write_text(f"removing {D}\n")
    assert find(podman) == []


def test_a_namespace_that_answers_under_an_address_without_a_container(
    podman: FakePodman, namespace: Callable[[str, str], Path]
) -> None:
    namespace("netns-left", "10.77.7.4")
    lease("10.77.7.4", A)
    assert find(podman) == ["network namespace netns-left"]


@pytest.mark.parametrize(
    ("name", "lead"),
    [("lab1", "lease"), ("netns-lab", ""), ("docker-x", "lease"), ("netns-link", "lease"), ("netns-x", "other lease")],
)
def test_a_namespace_that_is_somebodys_is_left_and_told(
    podman: FakePodman, namespace: Callable[[str, str], Path], tmp_path: Path, name: str, lead: str
) -> None:
    """`ip netns add`, a link to a process's, an address of 10.77.7.0/24 by chance."""
    if "link" in name or name == "docker-x":
        (tmp_path / "target").write_text("10.77.7.5")
        (namespaces.FOLDER / name).symlink_to(tmp_path / "target")
    else:
        namespace(name, "10.77.7.5")
    if lead:
        lease("10.77.7.6" if lead == "other lease" else "10.77.7.5", A)
    assert not any("namespace" in text for text in find(podman))
    assert leftovers.remove(NETWORK, podman=podman) == []
    assert (namespaces.FOLDER / name).exists()
    (sentence,) = leftovers.find_foreign(NETWORK, podman=podman)
    assert sentence == f"network namespace {name} has the address 10.77.7.5 and is not gpuprov's"


def test_a_namespace_with_a_process_in_it_is_not_taken_down(
    podman: FakePodman, namespace: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = namespace("netns-left", "10.77.7.4")
    lease("10.77.7.4", A)
    monkeypatch.setattr(podman_state, "processes", lambda: {77: ["nginx"]})
    monkeypatch.setattr(namespaces, "_inode", {77: path.stat().st_ino}.get)
    assert leftovers.remove(NETWORK, podman=podman) == ["network namespace netns-left: process 77 runs in it"]
    assert path.exists()


def test_a_record_of_a_removal_leads_to_a_namespace(podman: FakePodman, namespace: Callable[[str, str], Path]) -> None:
    """CNI gives the lease back first."""
    namespace("netns-left", "10.77.7.4")
    (leftovers.RECORDS / f"{NODE}.4711").write_text(f"removing {A}\n")
    expected = ["network namespace netns-left", f"network of removed container {A[:12]}", f"record {NODE}.4711"]
    assert find(podman) == expected


def test_a_network_without_our_label_is_somebodys(podman: FakePodman) -> None:
    podman.networks[NETWORK.name] = ""
    lease("10.77.7.4", A)
    assert find(podman) == []
    assert leftovers.find_foreign(NETWORK, podman=podman) == ["podman network gpuprov-7 does not have gpuprov's label"]
    assert leftovers.octets(podman=podman) == set()
    assert not leftovers.has_network(NETWORK, podman=podman)
    leftovers.remove_network(NETWORK, podman=podman)
    assert ("network", "rm", NETWORK.name) not in podman.calls
    assert (backends.LEASES / NETWORK.name / "10.77.7.4").exists()
    podman.networks[NETWORK.name] = "7"
    assert leftovers.has_network(NETWORK, podman=podman)
    assert leftovers.octets(podman=podman) == {7}
    leftovers.remove_network(NETWORK, podman=podman)
    assert ("network", "rm", NETWORK.name) in podman.calls


def test_a_lease_that_is_no_containers_leads_nowhere(podman: FakePodman) -> None:
    """Its container's id becomes part of paths."""
    path = lease("10.77.7.4", "../../etc")
    assert find(podman) == ["address lease 10.77.7.4 (container )"]
    victim = leftovers.CGROUPS / "victim"
    (leftovers.CGROUPS / "libpod_parent" / f"libpod-{A}").mkdir(parents=True)
    victim.mkdir()
    leftovers._remove_cgroups(f"{A}/../../victim")
    assert victim.exists()
    assert leftovers.remove(NETWORK, podman=podman) == []
    assert not path.exists()


def test_a_lease_alone(podman: FakePodman) -> None:
    lease("10.77.7.4", A)
    assert find(podman) == [f"address lease 10.77.7.4 (container {A[:12]})"]


def start_of(container: str, address: str = "10.77.7.4", name: str = NODE) -> Path:
    """The record of a start that was cut off (node.sh)."""
    record = leftovers.RECORDS / f"{name}.4711"
    record.write_text(f"address {address}\ncontainer {container}\n")
    os.utime(record, (record.stat().st_mtime - 60,) * 2)
    return record


def test_an_empty_namespace_that_was_made_since_a_start_that_was_cut_off(
    podman: FakePodman, namespace: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = namespace("netns-empty", "")
    namespace("somebodys", "")
    assert find(podman) == []  # nothing says that it is a sandbox's
    record = start_of(A)
    with_namespace = ["network namespace netns-empty", f"record {NODE}.4711"]
    assert find(podman) == with_namespace
    podman.has(A, NODE, "created", key="")
    assert find(podman) == with_namespace
    inode = path.stat().st_ino
    monkeypatch.setattr(podman_state, "processes", lambda: {77: ["/sbin/init"]})
    monkeypatch.setattr(namespaces, "_inode", {77: inode}.get)  # somebody's container runs in it
    with_rules = [f"firewall rules of container {A[:12]}", f"record {NODE}.4711"]
    assert find(podman) == with_rules
    monkeypatch.setattr(namespaces, "_inode", {77: inode + 1}.get)
    assert find(podman) == with_namespace
    monkeypatch.setattr(namespaces, "_inode", {}.get)
    path.write_text("10.88.0.3")  # one of podman's other networks: another container is about to start in it
    assert find(podman) == with_rules
    path.write_text("")
    os.utime(record, (path.stat().st_ctime + 60,) * 2)
    assert find(podman) == with_rules  # it was there before


def test_a_namespace_that_was_written_down_after_all(podman: FakePodman, namespace: Callable[[str, str], Path]) -> None:
    start_of(A)
    podman.has(A, NODE, key=str(namespace("netns-node", "")))
    namespace("netns-other", "")  # no start is open, so nothing says whose it is
    assert find(podman) == [f"record {NODE}.4711"]


@pytest.mark.parametrize(
    ("arguments", "age", "waits"),
    [
        (["podman", "start", "web"], 60, True),
        (["/usr/bin/podman", "--runtime", "runc", "container", "cleanup", D], 60, True),
        (["buildah", "run", "x"], 60, True),
        (["podman", "start", "web"], -60, False),
        (["podman", "exec", "web", "sh"], 60, False),
        (["podman", "exec", "web", "systemctl", "start", "x"], 60, False),
        (["podman", "--root", "start", "--log-level=debug", "--syslog", "ps"], 60, False),
        (["podman", "--root", "/x", "--syslog", "start", "web"], 60, True),
        (["vi", "start"], 60, False),
    ],
)
def test_a_podman_that_is_older_than_a_namespace_may_have_made_it(
    podman: FakePodman, namespace: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch,
    arguments: list[str], age: float, waits: bool,
) -> None:  # fmt: skip
    """Then the record stays too, for the next look; the rules of the start go."""
    path, record = namespace("netns-empty", ""), start_of(A)
    monkeypatch.setattr(podman_state, "processes", lambda: {77: arguments})
    monkeypatch.setattr(namespaces, "_inode", lambda _: None)
    monkeypatch.setattr(podman_commands, "_start_of", lambda _: path.stat().st_ctime - age)
    expected = ["network namespace netns-empty", f"record {record.name}"]
    rules = [f"firewall rules of container {A[:12]}"]
    assert find(podman) == (rules if waits else expected)
    monkeypatch.setattr(podman_commands, "is_root", lambda _: False)
    assert find(podman) == expected
    monkeypatch.setattr(podman_commands, "is_root", lambda _: True)
    monkeypatch.setattr(podman_commands, "LONGEST_S", -60)  # no start takes that long
    assert find(podman) == expected


def test_what_an_older_podman_may_use_is_removed_when_it_has_ended(
    podman: FakePodman, namespace: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not stop `up` nor `down`: the record leads the next command to it."""
    path, record = namespace("netns-empty", ""), start_of(A)
    monkeypatch.setattr(leftovers, "_take_down", lambda *arguments: arguments[2].namespace and path.unlink())
    running = {77: ["podman", "start", "web"]}
    monkeypatch.setattr(podman_state, "processes", lambda: running)
    monkeypatch.setattr(namespaces, "_inode", lambda _: None)
    monkeypatch.setattr(podman_commands, "_start_of", lambda _: path.stat().st_ctime - 60)
    monkeypatch.setattr(podman_commands, "wait_for_end", lambda *_: None)
    assert leftovers.remove(NETWORK, podman=podman) == []
    assert path.exists()
    assert record.exists()
    monkeypatch.setattr(podman_commands, "wait_for_end", lambda *_: running.clear())
    assert leftovers.remove(NETWORK, podman=podman) == []
    assert not path.exists()
    assert not record.exists()


def test_an_end_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command waits for a minute at most, however many things it looks at, and for nothing that merely lives long."""
    monkeypatch.setattr(podman_commands, "_waits", [0.0])
    with subprocess.Popen(["sleep", "60"]) as process:
        monkeypatch.setattr(podman_commands, "SHORT_S", -1)
        podman_commands.wait_for_end([process.pid])
        monkeypatch.setattr(podman_commands, "SHORT_S", 120)
        monkeypatch.setattr(podman_commands, "WAIT_S", 0.2)
        begin = time.monotonic()
        for _ in range(20):
            podman_commands.wait_for_end([process.pid])
        assert 0.2 <= time.monotonic() - begin < 3
        assert process.poll() is None
        monkeypatch.setattr(podman_commands, "WAIT_S", 60)
        threading.Timer(0.2, process.kill).start()
        podman_commands.wait_for_end([process.pid])
        assert process.wait(60) == -9
    podman_commands.wait_for_end([process.pid])  # it is gone


def test_the_start_of_a_process_is_known_to_the_second() -> None:
    started = time.time()
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert (
                started - podman_commands.MARGIN_S
                < podman_commands._start_of(process.pid)
                < time.time() + podman_commands.MARGIN_S
            )
            assert namespaces._inode(process.pid) == Path("/proc/self/ns/net").stat().st_ino
        finally:
            process.kill()
    assert (podman_commands._start_of(process.pid), namespaces._inode(process.pid)) == (0, None)


def test_netavarks_lease_of_an_empty_namespace_is_the_starts(
    podman: FakePodman, namespace: Callable[[str, str], Path]
) -> None:
    engine = FakePodman(backend="netavark", networks={"gpuprov-7": "7"})
    start_of(A)
    start_of(B, "10.77.7.5", "gpuprov-demo-box-1.7")
    namespace("netns-left", "10.77.7.4")
    namespace("netns-empty", "")
    leases = [leftover.lease for leftover in leftovers.find(NETWORK, podman=engine)]
    assert leases == ["10.77.7.4", "10.77.7.5", "", ""]


def test_a_node_that_boots_again_is_not_taken_for_one_that_was_killed(
    podman: FakePodman, monkeypatch: pytest.MonkeyPatch
) -> None:
    podman.has(A, NODE, "exited", key="")
    lease("10.77.7.4", A)
    assert len(find(podman)) == 1
    cleanup = {12: ["/usr/bin/podman", "--runtime", "runc", "container", "cleanup", A]}
    monkeypatch.setattr(podman_state, "processes", lambda: cleanup)
    assert find(podman) == []


def test_storage_and_volumes_by_their_names(podman: FakePodman) -> None:
    podman.has(A, NODE, key="")
    podman.has(B, "gpuprov-demo-box-1.7", "storage")
    podman.volumes.update({NODE: "7", "gpuprov-demo-box-1.7": "7"})
    assert find(podman) == ["storage of container gpuprov-demo-box-1.7", "volume gpuprov-demo-box-1.7"]


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, dict[str, str] | None], None]:
    """Lets the runtime know a container with these annotations. What it deletes is written into `calls`."""
    script = tmp_path / "runc"
    script.write_text(
        f'#!/bin/sh\n[ "$1" = state ] || {{ echo "$@" >>{tmp_path}/calls; exit; }}\ncat {tmp_path}/$2 2>/dev/null\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def know(container: str, annotations: dict[str, str] | None) -> None:
        (leftovers.RUN / "runc" / container).mkdir(parents=True)
        (tmp_path / container).write_text(json.dumps({"id": container, "annotations": annotations}))

    return know


def monitor(container: str, name: str = NODE) -> list[str]:
    return ["/usr/bin/conmon", "--api-version", "1", "-c", container, "-n", name, "--exit-command-arg", "-n"]


def test_monitors_whose_container_is_ours(
    podman: FakePodman, runtime: Callable[[str, dict[str, str] | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the runtime knows, or by a record where that one does not know it; never by what the monitor says."""
    e, ours = "e" * 64, {"gpuprov.octet": "7"}
    podman.has(A, NODE, key="")
    for container, container_annotations in {A: ours, B: ours, C: {}, D: {"gpuprov.octet": "17"}}.items():
        runtime(container, container_annotations)
    start_of(e)
    rows = [A, B, C, D, e, "f" * 64, f"{B}/../../victim", "."]
    processes = {number: monitor(container) for number, container in enumerate(rows)} | {20: monitor(B, "web")}
    monkeypatch.setattr(podman_state, "processes", lambda: processes)
    monkeypatch.setattr(monitors, "_runs", lambda _, program: program == "/usr/bin/conmon")
    expected = [f"monitor {NODE} (process 1)", f"monitor {NODE} (process 4)", f"container of the runtime {B[:12]}"]
    assert [line for line in find(podman) if "record" not in line and "rules" not in line] == expected
    monkeypatch.setattr(podman_commands, "is_root", lambda _: False)
    assert "monitor" not in " ".join(find(podman))
    monkeypatch.setattr(podman_commands, "is_root", lambda _: True)
    monkeypatch.setattr(monitors, "_runs", lambda *_: False)
    assert "monitor" not in " ".join(find(podman))


def test_a_process_that_calls_itself_a_monitor_is_none() -> None:
    """Any local user can choose a command line."""
    argv = ["conmon", "-c", "read x", "-n", NODE]
    with subprocess.Popen(argv, executable="/bin/sh", stdin=subprocess.PIPE) as process:
        program = f"/proc/{process.pid}/exe"
        assert until(lambda: podman_state.arguments(process.pid)[:5] == argv)
        assert not monitors._runs(process.pid, "/usr/bin/env")
        assert monitors._runs(process.pid, program)
        assert podman_commands.is_root(process.pid) == (os.geteuid() == 0)
        process.kill()
    assert not monitors._runs(process.pid, program)


def test_a_monitor_is_killed_unless_another_process_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(podman_commands, "is_root", lambda _: True)
    argv = ["sh", "-c", "read x; exit 3", "conmon", "-n", NODE]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        monkeypatch.setattr(monitors, "CONTAINER_ID", re.compile("read x; exit 3"))
        pid, program = process.pid, f"/proc/{process.pid}/exe"
        assert until(lambda: podman_state.arguments(pid)[0] == "sh")
        monitors.kill(Monitor(pid, "gpuprov-another.7", argv[2], program))
        assert process.poll() is None
        monitors.kill(Monitor(pid, NODE, argv[2], program))
        assert process.wait(60) == -9
    monitors.kill(Monitor(pid, NODE, argv[2], program))  # it is gone


def test_what_only_the_runtime_knows_by_its_annotation(
    podman: FakePodman, tmp_path: Path, runtime: Callable[[str, dict[str, str] | None], None]
) -> None:
    ours = {"gpuprov.octet": "7"}
    states = {A: ours, B: {"gpuprov.octet": "17"}, C: None, D: ours, "somebodys": ours}
    for container, container_annotations in states.items():
        runtime(container, container_annotations)
    podman.has(D, NODE, key="/run/netns/netns-node")
    assert find(podman) == [f"container of the runtime {A[:12]}"]
    assert leftovers.remove(NETWORK, podman=podman) == []
    assert (tmp_path / "calls").read_text() == f"delete --force {A}\n"


def test_what_runs_and_cannot_be_looked_at_stops_everything(podman: FakePodman) -> None:
    lease("10.77.7.4", A)
    podman.has(B, "web", "removing")  # killed half way: its network is gone
    podman.has(A, NODE, key="/run/netns/netns-node")
    assert find(podman) == []
    podman.has(D, "batch", "created")
    assert find(podman) == []
    podman.has(C, "db")
    with pytest.raises(
        ProviderError, match=r"podman cannot inspect web \(removing\), batch \(created\), db \(running\)"
    ):
        find(podman)


def test_a_backend_that_nobody_knows_is_an_error(podman: FakePodman) -> None:
    with pytest.raises(ProviderError, match="network backend other is not known"):
        leftovers.find(NETWORK, podman=FakePodman(backend="other"))


def test_what_stays_is_told_and_its_record_stays(
    podman: FakePodman, namespace: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    namespace("netns-left", "10.77.7.4")
    record = leftovers.RECORDS / f"{NODE}.4711"
    record.write_text(f"removing {A}\n")

    def refuse(*_: object) -> None:
        raise ProviderError("CNI plugin bridge failed: the device is busy")

    monkeypatch.setattr(backends.Cni, "tear_down", refuse)
    remaining = leftovers.remove(NETWORK, podman=podman)
    assert remaining == [
        f"{leftover}: CNI plugin bridge failed: the device is busy"
        for leftover in ("network namespace netns-left", f"network of removed container {A[:12]}")
    ]
    assert record.exists()


def program(folder: Path, name: str, status: int = 0, output: str = "") -> None:
    """It writes what it is told into NAME.json, one call a line."""
    script = folder / name
    script.write_text(
        "#!/usr/bin/env python3\nimport json, os, sys\n"
        "call = {'name': os.path.basename(sys.argv[0]), 'arguments': sys.argv[1:], 'document': json.load(sys.stdin),\n"
        "        'environment': {k: v for k, v in os.environ.items() if k.startswith('CNI_')}}\n"
        f"open({str(folder / 'calls.json')!r}, 'a').write(json.dumps(call) + chr(10))\n"
        f"print({output!r}); sys.exit({status})\n"
    )
    script.chmod(0o755)


def calls(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "calls.json").read_text().splitlines()]


def test_cni_is_told_to_delete_by_its_plugins(
    podman: FakePodman,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Specification of CNI, section 2: environment, standard input, the last plugin first."""
    monkeypatch.setattr(backends, "CNI_PATH", str(tmp_path))
    for name in ("firewall", "portmap", "bridge"):
        program(tmp_path, name)
    result = backends.RESULTS / f"{NETWORK.name}-{A}-eth0"
    result.write_text("{}")
    address = lease("10.77.7.4", A)
    backends.Cni().tear_down(NETWORK, Remains(A, "10.77.7.4", Path("/run/netns/netns-left")))
    plugin_calls = calls(tmp_path)
    assert [call["name"] for call in plugin_calls] == ["firewall", "portmap", "bridge"]
    assert all(
        call["environment"] == {
            "CNI_COMMAND": "DEL", "CNI_CONTAINERID": A, "CNI_NETNS": "/run/netns/netns-left", "CNI_IFNAME": "eth0",
            "CNI_PATH": str(tmp_path),
        }
        for call in plugin_calls
    )  # fmt: skip
    assert all(call["document"]["name"] == "gpuprov-7" for call in plugin_calls)
    port = {"hostPort": 22, "containerPort": 22, "protocol": "tcp", "hostIP": "127.77.7.4"}
    assert plugin_calls[1]["document"]["runtimeConfig"]["portMappings"] == [port]
    assert plugin_calls[2]["document"]["ipam"] == {"type": "host-local", "ranges": [[{"subnet": "10.77.7.0/24"}]]}
    assert not result.exists() and not address.exists()


def test_masquerading_goes_with_its_network_also_where_no_rule_leads_to_its_chain(
    podman: FakePodman, tmp_path: Path
) -> None:
    """`iptables-save -t nat` after a kill: `bridge` had made the chain, and not yet the rule in POSTROUTING. Chains of
    other networks, and CNI's own, stay."""
    unlinked, linked, other = (
        "CNI-3932fc78bf1efdf02c9a2793",
        "CNI-4a2fb16d0cbe5a7d2f0d9b11",
        "CNI-77aa0b7cbe0e0d2ff0d9b113",
    )
    saved = tmp_path / "saved"
    saved.write_text(
        "*nat\n"
        + "".join(f":{chain} - [0:0]\n" for chain in ("POSTROUTING", "CNI-HOSTPORT-MASQ", unlinked, linked, other))
        + "".join(
            f'-A {chain} ! -d 224.0.0.0/4 -m comment --comment "name: \\"{network}\\" id: \\"{A}\\"" -j {target}\n'
            for chain, network, target in [
                (unlinked, NETWORK.name, "MASQUERADE"),
                (linked, NETWORK.name, "MASQUERADE"),
                ("POSTROUTING", NETWORK.name, linked),
                (other, "gpuprov-70", "MASQUERADE"),
                ("CNI-HOSTPORT-MASQ", NETWORK.name, "MASQUERADE"),
            ]
        )
        + "COMMIT\n"
    )  # fmt: skip
    for name, text in {"iptables-save": f"cat {saved}", "iptables": f'echo "$4 $5" >>{tmp_path}/changes'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    backends.Cni().forget(NETWORK)
    changes = (tmp_path / "changes").read_text().splitlines()
    assert changes == ["-D POSTROUTING", f"-F {unlinked}", f"-F {linked}", f"-X {unlinked}", f"-X {linked}"]


def test_the_rules_of_a_start_whose_namespace_podman_removed(
    podman: FakePodman, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It removes the namespace after a network plugin that failed, and that one's rules stay."""
    record = start_of(A)
    assert find(podman) == [f"firewall rules of container {A[:12]}", f"record {record.name}"]
    torn_down = list[Remains]()
    monkeypatch.setattr(backends.Cni, "tear_down", lambda _, __, remains: torn_down.append(remains))
    assert leftovers.remove(NETWORK, podman=podman) == []
    assert torn_down == [Remains(A, None, None)]
    assert not record.exists()


def test_a_plugin_says_why_it_fails(
    podman: FakePodman,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backends, "CNI_PATH", str(tmp_path))
    program(tmp_path, "portmap", 1, json.dumps({"code": 999, "msg": "iptables is locked"}))
    with pytest.raises(ProviderError, match="CNI plugin portmap failed: iptables is locked"):
        backends.Cni().tear_down(NETWORK, Remains(A, None, None))


def test_netavark_is_told_to_tear_down_by_its_options(
    podman: FakePodman,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """containers/common, libnetwork/netavark/run.go: netavarkOptions."""
    monkeypatch.setattr(backends, "HELPERS", str(tmp_path))
    program(tmp_path, "netavark")
    described = {"name": "gpuprov-7", "driver": "bridge", "network_interface": "podman1"}
    (backends.NETWORKS / "gpuprov-7.json").write_text(json.dumps(described))
    backends.Netavark().tear_down(NETWORK, Remains(A, "10.77.7.4", Path("/run/netns/netns-left")))
    (call,) = calls(tmp_path)
    assert call["arguments"] == ["--config", "/run/containers/networks", "teardown", "/run/netns/netns-left"]
    assert call["document"] == {
        "container_id": A, "container_name": "gpuprov-7",
        "port_mappings": [
            {"host_ip": "127.77.7.4", "host_port": 22, "container_port": 22, "protocol": "tcp", "range": 1}
        ],
        "networks": {"gpuprov-7": {"interface_name": "eth0", "static_ips": ["10.77.7.4"]}},
        "network_info": {"gpuprov-7": described},
    }  # fmt: skip


@pytest.mark.parametrize(("version", "remaining"), [("4.9.3", {4, 9}), ("5.1.0", set())])
def test_netavarks_leases_are_noted_until_podman_gives_them_back(
    podman: FakePodman, namespace: Callable[[str, str], Path], version: str, remaining: set[int]
) -> None:
    engine = FakePodman(backend="netavark", version=version, networks={"gpuprov-7": "7"})
    leftovers._note_lease(NETWORK, "10.77.7.9")
    start_of(A)
    namespace("netns-left", "10.77.7.4")
    leftover, _ = leftovers.find(NETWORK, podman=engine)
    assert leftover.lease == "10.77.7.4"
    leftovers._note_lease(NETWORK, leftover.lease)
    assert leftovers.leased(NETWORK) == {4, 9}
    leftovers.remove_network(NETWORK, podman=engine)
    assert ("network", "rm", "gpuprov-7") in engine.calls
    assert leftovers.leased(NETWORK) == remaining


def test_layers_without_a_container_on_the_sandboxs_images(
    podman: FakePodman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = time.time() - 120
    created_text = f"{datetime.fromtimestamp(created, UTC):%FT%T}.123456789Z"
    stored = {
        "layers": [{"id": "base"}, {"id": "left", "parent": "base", "created": created_text},
                   {"id": "node", "parent": "base"}, {"id": "users", "parent": "debian"}, {"id": "debian"}],
        "images": [
            {"names": ["localhost/gpuprov-sandbox:1"], "layer": "base"}, {"names": ["debian"], "layer": "debian"}
        ],
        "containers": [{"layer": "node"}],
    }  # fmt: skip
    for kind, rows in stored.items():
        (tmp_path / kind).write_text(json.dumps(rows))
    script = tmp_path / "containers-storage"
    script.write_text(
        f'#!/bin/sh\ncase $1 in delete-layer) echo "$2" >>{tmp_path}/deleted ;; *) cat {tmp_path}/$1 ;; esac\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    at_work = {1: ["/usr/bin/podman", "--runtime", "runc", "create", "--name", "x"]}
    monkeypatch.setattr(layers, "processes", lambda: at_work)
    monkeypatch.setattr(podman_commands, "_start_of", {1: created - 60, 2: created + 60}.get)
    monkeypatch.setattr(podman_commands, "wait_for_end", lambda *_: None)
    layers.remove_unused()  # process 1 is older than the layer: it is left to the next command
    assert not (tmp_path / "deleted").exists()
    monkeypatch.setattr(podman_commands, "is_root", lambda _: False)
    layers.remove_unused()
    assert (tmp_path / "deleted").read_text() == "left\n"
    monkeypatch.setattr(podman_commands, "is_root", lambda _: True)
    monkeypatch.setattr(podman_commands, "wait_for_end", lambda *_: at_work.clear())
    layers.remove_unused()
    assert (tmp_path / "deleted").read_text() == "left\n" * 2
    at_work[2] = ["podman", "create", "--name", "younger"]
    layers.remove_unused()
    assert (tmp_path / "deleted").read_text() == "left\n" * 3
    at_work[1] = ["podman", "run", "--rm", "fg"]
    monkeypatch.setattr(podman_commands, "LONGEST_S", 60)
    layers.remove_unused()
    assert (tmp_path / "deleted").read_text() == "left\n" * 4


@pytest.mark.parametrize(
    "command",
    ["system service --time 0", "play kube x.yaml", "kube play x.yaml", "container clone x", "container restore x"],
)
def test_commands_that_make_layers(podman: FakePodman, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    timestamp = time.time()
    monkeypatch.setattr(podman_commands, "_start_of", lambda _: timestamp - 60)
    assert podman_commands.users(timestamp, layers.CHANGING, {77: ["podman", *command.split()]}) == {77}


def test_a_mount_that_podman_forgot_is_no_reason_to_keep_a_container(
    podman: FakePodman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """podman 4.3.1: "unlinkat …/userdata/shm: device or resource busy"."""
    shm = "/var/lib/containers/storage/overlay-containers/{}/userdata/shm"
    (tmp_path / "mounts").write_text("".join(f"1 2 0:5 / {shm.format(id_)} rw - tmpfs shm rw\n" for id_ in (A, B, C)))
    monkeypatch.setattr(leftovers, "MOUNTS", tmp_path / "mounts")
    umount = tmp_path / "umount"
    umount.write_text(f'#!/bin/sh\necho "$1" >>{tmp_path}/unmounted\n')
    umount.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    real = FakePodman.run

    def run(self: FakePodman, *args: str, **options: Any) -> str:
        if args[0] == "ps":
            return f"{A} {NODE}\n{B} web\n{C} {NODE}0\n" if "--all" in args else f"{B}\n{C}\n"
        if args[0] == "rm" and not (tmp_path / "unmounted").exists():
            assert (leftovers.RECORDS / f"{NODE}.{os.getpid()}").read_text() == f"removing {A}\n"
            raise ProviderError("podman rm failed: device or resource busy")
        return real(self, *args, **options)

    monkeypatch.setattr(FakePodman, "run", run)
    leftovers.remove_containers([NODE, f"{NODE}0"], podman)
    assert (tmp_path / "unmounted").read_text() == shm.format(A) + "\n"
    assert list(leftovers.RECORDS.iterdir()) == []


@pytest.mark.parametrize("failures", [1, 3])
def test_a_container_that_goes_while_podman_lists_it_is_no_error(
    monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """podman 4.3: "determining buildah container for container …: container not known"."""
    monkeypatch.setattr(podman_state, "processes", dict)
    podman, calls, answer = FakePodman(), [0], FakePodman.run

    def run(self: FakePodman, *args: str, **more: Any) -> str:
        if args[0] == "ps":
            calls[0] += 1
            if calls[0] <= failures:
                raise ProviderError(
                    "podman ps failed: determining buildah container for container 1: container not known"
                )
        return answer(self, *args, **more)

    monkeypatch.setattr(FakePodman, "run", run)
    assert podman_state.read(podman).containers == {}
    assert calls == [failures + 1]


def test_another_failure_of_podman_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: Any, **__: Any) -> str:
        raise ProviderError("podman ps failed: no space left on device")

    monkeypatch.setattr(FakePodman, "run", run)
    with pytest.raises(ProviderError, match="no space left"):
        podman_state.read(FakePodman())
