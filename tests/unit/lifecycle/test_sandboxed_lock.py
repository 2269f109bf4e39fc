"""A sandbox without a cluster.lock beside cluster.yaml: the lock in its run directory is what it uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.cli.status import lines
from provisioner.common.events import Event, Events
from provisioner.common.paths import private_dir
from provisioner.lifecycle import locking
from provisioner.lifecycle.session import open_cluster
from provisioner.lifecycle.status import status
from provisioner.machines.providers.sandbox.provider import Mirror
from provisioner.stack import lockfile
from provisioner.stack.models import Lock

FILE = """name: fleet
sites: {{ here: {{ provider: aws, region: us-east-1 }} }}
groups:
  train: {{ machine: p4d.24xlarge, count: {count} }}
stack: {stack}
"""


@pytest.fixture(autouse=True)
def _without_a_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mirror, "pin", lambda _, stacks, __: dict(stacks))


def in_sandbox(folder: Path, stack: str = "{}", count: int = 1) -> tuple[Lock, list[str]]:
    """The lock by which a command works, and what it says of it."""
    file = folder / "cluster.yaml"
    file.write_text(FILE.format(stack=stack, count=count))
    cluster, heard = open_cluster(file, sandbox=True), list[Event]()
    private_dir(cluster.paths.root)
    events = Events()
    events.subscribe(heard.append)
    return locking.current(cluster, events), [event.message for event in heard if event.kind == "warning"]


def versions(lock: Lock) -> dict[str, str]:
    return dict(lockfile.versions(lock)["train"])


def test_what_lock_has_chosen_is_used(tmp_path: Path) -> None:
    newest, _ = in_sandbox(tmp_path)
    pinned, _ = in_sandbox(tmp_path, '{ driver: "595" }')
    assert versions(pinned)["driver"] != versions(newest)["driver"]
    path = open_cluster(tmp_path / "cluster.yaml", sandbox=True).paths.lock_file
    # as `lock --sandbox` writes it for a file that asks for nothing, where that driver was locked before
    lockfile.write(path, pinned.model_copy(update={"request": newest.request}))
    lock, warnings = in_sandbox(tmp_path, count=2)
    assert (lock.groups, warnings) == (pinned.groups, [])


def test_an_edit_moves_what_it_asks_for_and_says_so(tmp_path: Path) -> None:
    first, _ = in_sandbox(tmp_path, '{ driver: "580" }')
    second, warnings = in_sandbox(tmp_path, '{ driver: "595" }')
    moved = {name for name, version in versions(second).items() if versions(first)[name] != version}
    assert moved == {"driver"}
    assert warnings == [f"train: driver {versions(first)['driver']} → {versions(second)['driver']}"]
    third, warnings = in_sandbox(tmp_path, '{ driver: "595" }')
    assert (third, warnings) == (second, [])


def test_the_lock_beside_cluster_yaml_comes_first(tmp_path: Path) -> None:
    newest, _ = in_sandbox(tmp_path)
    pinned, _ = in_sandbox(tmp_path, '{ driver: "595" }')
    lockfile.write(tmp_path / "cluster.lock", pinned.model_copy(update={"request": newest.request}))
    sandboxed_lock = open_cluster(tmp_path / "cluster.yaml", sandbox=True).paths.lock_file
    lockfile.write(sandboxed_lock, newest)
    lock, _ = in_sandbox(tmp_path)
    assert versions(lock)["driver"] == versions(pinned)["driver"]


@pytest.mark.parametrize("is_beside_file", [False, True], ids=["the sandbox's own lock", "the lock beside the file"])
def test_status_says_that_the_lock_is_older_than_the_file(tmp_path: Path, is_beside_file: bool) -> None:
    lock, _ = in_sandbox(tmp_path, '{ driver: "580" }')
    if is_beside_file:
        lockfile.write(tmp_path / "cluster.lock", lock)
    file = tmp_path / "cluster.yaml"
    fits = status(open_cluster(file, sandbox=True), ask=False)
    assert fits.lock_changes == []
    assert not [line for line in lines(fits, file) if "lock" in line]
    file.write_text(FILE.format(stack='{ driver: "595" }', count=1))
    document = status(open_cluster(file, sandbox=True), ask=False)
    assert document.lock_changes == ["stack.driver: 580 when locked, 595 now"]
    command = f"gpuprov lock {file} {'--no-sandbox' if is_beside_file else '--sandbox'}"
    sentence = f"the lock is older than {file} (stack.driver: 580 when locked, 595 now); `{command}` renews it"
    assert sentence in list(lines(document, file))
