"""What killed runs leave: only what belongs to the octet is found, and it is taken down as podman would."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from provisioner.errors import ProviderError
from provisioner.sandbox import backends, layers, leftovers, namespaces, podman_commands, podman_state
from provisioner.sandbox.backends import Remains, SandboxNetwork
from provisioner.sandbox.runtime import Podman

NETWORK = SandboxNetwork("gpuprov-7", "10.77.7", "127.77.7")
A, B, C, D = (letter * 64 for letter in "abcd")
NODE = "gpuprov-demo-box-0.7"


@dataclass(frozen=True)
class FakePodman(Podman):
    """Podman's answers. `containers`: rows of `ps`; `keys`: container → network namespace of those it can inspect."""

    path: str = "podman"
    runtime: str = "runc"
    containers: list[dict[str, Any]] = field(default_factory=list)
    keys: dict[str, str] = field(default_factory=dict)
    volumes: list[str] = field(default_factory=list)
    networks: list[str] = field(default_factory=list)
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
                return "\n".join(self.volumes)
            case ("network", "ls", *_):
                return "\n".join(self.networks)
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
    monkeypatch.setattr(backends, "SYSTEM_PATH", str(tmp_path))  # no iptables
    monkeypatch.setattr(podman_state, "processes", dict)
    monkeypatch.setattr(namespaces, "address", lambda path, _: path.read_text() or None)
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
    podman.volumes.extend([NODE, "web-data", "gpuprov-demo-box-0.17"])
    (leftovers.RECORDS / "gpuprov-demo-box-0.17.4711").write_text(f"removing {D}\n")
    assert find(podman) == []


def test_a_namespace_that_answers_under_an_address_without_a_container(
    podman: FakePodman, namespace: Callable[[str, str], Path]
) -> None:
    namespace("netns-left", "10.77.7.4")
    lease("10.77.7.4", A)
    assert find(podman) == ["network namespace netns-left"]


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
    found = ["network namespace netns-empty", f"record {NODE}.4711"]
    assert find(podman) == found
    podman.has(A, NODE, "created", key="")
    assert find(podman) == found
    inode = path.stat().st_ino
    monkeypatch.setattr(podman_state, "processes", lambda: {77: ["/sbin/init"]})
    monkeypatch.setattr(namespaces, "_inode", {77: inode}.get)  # somebody's container runs in it
    others = [f"firewall rules of container {A[:12]}", f"record {NODE}.4711"]
    assert find(podman) == others
    monkeypatch.setattr(namespaces, "_inode", {77: inode + 1}.get)
    assert find(podman) == found
    os.utime(record, (path.stat().st_ctime + 60,) * 2)
    assert find(podman) == others  # it was there before


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
    """Then the record stays too, for the next look."""
    path, record = namespace("netns-empty", ""), start_of(A)
    monkeypatch.setattr(podman_state, "processes", lambda: {77: arguments})
    monkeypatch.setattr(namespaces, "_inode", lambda _: None)
    monkeypatch.setattr(podman_commands, "_start_of", lambda _: path.stat().st_ctime - age)
    assert find(podman) == ([] if waits else ["network namespace netns-empty", f"record {record.name}"])


def test_what_an_older_podman_may_use_is_removed_when_it_has_ended(
    podman: FakePodman, namespace: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise `down` would give back an octet in which something is left."""
    path, record = namespace("netns-empty", ""), start_of(A)
    monkeypatch.setattr(leftovers, "_take_down", lambda *_: path.unlink())
    running = {77: ["podman", "start", "web"]}
    monkeypatch.setattr(podman_state, "processes", lambda: running)
    monkeypatch.setattr(namespaces, "_inode", lambda _: None)
    monkeypatch.setattr(podman_commands, "_start_of", lambda _: path.stat().st_ctime - 60)
    monkeypatch.setattr(podman_commands, "wait_for_end", lambda *_: None)
    (remaining,) = leftovers.remove(NETWORK, podman=podman)
    assert "`podman start` (process 77) may be about to use it" in remaining
    assert path.exists()
    assert record.exists()
    monkeypatch.setattr(podman_commands, "wait_for_end", lambda *_: running.clear())
    assert leftovers.remove(NETWORK, podman=podman) == []
    assert not path.exists()
    assert not record.exists()


def test_an_end_is_waited_for() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        podman_commands.wait_for_end([process.pid], 0)
        assert process.poll() is None
        threading.Timer(0.2, process.kill).start()
        podman_commands.wait_for_end([process.pid], 60)
        assert process.wait(60) == -9
    podman_commands.wait_for_end([process.pid], 60)  # it is gone


def test_the_start_of_a_process_is_known_to_the_second() -> None:
    before = time.time()
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            assert (
                before - podman_commands.MARGIN_S
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
    engine = FakePodman(backend="netavark", networks=["gpuprov-7"])
    namespace("netns-left", "10.77.7.4")
    namespace("netns-empty", "")
    start_of(A)
    start_of(B, "10.77.7.5", "gpuprov-demo-box-1.7")
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


def test_monitors_storage_and_volumes_by_their_names(podman: FakePodman, monkeypatch: pytest.MonkeyPatch) -> None:
    podman.has(A, NODE, key="")
    podman.has(B, "gpuprov-demo-box-1.7", "storage")
    podman.volumes.extend([NODE, "gpuprov-demo-box-1.7"])
    known, lost, other = (
        ["/usr/bin/conmon", "--api-version", "1", "-c", id_, "-n", name, "--exit-command-arg", "-n"]
        for id_, name in ((A, NODE), (C, NODE), (D, "web"))
    )
    monkeypatch.setattr(podman_state, "processes", lambda: {10: known, 11: lost, 12: other})
    assert find(podman) == [
        f"monitor {NODE} (process 11)", "storage of container gpuprov-demo-box-1.7", "volume gpuprov-demo-box-1.7",
    ]  # fmt: skip


def test_what_only_the_runtime_knows_by_its_annotation(
    podman: FakePodman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = {A: {"gpuprov.octet": "7"}, B: {"gpuprov.octet": "17"}, C: None, D: {"gpuprov.octet": "7"}}
    for id_, own in states.items():
        (leftovers.RUN / "runc" / id_).mkdir(parents=True)
        (tmp_path / id_).write_text(json.dumps({"id": id_, "status": "created", "annotations": own}))
    runtime = tmp_path / "runc"
    runtime.write_text(f'#!/bin/sh\n[ "$1" = state ] && cat {tmp_path}/$2 || echo "$@" >>{tmp_path}/calls\n')
    runtime.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
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
    record.write_text("address 10.77.7.4\n")

    def refuse(*_: object) -> None:
        raise ProviderError("CNI plugin bridge failed: the device is busy")

    monkeypatch.setattr(backends.Cni, "tear_down", refuse)
    remaining = leftovers.remove(NETWORK, podman=podman)
    assert remaining == ["network namespace netns-left: CNI plugin bridge failed: the device is busy"]
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
    made = calls(tmp_path)
    assert [call["name"] for call in made] == ["firewall", "portmap", "bridge"]
    assert all(
        call["environment"] == {
            "CNI_COMMAND": "DEL", "CNI_CONTAINERID": A, "CNI_NETNS": "/run/netns/netns-left", "CNI_IFNAME": "eth0",
            "CNI_PATH": str(tmp_path),
        }
        for call in made
    )  # fmt: skip
    assert all(call["document"]["name"] == "gpuprov-7" for call in made)
    port = {"hostPort": 22, "containerPort": 22, "protocol": "tcp", "hostIP": "127.77.7.4"}
    assert made[1]["document"]["runtimeConfig"]["portMappings"] == [port]
    assert made[2]["document"]["ipam"] == {"type": "host-local", "ranges": [[{"subnet": "10.77.7.0/24"}]]}
    assert not result.exists() and not address.exists()


def test_masquerading_goes_with_its_network_also_where_no_rule_leads_to_its_chain(
    podman: FakePodman, tmp_path: Path
) -> None:
    """`iptables-save -t nat` after a kill: `bridge` had made the chain, and not yet the rule in POSTROUTING. Chains of
    other networks, and CNI's own, stay."""
    left, linked, other = "CNI-3932fc78bf1efdf02c9a2793", "CNI-4a2fb16d0cbe5a7d2f0d9b11", "CNI-77aa0b7cbe0e0d2ff0d9b113"
    saved = tmp_path / "saved"
    saved.write_text(
        "*nat\n"
        + "".join(f":{chain} - [0:0]\n" for chain in ("POSTROUTING", "CNI-HOSTPORT-MASQ", left, linked, other))
        + "".join(
            f'-A {chain} ! -d 224.0.0.0/4 -m comment --comment "name: \\"{network}\\" id: \\"{A}\\"" -j {target}\n'
            for chain, network, target in [
                (left, NETWORK.name, "MASQUERADE"),
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
    assert changes == ["-D POSTROUTING", f"-F {left}", f"-F {linked}", f"-X {left}", f"-X {linked}"]


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
    engine = FakePodman(backend="netavark", version=version, networks=["gpuprov-7"])
    leftovers._note_lease(NETWORK, "10.77.7.9")
    namespace("netns-left", "10.77.7.4")
    (leftover,) = leftovers.find(NETWORK, podman=engine)
    assert leftover.lease == "10.77.7.4"
    leftovers._note_lease(NETWORK, leftover.lease)
    assert leftovers.leased(NETWORK) == {4, 9}
    leftovers.remove_network(NETWORK, podman=engine)
    assert ("network", "rm", "gpuprov-7") in engine.calls
    assert leftovers.leased(NETWORK) == remaining


def test_layers_without_a_container_on_the_sandboxs_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {
        "layers": [{"id": "base"}, {"id": "left", "parent": "base", "created": "2026-11-26T10:51:34.123456789Z"},
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
    created = datetime(2026, 11, 26, 10, 51, 34, tzinfo=UTC).timestamp()
    monkeypatch.setattr(podman_commands, "_start_of", {1: created - 60, 2: created + 60}.get)
    monkeypatch.setattr(podman_commands, "wait_for_end", lambda *_: None)
    with pytest.raises(ProviderError, match=r"`podman create` \(process 1\) may be about to use it"):
        layers.remove_unused()  # process 1 is older than the layer
    assert not (tmp_path / "deleted").exists()
    monkeypatch.setattr(podman_commands, "wait_for_end", lambda *_: at_work.clear())
    layers.remove_unused()
    assert (tmp_path / "deleted").read_text() == "left\n"
    at_work[2] = ["podman", "create", "--name", "younger"]
    layers.remove_unused()
    assert (tmp_path / "deleted").read_text() == "left\nleft\n"


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
