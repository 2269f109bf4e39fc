"""recipe.yaml: what is in it, and what is said of one with mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError, InputError
from provisioner.workloads import recipe


def write(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "recipe.yaml").write_text(text)
    return folder


def test_a_recipe_of_ones_own(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "mine",
        "description: mine\ncommand: [torchrun, train.py]\nfolder: ../src\nneeds: {torch: '>=2.6', nodes: 2}\n"
        "environment: {A: b}\n",
    )
    (tmp_path / "src").mkdir()
    known = recipe.find(str(folder))
    assert (known.name, known.folder, known.command) == ("mine", tmp_path / "src", ("torchrun", "train.py"))
    assert (known.needs.torch, known.needs.nodes, known.environment) == (">=2.6", 2, (("A", "b"),))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("description: x\ncommand: []\n", "recipe.yaml:2:10"),
        ("description: x\ncommand: [torchrun]\nneeds: {torch: new}\n", "a range of versions"),
        ("description: x\ncommand: [torchrun]\nneeds: {memory: 3}\n", "memory"),
        ("description: x\ncommand: [torchrun]\nfolder: nowhere\n", "is not a folder"),
        ("description: x\ncommand: [torchrun]\nenvironment: {'A B': c}\n", "recipe.yaml:3"),
        ("command: [torchrun]\n", "description"),
        ("description: [\n", "recipe.yaml:"),
    ],
)
def test_a_mistake_is_said_with_its_position(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(InputError) as caught:
        recipe.find(str(write(tmp_path / "mine", text)))
    assert problem in str(caught.value)


def test_a_name_that_no_recipe_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(GpuprovError, match="there is no recipe dpd") as caught:
        recipe.find("dpd")
    assert "ddp" in caught.value.hint
    with pytest.raises(GpuprovError, match=r"there is no recipe\.yaml in \./x"):
        recipe.find("./x")


def test_every_shipped_recipe_loads() -> None:
    names = recipe.shipped()
    assert {"ddp", "fsdp2"} <= {*names}
    for name in names:
        known = recipe.find(name)
        assert known.description and (known.folder / known.command[1]).is_file()
