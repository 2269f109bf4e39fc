"""The containers of sandbox clusters are found by label and name."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provisioner.sandbox import containers
from provisioner.sandbox.runtime import Podman


@dataclass(frozen=True)
class FakePodman(Podman):
    path: str = "podman"
    runtime: str = "runc"
    rows: list[dict[str, Any]] = field(default_factory=list)

    def run(self, *args: str, stdin: Any = None, deadline: float = 60, check: bool = True) -> str:
        return json.dumps(self.rows) if args[0] == "ps" else ""

    def has(self, name: str, node: str, octet: str = "250", cluster: str = "lab") -> None:
        labels = {
            containers.CLUSTER: cluster, containers.NODE: node, containers.ROLE: "node" if node else "mirror",
            containers.WORKSPACE: "/ws/lab.sandbox", containers.OCTET: octet,
        }  # fmt: skip
        self.rows.append({"Id": "a" * 64, "Names": [name], "Labels": labels, "State": "running"})


def test_a_container_that_has_its_labels_from_an_image_is_somebodys() -> None:
    """`podman commit` of a node keeps its labels; `podman run` of that image makes another container."""
    podman = FakePodman()
    podman.has("my-experiment", "dgx-0", octet="249")
    podman.has("gpuprov-lab-copy.249", "dgx-0")
    podman.has("gpuprov-laboratory.250", "dgx-0")
    assert containers.list_containers(podman=podman) == []
    assert containers.octets_in_use(podman=podman) == frozenset()
    assert containers.sweep(Path("/ws"), podman=podman) == ()
    podman.has("gpuprov-lab-dgx-0.250", "dgx-0")
    podman.has("gpuprov-lab.mirror.250", "")
    podman.has("gpuprov-lab.jump.250", "")
    names = ["gpuprov-lab-dgx-0.250", "gpuprov-lab.jump.250", "gpuprov-lab.mirror.250"]
    assert [container.name for container in containers.list_containers(podman=podman)] == names
    assert containers.octets_in_use(podman=podman) == {250}
