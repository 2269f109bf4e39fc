"""gc of sandboxes: containers whose run directory is gone are removed by the name of their cluster, others never."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

from provisioner.cli.main import run
from provisioner.common.errors import ProviderError
from provisioner.machines.providers.sandbox import images, orphans
from provisioner.sandbox import containers, image, leftovers, network
from provisioner.sandbox.containers import Container
from provisioner.sandbox.leftovers import Leftover
from provisioner.spec import schema


class Podman:
    """The containers of this machine. `stuck`: one that can't be removed."""

    def __init__(self, alive: Path, missing: Path, released: list[Path]) -> None:
        self.released, self.stuck, self.missing = released, "", missing
        self.owners = {7: str(missing), 9: str(alive)}
        self.images: list[dict[str, Any]] = []
        self.leftovers: dict[int, list[Leftover]] = {}
        self.there = [
            self.container("gpuprov-lost-train-0", "lost", "train-0", missing),
            self.container("gpuprov-lost.mirror", "lost", "", missing),
            self.container("gpuprov-here-train-0", "here", "train-0", alive),
        ]

    @staticmethod
    def container(name: str, cluster: str, node: str, workspace: Path) -> Container:
        return Container(name, name, cluster, node, str(workspace), "node" if node else "mirror", 7, "running")

    def golden(self, recipe: str, folder: Path) -> None:
        """A golden image, as `podman images` lists it."""
        workspace = folder / ".gpuprov" / f"{recipe}.image.sandbox" / "builds" / "b" / "sites" / "lab"
        labels = {"gpuprov-build": "b", "gpuprov-image": recipe, "gpuprov.workspace": str(workspace)}
        self.images.append({"Names": [f"localhost/gpuprov-image:{recipe}-b"], "Labels": labels})

    def run(self, command: str, *arguments: str) -> str:
        if command == "images":
            nodes = any("gpuprov-sandbox" in argument for argument in arguments)
            return json.dumps([row for row in self.images if ("gpuprov-sandbox" in str(row["Names"])) is nodes])
        if self.stuck in arguments:
            raise ProviderError("podman rmi: image is in use by a container")
        self.images = [image for image in self.images if image["Names"] != [*arguments]]
        return ""

    def release(self, workspace: Path) -> list[str]:
        self.released.append(workspace)
        return [line for octet, owner in self.owners.items() if owner == str(workspace) for line in self.clear(octet)]

    def clear(self, octet: int) -> list[str]:
        self.leftovers.pop(octet, None)
        return []

    def remove(self, *names: str) -> None:
        if self.stuck in names:
            raise ProviderError("podman rm: the device is busy")
        self.there = [container for container in self.there if container.name not in names]


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Podman:
    alive = tmp_path / ".gpuprov" / "here.sandbox" / "sites" / "lab"
    alive.mkdir(parents=True)
    released: list[Path] = []
    created = Podman(alive, tmp_path / "gone" / ".gpuprov" / "lost.sandbox" / "sites" / "lab", released)
    monkeypatch.setattr(containers, "list_containers", lambda: list(created.there))
    monkeypatch.setattr(containers, "remove", created.remove)
    monkeypatch.setattr(network, "release_octet", created.release)
    monkeypatch.setattr(network, "clear_octet", created.clear)
    monkeypatch.setattr(network, "owners", lambda: dict(created.owners))
    monkeypatch.setattr(leftovers, "octets", lambda: {*created.leftovers})
    monkeypatch.setattr(network, "list_leftovers", lambda octet, *, in_use: created.leftovers.get(octet, []))
    monkeypatch.setattr(images, "find_podman", lambda: SimpleNamespace(run=created.run))
    monkeypatch.setattr(orphans, "find_podman", lambda: SimpleNamespace(run=created.run))
    monkeypatch.chdir(tmp_path)
    return created


def test_listed_with_who_knows_them(podman: Podman, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gc", "--sandbox", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema.schema("gc"))
    assert [(c["cluster"], c["site"], bool(c["alive"]), len(c["things"])) for c in document["clusters"]] == [
        ("here", "lab", True, 1), ("lost", "lab", False, 2),
    ]  # fmt: skip
    assert len(podman.there) == 3
    assert run(["gc", "--sandbox"]) == 0
    assert "cluster lost, site lab: 2 things; nobody on this machine knows it" in capsys.readouterr().out


def test_removed_with_their_addresses_and_the_others_stay(podman: Podman, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gc", "--sandbox", "--cluster", "lost", "--yes"]) == 0
    assert [container.cluster for container in podman.there] == ["here"]
    assert [path.parts[-3] for path in podman.released] == ["lost.sandbox"]
    assert "lost: 2 things removed" in capsys.readouterr().out


def test_one_that_is_alive_is_refused(podman: Podman, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gc", "--sandbox", "--cluster", "here", "--yes"]) == 2
    assert "is alive here" in capsys.readouterr().err
    assert len(podman.there) == 3


def test_what_is_left_is_said_and_keeps_its_address(podman: Podman, capsys: pytest.CaptureFixture[str]) -> None:
    podman.stuck = "gpuprov-lost.mirror"
    assert run(["gc", "--sandbox", "--cluster", "lost", "--yes"]) == 3
    assert "left: container gpuprov-lost.mirror (running): podman rm: the device is busy" in capsys.readouterr().err
    assert podman.released == []


def test_what_podman_does_not_know_is_listed_with_its_cluster_and_goes_with_it(
    podman: Podman, capsys: pytest.CaptureFixture[str]
) -> None:
    podman.leftovers[7] = [Leftover("network namespace", "netns-1", lambda: None)]
    assert run(["gc", "--sandbox"]) == 0
    assert "cluster lost, site lab: 3 things" in (output := capsys.readouterr().out)
    assert "1 network namespace: netns-1" in output
    assert run(["gc", "--sandbox", "--cluster", "lost", "--yes"]) == 0
    assert "lost: 3 things removed" in capsys.readouterr().out
    assert podman.leftovers == {}


def test_what_has_no_run_directory_and_no_container_can_be_named(
    podman: Podman, capsys: pytest.CaptureFixture[str]
) -> None:
    podman.owners[8] = str(podman.missing.parents[3] / "older" / ".gpuprov" / "old.sandbox" / "sites" / "lab")
    podman.leftovers[8] = [Leftover("network", "gpuprov-8", lambda: None)]
    podman.leftovers[6] = [Leftover("address lease", "10.77.6.4", lambda: None)]
    assert run(["gc", "--sandbox", "--cluster", "old", "--yes"]) == 0
    assert "old: 1 things removed" in capsys.readouterr().out
    assert run(["gc", "--sandbox", "--cluster", "unknown", "--yes"]) == 0
    assert podman.leftovers == {}
    assert len(podman.there) == 3


def test_golden_images_whose_recipe_is_gone_are_listed_and_removed(
    podman: Podman, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".gpuprov" / "desk.image.sandbox").mkdir()
    podman.golden("desk", tmp_path)
    podman.golden("lab", tmp_path / "gone")
    assert run(["gc", "--sandbox"]) == 0
    output = capsys.readouterr().out
    assert f"cluster desk.image: 1 things; alive here ({tmp_path}/.gpuprov/desk.image.sandbox)" in output
    assert (
        "cluster lab.image: 1 things; nobody on this machine knows it\n  1 golden image: localhost/gpuprov-image:lab-b"
        in output
    )
    assert run(["gc", "--sandbox", "--cluster", "desk.image", "--yes"]) == 2
    assert "`gpuprov image prune RECIPE --sandbox --all` removes all builds" in capsys.readouterr().err
    podman.stuck = "localhost/gpuprov-image:lab-b"
    assert run(["gc", "--sandbox", "--cluster", "lab.image", "--yes"]) == 3
    assert "left: golden image localhost/gpuprov-image:lab-b: podman rmi: image is in use" in capsys.readouterr().err
    podman.stuck = ""
    assert run(["gc", "--sandbox", "--cluster", "lab.image", "--yes"]) == 0
    assert [image["Names"] for image in podman.images] == [["localhost/gpuprov-image:desk-b"]]
    assert podman.released == []


def test_images_of_nodes_that_nobody_uses_are_listed_and_removed(
    podman: Podman, capsys: pytest.CaptureFixture[str]
) -> None:
    old, used, vendor = (
        "localhost/gpuprov-sandbox:old",
        "localhost/gpuprov-sandbox:used",
        "localhost/gpuprov-sandbox-vendor:a",
    )
    current = [image.node_reference(), image.base_reference()]
    podman.images += [{"Names": [name], "Containers": int(name == used)} for name in (old, used, vendor, *current)]
    assert run(["gc", "--sandbox"]) == 0
    output = capsys.readouterr().out
    assert f"cluster node.images: 2 things; nobody on this machine knows it\n  2 node images: {vendor}, {old}" in output
    assert run(["gc", "--sandbox", "--cluster", "node.images", "--yes"]) == 0
    assert [row["Names"] for row in podman.images] == [[name] for name in (used, *current)]
    assert podman.released == []
