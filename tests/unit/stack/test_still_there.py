"""Preflight: whether what a lock names can still be had, against vendors on loopback."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from provisioner.common.preflight import Finding
from provisioner.lifecycle import preflight
from provisioner.sandbox.keys import Keys
from provisioner.stack import still_there
from provisioner.stack.models import Stack
from provisioner.stack.still_there import look
from tests.support.vendors import Reply, Vendors, deb, toolkit_debs
from tests.unit.stack.test_archives import EFA, locked, p4d, world

__all__ = ["p4d", "world"]


@pytest.fixture
def stacks(p4d: Path, world: Vendors) -> dict[str, Stack]:
    locked_stacks = dict(locked(p4d).groups)
    world.seen.clear()
    return locked_stacks


def findings_of(stacks: dict[str, Stack], file: Path) -> list[tuple[str, str]]:
    return [(f.status, f"{f.message} | {f.action}") for f in look(stacks, str(file))]


def test_what_is_there_needs_no_word(stacks: dict[str, Stack], p4d: Path, world: Vendors) -> None:
    assert findings_of(stacks, p4d) == []
    # no list and no archive is read again
    assert world.asked("Packages") == []
    assert [(method, path) for method, path, _ in world.seen if path.endswith(".tar.gz")] == [("HEAD", f"/{EFA}")]


def test_a_version_that_the_vendor_took_away_blocks(
    stacks: dict[str, Stack], p4d: Path, world: Vendors, keys: Keys
) -> None:
    path = "nvidia.github.io/libnvidia-container/stable/deb/amd64"
    shutil.rmtree(world.root / path)
    less = [d for d in toolkit_debs() if (d.name, d.version) != ("libnvidia-container1", "1.20.1-1")]
    world.publish("newer", [*less, deb("libnvidia-container1", "1.21.0-1")], keys)
    shutil.move(world.root / "newer", world.root / path)
    ((status, message),) = findings_of(stacks, p4d)
    assert status == "blocks"
    assert "repository container-toolkit no longer has libnvidia-container1 1.20.1-1" in message
    assert f"`gpuprov lock {p4d} --upgrade container_toolkit`" in message


@pytest.mark.parametrize(
    ("reply", "status", "part"),
    [
        (Reply(404), "blocks", "is gone (HTTP 404)"),
        (Reply(200, {"Content-Length": "7"}), "blocks", "has 7 bytes"),
        (Reply(403), "unknown", "is not known"),
    ],
)
def test_an_archive(reply: Reply, status: str, part: str, stacks: dict[str, Stack], p4d: Path, world: Vendors) -> None:
    world.replies[f"/{EFA}"] += [reply]
    ((actual_status, message),) = findings_of(stacks, p4d)
    assert actual_status == status and part in message


def test_a_vendor_that_cannot_be_asked_is_unknown(
    stacks: dict[str, Stack], p4d: Path, world: Vendors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(still_there, "PAUSE", 0.001)
    world.replies["/nvidia.github.io/libnvidia-container/gpgkey"] += [Reply(503)] * 20
    ((status, message),) = findings_of(stacks, p4d)
    assert status == "unknown" and "HTTP 503" in message and "is not known" in message


def test_only_groups_that_grow_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    findings = [Finding("blocks", "packages", "gone")]
    monkeypatch.setattr(still_there, "look", lambda stacks, file: (calls.append((stacks, file)), findings)[1])
    groups = [SimpleNamespace(name=n, stack=n.upper(), spec=SimpleNamespace(count=2)) for n in ("a", "b")]
    plan: Any = SimpleNamespace(simulated=False, groups=groups)
    cluster: Any = SimpleNamespace(file=Path("c.yaml"), nodes=lambda: [SimpleNamespace(group="a")] * 2)
    assert preflight._packages(cluster, plan) == findings
    assert calls == [({"b": "B"}, "c.yaml")]
    plan.simulated = True
    assert preflight._packages(cluster, plan) == []
