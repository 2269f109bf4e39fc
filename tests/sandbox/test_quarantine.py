"""From verdict to action on four p4d nodes: a bad one is drained and put back, many at once trip the breaker, and a new
machine takes the place of one and of no other."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from provisioner.sandbox import containers, faults
from tests.support.sandbox_cluster import SandboxCluster, failing, wrongs
from tests.support.terminal import answered

pytestmark = [pytest.mark.sandbox, pytest.mark.shares("p4d"), pytest.mark.begins(2)]

HOOKS = """
hooks:
  drain: 'echo "$GPUPROV_STEP $GPUPROV_ACTION $GPUPROV_NODE: $GPUPROV_REASON" >> hooks'
  resume: 'echo "$GPUPROV_STEP $GPUPROV_ACTION $GPUPROV_NODE" >> hooks'
"""


@pytest.fixture(scope="module")
def fleet(p4d: SandboxCluster) -> Iterator[SandboxCluster]:
    """The four nodes with hooks that write down what they are called for; afterwards as they were."""
    text = p4d.file.read_text()
    p4d.file.write_text(text + HOOKS)
    try:
        yield p4d
    finally:
        for name in machines(p4d):
            faults.clear(container(p4d, name))
        p4d.verify()
        p4d.file.write_text(text)


def container(fleet: SandboxCluster, name: str) -> str:
    return containers.find_node(fleet.root, name).name


def machines(fleet: SandboxCluster) -> dict[str, str]:
    """Node → id of its machine."""
    return {node["name"]: node["id"] for node in json.loads((fleet.root / "nodes.json").read_text())}


def hooked(fleet: SandboxCluster) -> list[str]:
    """What the hooks were called for since the last look."""
    log = fleet.file.parent / "hooks"
    lines = log.read_text().splitlines() if log.exists() else []
    log.unlink(missing_ok=True)
    return lines


def status(fleet: SandboxCluster) -> dict[str, dict[str, Any]]:
    document = fleet.run("status", fleet.file, "--offline", "--json").json
    return {node["name"]: node for node in document["nodes"]}


def test_a_bad_node_is_drained_with_the_reason_and_put_back_when_it_is_well(fleet: SandboxCluster) -> None:
    assert fleet.first is not None
    assert fleet.first.status == 0, (fleet.first.stderr, wrongs(fleet.first))
    faults.inject(container(fleet, "train-1"), "gpu-lost")
    bad = fleet.verify()
    assert bad.status == 1
    assert failing(bad.json) == {"train-1": {"gpu.count"}}
    (line,) = hooked(fleet)
    assert line.startswith("drain quarantine train-1: gpu.count: ")
    quarantined = {name: node["quarantine"] for name, node in status(fleet).items() if node["quarantine"]}
    assert list(quarantined) == ["train-1"]
    assert (quarantined["train-1"]["owner"], quarantined["train-1"]["checks"]) == ("gpuprov", ["gpu.count"])
    faults.clear(container(fleet, "train-1"))
    well = fleet.verify()
    assert well.status == 0, wrongs(well)
    assert hooked(fleet) == ["resume release train-1"]
    assert not any(node["quarantine"] for node in status(fleet).values())


def test_many_at_once_trip_the_breaker_and_one_of_them_is_replaced(fleet: SandboxCluster) -> None:
    for name in ("train-0", "train-1", "train-2"):
        faults.inject(container(fleet, name), "gpu-lost")
    bad = fleet.verify("--level", "quick")
    assert bad.status == 1
    assert {key: bad.json["breaker"][key] for key in ("bad", "bound", "check", "shared")} == {
        "bad": ["train-0", "train-1", "train-2"],
        "bound": 1,
        "check": "gpu.count",
        "shared": 3,
    }
    assert "Look for a common cause: gpu.count on 3 of 3" in bad.json["breaker"]["message"]
    assert "the breaker tripped: 3 bad nodes untouched" in bad.stderr
    assert hooked(fleet) == []
    assert not any(node["quarantine"] for node in status(fleet).values())

    previous_machines, keys = machines(fleet), (fleet.root / "known_hosts").read_text().splitlines()
    healthy = fleet.run("replace", fleet.file, "train-3", "--sandbox", "--yes")
    assert healthy.status == 2
    assert "--even-if-healthy" in healthy.stderr
    two = fleet.run("replace", fleet.file, "train-0", "train-2", "--sandbox", "--yes")
    assert two.status == 2
    assert "the limit is 1" in two.stderr
    assert machines(fleet) == previous_machines

    (mirror,) = [name for name in fleet.containers() if ".mirror." in name]
    subprocess.run(["podman", "stop", "--time", "0", mirror], check=True, capture_output=True, timeout=60)
    question = f"Destroy train-2 of {fleet.name} (sandbox) and create a new machine (4 resources)?"
    status_of, screen = answered(fleet, "replace", fleet.file, "train-2", "--sandbox", question=question)
    assert status_of == 0, screen
    assert "4 resources changed, 1 node configured in" in screen, "two for the machine, two for the mirror"
    assert re.findall(r"^(train-\d) +p4d.24xlarge +healthy", screen, re.M) == ["train-2"]
    after = machines(fleet)
    assert {name for name in after if after[name] != previous_machines[name]} == {"train-2"}
    fresh = (fleet.root / "known_hosts").read_text().splitlines()
    assert [line.split(".")[0] for line in fresh if line not in keys] == ["train-2"]
    assert hooked(fleet) == ["drain replace train-2: to be replaced", "resume release train-2"]

    inventory = fleet.inventory()
    assert set(inventory["all"]["children"]["train"]["hosts"]) == set(after), "the others are still in it"

    for name in ("train-0", "train-1"):
        faults.clear(container(fleet, name))
    well = fleet.verify("--level", "quick")
    assert well.status == 0, wrongs(well)
    assert hooked(fleet) == [], "nobody was in quarantine"
