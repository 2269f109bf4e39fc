"""Where `down` looks for hosts: at the addresses that cluster.yaml has for them now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provisioner.common.paths import private_dir, write_whole
from provisioner.lifecycle import machines
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.transport import host_keys, ssh_pins

FILE = """
name: metal
sites:
  lab: {provider: baremetal, user: ubuntu, hosts: {HOSTS}}
groups: {x: {machine: dgx-h100, count: 2, site: lab}}
"""
KEYS = {"10.0.0.1": "ssh-ed25519 A", "10.0.0.2": "ssh-ed25519 B", "10.0.0.9": "ssh-ed25519 B"}


def node(name: str, host: str, address: str) -> Node:
    return Node(
        name=name, group="x", site="lab", machine="dgx-h100", id=host, zone="", address=address,
        private_address=address, port=22, user="ubuntu",
    )  # fmt: skip


NODES = [node("x-0", "a", "10.0.0.1"), node("x-1", "b", "10.0.0.2")]


def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hosts: str, pins: str = "") -> Cluster:
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE.replace("HOSTS", hosts))
    cluster = open_cluster(file, sandbox=False)
    private_dir(cluster.paths.ssh)
    fleet.save(cluster.paths, NODES)
    keys = {fleet_node.name: [fleet_node.id, KEYS[fleet_node.address]] for fleet_node in NODES}
    write_whole(cluster.paths.ssh / "pins.json", pins or json.dumps(keys))
    write_whole(cluster.paths.ssh / "config", "of the last run")
    monkeypatch.setattr(host_keys, "scan", lambda address, _: KEYS.get(address, ""))
    return cluster


def followed(cluster: Cluster) -> list[tuple[str, str, int]]:
    provider = cluster.providers.at("lab")
    machines.follow_hosts(cluster, {"lab": provider})
    return [(fleet_node.id, fleet_node.address, fleet_node.port) for fleet_node in cluster.nodes()]


def test_hosts_that_are_where_they_were_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = opened(tmp_path, monkeypatch, "a: {group: x, address: 10.0.0.1}, b: {group: x, address: 10.0.0.2}")
    assert followed(cluster) == [("a", "10.0.0.1", 22), ("b", "10.0.0.2", 22)]
    assert (cluster.paths.ssh / "config").exists()


def test_a_host_is_looked_for_at_its_new_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = opened(
        tmp_path, monkeypatch, "a: {group: x, address: 10.0.0.1}, b: {group: x, address: 10.0.0.9, port: 2222}"
    )
    assert followed(cluster) == [("a", "10.0.0.1", 22), ("b", "10.0.0.9", 2222)]
    assert not (cluster.paths.ssh / "config").exists(), "it is written again"


def test_a_host_of_another_name_is_told_by_its_pinned_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = opened(tmp_path, monkeypatch, "a: {group: x, address: 10.0.0.1}, c: {group: x, address: 10.0.0.9}")
    assert followed(cluster) == [("a", "10.0.0.1", 22), ("b", "10.0.0.9", 22)]


@pytest.mark.parametrize("jump", ["", ", jump: me@10.0.0.7"])
def test_a_host_that_shows_another_key_or_is_behind_a_jump_host_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: str
) -> None:
    address = "10.0.0.9" if jump else "10.0.0.8"
    hosts = f"a: {{group: x, address: 10.0.0.1}}, c: {{group: x, address: {address}{jump}}}"
    assert followed(opened(tmp_path, monkeypatch, hosts))[1] == ("b", "10.0.0.2", 22)


def test_a_host_key_that_a_person_has_written_down_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = opened(tmp_path, monkeypatch, "a: {group: x, address: 10.0.0.1}, b: {group: x, address: 10.0.0.2}")
    hosts = cluster.providers.at("lab").hosts
    monkeypatch.setattr(type(hosts), "host_key", lambda _, machine: {"b": "ssh-ed25519 C"}.get(machine))
    followed(cluster)
    assert ssh_pins.load_pins(cluster.paths) == {"x-0": ("a", "ssh-ed25519 A"), "x-1": ("b", "ssh-ed25519 C")}
    assert not (cluster.paths.ssh / "config").exists(), "known_hosts is written again with it"


def test_damaged_pins_keep_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = "c: {group: x, address: 10.0.0.2}, a: {group: x, address: 10.0.0.9}"
    cluster = opened(tmp_path, monkeypatch, hosts, pins="{")
    assert followed(cluster) == [("a", "10.0.0.9", 22), ("b", "10.0.0.2", 22)]
