"""A site with a jump host: ssh comes from there, so that access.allow has to hold its address."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.lifecycle import preflight
from provisioner.lifecycle.session import Cluster, open_cluster

FILE = """\
name: vision
sites:
  here: {provider: aws, region: us-east-1, jump: JUMP}
groups:
  train: {site: here, machine: p4d.24xlarge, count: 1}
access: {allow: [ALLOW]}
"""
KNOWN = {"bastion.example.com": "198.51.100.7"}


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolved(host: str, *_: object) -> list[Any]:
        address = KNOWN.get(host, host)
        if not address[0].isdigit():
            raise socket.gaierror(-2, "Name or service not known")
        return [(2, 1, 6, "", (address, 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


def opened(folder: Path, jump: str, allow: str, *, sandbox: bool = False, hosts: object = None) -> Cluster:
    (folder / "cluster.yaml").write_text(FILE.replace("JUMP", jump).replace("ALLOW", allow))
    cluster = open_cluster(folder / "cluster.yaml", sandbox=sandbox)
    cluster.__dict__["providers"] = SimpleNamespace(at=lambda _: SimpleNamespace(hosts=hosts))
    return cluster


@pytest.mark.parametrize(
    ("jump", "allow", "warned"),
    [
        ("me@bastion.example.com", "203.0.113.0/24", True),
        ("me@bastion.example.com:2222", "198.51.100.0/24", False),
        ("me@bastion.example.com", "203.0.113.0/24, 10.0.0.9/32", False),
        ("me@nowhere.example.com", "203.0.113.0/24", True),
        ("203.0.113.9", "203.0.113.0/24", False),
        ("bastion.example.com", "", True),
    ],
)
def test_the_jump_host_has_to_be_let_in(tmp_path: Path, jump: str, allow: str, warned: bool) -> None:
    findings = preflight._jump_host(opened(tmp_path, jump, allow), "here")
    assert [finding.status for finding in findings] == (["warning"] if warned else [])
    assert all("access.allow" in finding.message and "jump host" in finding.action for finding in findings)


def test_the_sandbox_and_machines_of_ones_own_are_not_asked_for_it(tmp_path: Path) -> None:
    jump, allow = "me@bastion.example.com", "203.0.113.0/24"
    assert preflight._jump_host(opened(tmp_path, jump, allow, sandbox=True), "here") == []
    assert preflight._jump_host(opened(tmp_path, jump, allow, hosts=object()), "here") == []
