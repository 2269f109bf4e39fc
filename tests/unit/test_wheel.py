"""What is inside the wheel: gpuprov's own data, and nothing that only a developer or a run has."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from provisioner.common.paths import DATA
from tests.support.wheel import ROOT, build, copy_tree

pytestmark = pytest.mark.heavy

LEFT_BEHIND = (
    ".gpuprov/vision/ssh/id_ed25519",
    "provisioner/.gpuprov/vision/ssh/id_ed25519",
    "terraform/sandbox/.terraform/providers/x",
    "terraform/sandbox/terraform.tfstate",
    "terraform/sandbox/examples/complete/terraform.tfstate.backup",
    "terraform/sandbox/.terraform.tfstate.lock.info",
    "ansible/plugins/modules/__pycache__/x.cpython-311.pyc",
    "ansible/.ansible/facts",
    "templates/.cache/x",
)
"""What work leaves in a tree."""


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    tree = copy_tree(tmp_path_factory.mktemp("tree"))
    for name in LEFT_BEHIND:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("left behind")
    return set(zipfile.ZipFile(build(tree, tmp_path_factory.mktemp("dist"))).namelist())


def test_the_data_folders_are_inside_and_whole(names: set[str]) -> None:
    for folder in DATA:
        expected = {
            f"provisioner/_data/{path.relative_to(ROOT)}"
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and not {"__pycache__", ".terraform", ".ansible"} & set(path.parts)
        }
        assert expected, folder
        assert expected <= names, expected - names


def test_the_package_is_whole(names: set[str]) -> None:
    package = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "provisioner").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert package <= names, package - names
    assert "provisioner/catalog/data/machines.yaml" in names


def test_nothing_else_is_inside(names: set[str]) -> None:
    assert {name.split("/")[0].split("-")[0] for name in names} == {"provisioner", "gpuprov"}
    for part in ("tests", "bench", ".gpuprov", ".terraform", "__pycache__", ".ansible", ".cache"):
        assert not [name for name in names if part in Path(name).parts]
    assert not [name for name in names if "tfstate" in name or "id_ed25519" in name or name.endswith(".pyc")]


def test_the_licence_travels(names: set[str]) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
