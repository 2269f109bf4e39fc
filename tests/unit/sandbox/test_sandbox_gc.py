"""gc of rehearsals: containers whose run directory is gone are removed by the name of their cluster, others never."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from provisioner.cli.main import run
from provisioner.errors import ProviderError
from provisioner.sandbox import containers, network
from provisioner.sandbox.containers import Container
from provisioner.spec import schema


class Podman:
    """The containers of this machine. `stuck`: one that can't be removed."""

    def __init__(self, alive: Path, gone: Path, released: list[Path]) -> None:
        self.released, self.stuck = released, ""
        self.there = [
            self.container("gpuprov-lost-train-0", "lost", "train-0", gone),
            self.container("gpuprov-lost.mirror", "lost", "", gone),
            self.container("gpuprov-here-train-0", "here", "train-0", alive),
        ]

    @staticmethod
    def container(name: str, cluster: str, node: str, workspace: Path) -> Container:
        return Container(name, name, cluster, node, str(workspace), "node" if node else "mirror", 7, "running")

    def remove(self, *names: str) -> None:
        if self.stuck in names:
            raise ProviderError("podman rm: the device is busy")
        self.there = [container for container in self.there if container.name not in names]


@pytest.fixture
def podman(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Podman:
    alive = tmp_path / ".gpuprov" / "here.sandbox" / "sites" / "lab"
    alive.mkdir(parents=True)
    released: list[Path] = []
    made = Podman(alive, tmp_path / "gone" / ".gpuprov" / "lost.sandbox" / "sites" / "lab", released)
    monkeypatch.setattr(containers, "list_containers", lambda: list(made.there))
    monkeypatch.setattr(containers, "remove", made.remove)
    monkeypatch.setattr(network, "release_octet", released.append)
    monkeypatch.chdir(tmp_path)
    return made


def test_listed_with_who_knows_them(podman: Podman, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gc", "--sandbox", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    jsonschema.validate(said, schema.schema("gc"))
    assert [(c["cluster"], c["site"], bool(c["alive"]), len(c["things"])) for c in said["clusters"]] == [
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
