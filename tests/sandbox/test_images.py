"""Golden images in the sandbox: nights, channels, and a fleet that starts from one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.sandbox_cluster import SandboxCluster, wrongs

pytestmark = [pytest.mark.sandbox, pytest.mark.begins(5)]

GOOD, BAD = "580.173.02", "595.91.07"
RECIPE = """\
name: desk
sites: {{ lab: {{ provider: aws, region: us-east-1 }} }}
groups: {{ l4: {{ machine: g6.xlarge }} }}
stack: {{ driver: "{driver}" }}
image: {{ boots: {boots}, keep: 1 }}
"""
FLEET = """\
name: {name}
sites: {{ lab: {{ provider: aws, region: us-east-1 }} }}
groups: {{ train: {{ machine: g6.xlarge, image: desk@stable }} }}
"""


@dataclass
class Nights:
    """The recipe, and the commands on it."""

    shell: SandboxCluster
    recipe: Path
    first: dict[str, Any] = field(default_factory=dict)

    def image(self, command: str, *arguments: object) -> Any:
        return self.shell.run("image", command, self.recipe, *arguments, "--sandbox", "--json")

    def write(self, driver: str, boots: int) -> None:
        self.recipe.write_text(RECIPE.format(driver=driver, boots=boots), encoding="utf-8")


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nights]:
    """After the first night."""
    folder = tmp_path_factory.mktemp("nights")
    (folder / "images").mkdir()
    test_nights = Nights(SandboxCluster(folder / "cluster.yaml", "t-nights"), folder / "images" / "desk.yaml")
    test_nights.write("580", 2)
    done = test_nights.image("nightly")
    assert done.status == 0, done.stderr
    test_nights.first = done.json["nights"][0]
    yield test_nights
    for name in images(test_nights.first["build"]):
        subprocess.run(["podman", "rmi", "--force", name], capture_output=True, check=False, timeout=60)


def images(part: str) -> list[str]:
    """Container images of this machine that a build of that name has left."""
    form = ["podman", "images", "--format", "{{.Repository}}:{{.Tag}}", "--filter", "reference=localhost/gpuprov-image"]
    listing = subprocess.run(form, capture_output=True, text=True, check=True, timeout=60).stdout
    return [line for line in listing.split() if f"-desk-l4-{part}" in line]


def machines() -> list[str]:
    """Containers of builders and of machines that prove an image."""
    form = ["podman", "ps", "--all", "--format", "{{.Names}}", "--filter", "name=^gpuprov-desk-"]
    return subprocess.run(form, capture_output=True, text=True, check=True, timeout=60).stdout.split()


def test_three_nights_new_unchanged_and_a_bad_driver(nights: Nights) -> None:
    first = nights.first["build"]
    assert (nights.first["outcome"], nights.first["changed"]) == ("built", ["it was never built"])
    manifest = nights.image("show", "nightly").json
    target = manifest["targets"]["l4"]
    assert (target["stack"]["driver"], len(target["proofs"]), target["builder"]) == (GOOD, 2, "sandbox.builder")
    assert {"host keys of ssh: /etc/ssh/ssh_host_*", "machine-id: /etc/machine-id"} <= set(target["residue"])
    assert all(proof["unknown"] == 0 and proof["passed"] > 100 for proof in target["proofs"])
    for channel in ("candidate", "stable"):
        assert nights.image("promote", channel).json["build"] == first

    second = nights.image("nightly")
    assert (second.status, second.json["nights"][0]["outcome"]) == (0, "unchanged")

    nights.write("595", 1)
    assert nights.shell.run("sandbox", "fault", nights.recipe, "lab", f"bad-driver-release:{BAD}").status == 0
    third = nights.image("nightly")
    night = third.json["nights"][0]
    assert (third.status, night["outcome"], night["step"]) == (1, "failed", "proven")
    assert "gpu.memory" in night["message"]
    listed = nights.image("list").json
    assert listed["channels"] == dict.fromkeys(("nightly", "candidate", "stable"), first)
    (failed,) = listed["failed"]
    evidence = Path(failed["evidence"])
    assert "gpu.memory" in (evidence / "proofs" / "l4-boot-1.json").read_text()
    assert list(evidence.glob("evidence/l4/boot/*/events.jsonl"))
    assert machines() == []
    assert images(night["build"]) == []
    page = (nights.recipe.parent / ".gpuprov" / "desk.image.sandbox" / "book" / "nights.html").read_text()
    assert [text in page for text in ("built", "unchanged", "failed", "Simulated hardware")] == [True] * 4


def test_a_fleet_starts_from_it_and_only_configures(nights: Nights) -> None:
    fleet = SandboxCluster(nights.recipe.parents[1] / "cluster.yaml", "t-desk-fleet")
    fleet.file.write_text(FLEET.format(name=fleet.name), encoding="utf-8")
    if "stable" not in nights.image("list").json["channels"]:  # this test alone
        for channel in ("candidate", "stable"):
            nights.image("promote", channel)
    try:
        done = fleet.up()
        # four processors: this computer's own load may be more
        assert (done.status, wrongs(done)) == (0, [])
        assert "running the roles (configure only) on 1 node" in done_events(fleet)
        output = fleet.run("exec", fleet.file, "--sandbox", "cat /etc/gpuprov/image.json").stdout
        identity = json.loads(output[output.index("{") : output.rindex("}") + 1])
        assert (identity["image"], identity["build"]) == ("desk", nights.first["build"])
        second = fleet.up()
        assert second.json["changes"] == {"resources": 0, "configured": 0}
        pruned = nights.image("prune", "--yes").json
        assert pruned["removed"] == []
    finally:
        assert fleet.down().status == 0


def done_events(fleet: SandboxCluster) -> str:
    newest = max(fleet.root.glob("runs/*/events.jsonl"))
    return newest.read_text(encoding="utf-8")
