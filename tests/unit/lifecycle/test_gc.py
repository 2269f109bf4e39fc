"""Whose is what a crash left: clusters of one name are told apart by their tag gpuprov-id."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import jsonschema
import pytest

from provisioner.cli import gc as command
from provisioner.cli.main import run
from provisioner.machines.providers.orphans import Found, Thing
from provisioner.spec import schema

ONE, OTHER = "aaaaaaaaaaaa", "bbbbbbbbbbbb"


class Region:
    """A cluster of each id, and one without."""

    def __init__(self) -> None:
        self.resources = [
            Thing("virtual machine", f"/vm/{suffix}", "train", "here", "eastus", identity=identity)
            for suffix, identity in (("a", ONE), ("b", OTHER), ("c", ""))
        ]

    def find(self) -> Found:
        return Found(tuple(self.resources))

    def remove(self, resources: Sequence[Thing], report: Callable[[str], None]) -> list[str]:
        self.resources = [resource for resource in self.resources if resource not in resources]
        return []


@pytest.fixture
def region(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Region:
    test_region = Region()
    monkeypatch.setattr(command, "_orphans", lambda name, region: test_region)
    monkeypatch.chdir(tmp_path)
    return test_region


def gc(*arguments: str) -> int:
    return run(["gc", "--provider", "azure", "--region", "eastus", *arguments])


def test_two_of_one_name_are_never_removed_together(region: Region, capsys: pytest.CaptureFixture[str]) -> None:
    assert gc("--cluster", "train", "--yes") == 2
    assert len(region.resources) == 3
    captured = capsys.readouterr()
    assert f"cluster train, site here, id {ONE}: 1 things" in captured.out
    assert f"--cluster train --id {ONE} or --cluster train --id {OTHER} or --cluster train --id none" in captured.err


@pytest.mark.parametrize(("identity", "removed_id"), [(ONE, "/vm/a"), (OTHER, "/vm/b"), ("none", "/vm/c")])
def test_the_one_that_is_named_is_removed(region: Region, identity: str, removed_id: str) -> None:
    assert gc("--cluster", "train", "--id", identity, "--yes") == 0
    assert [resource.id for resource in region.resources] == [
        id for id in ("/vm/a", "/vm/b", "/vm/c") if id != removed_id
    ]


def test_a_run_directory_of_another_id_keeps_none_but_its_own(
    region: Region, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / ".gpuprov" / "train"
    (root / "sites" / "here").mkdir(parents=True)
    (root / "sites" / "here" / "terraform.tfstate").write_text('{"resources": [{"mode": "managed"}]}')
    assert gc("--cluster", "train", "--id", OTHER, "--yes") == 2, "whose it is nobody knows"
    (root / "id").write_text(ONE + "\n")
    capsys.readouterr()
    assert gc("--cluster", "train", "--id", ONE, "--yes") == 2, "it is alive"
    assert f"where that is not possible, move {root} away" in capsys.readouterr().err
    assert gc("--cluster", "train", "--id", OTHER, "--yes") == 0
    assert [resource.id for resource in region.resources] == ["/vm/a", "/vm/c"]


def test_an_id_that_is_not_there_removes_nothing(region: Region, capsys: pytest.CaptureFixture[str]) -> None:
    assert gc("--cluster", "train", "--id", "cccccccccccc", "--yes") == 2
    assert len(region.resources) == 3
    assert f"--id takes {ONE}, {OTHER}, none" in capsys.readouterr().err
    assert gc("--id", ONE) == 2


def test_the_id_is_in_the_document(region: Region, capsys: pytest.CaptureFixture[str]) -> None:
    assert gc("--json") == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, schema.schema("gc"))
    assert [cluster["identity"] for cluster in document["clusters"]] == ["", ONE, OTHER]


def test_a_name_commands_no_terminal(region: Region, capsys: pytest.CaptureFixture[str]) -> None:
    region.resources = [Thing("VPC", "vpc-1\x1b]0;pwn\x07", "ev\x1b[2Jil", "s", "eastus", name="\x1b[2J")]
    assert gc() == 0
    output = capsys.readouterr().out
    assert "\x1b" not in output and "\x07" not in output and "vpc-1" in output
