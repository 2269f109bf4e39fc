"""node_stamp: the roles that ran are recorded beside those that ran before."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from provisioner.verify.parsers import Unreadable, stamp
from tests.unit.ansible.modules.test_node_modules import module

A, B = ({"digest": name, "installed": name, "configured": name} for name in "ab")
NEW = {"digest": "new", "installed": "new", "configured": "new"}


@pytest.fixture
def stamp_module() -> ModuleType:
    return module("node_stamp")


def test_all_roles_ran(stamp_module: ModuleType) -> None:
    assert stamp_module.updated({}, {"base": A, "nccl": B}, ["all"], True) == {"base": A, "nccl": B}


def test_the_others_keep_what_they_had(stamp_module: ModuleType) -> None:
    previous = {"base": A, "nccl": B}
    assert stamp_module.updated(previous, {"base": NEW, "nccl": NEW}, ["nccl"], True) == {"base": A, "nccl": NEW}


def test_a_role_that_never_ran_is_not_recorded(stamp_module: ModuleType) -> None:
    assert stamp_module.updated({}, {"base": NEW, "nccl": NEW}, ["nccl"], True) == {"nccl": NEW}


def test_a_role_that_applies_no_more_is_forgotten(stamp_module: ModuleType) -> None:
    assert stamp_module.updated({"efa": A, "nccl": B}, {"nccl": B}, ["nccl"], True) == {"nccl": B}


def test_an_image_is_installed_and_not_configured(stamp_module: ModuleType) -> None:
    assert stamp_module.updated({}, {"nccl": B}, ["all"], False) == {"nccl": B | {"configured": None}}


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"fingerprint": "f", "node": "n"}', '{"roles": 7}'])
def test_a_file_of_another_format_has_no_roles(stamp_module: ModuleType, tmp_path: Path, text: str) -> None:
    file = tmp_path / "node.json"
    file.write_text(text)
    assert stamp_module.recorded(str(file)) == (text, {})
    assert stamp_module.recorded(str(tmp_path / "none")) == ("", {})


@pytest.mark.parametrize(
    "text",
    ["[]", "7", "{}", '{"roles": []}', '{"roles": {"nccl": 7}}', '{"roles": {"nccl": {"installed": "a"}}}',
     '{"roles": {"nccl": {"digest": "a", "configured": 7}}}', '{"roles": {"nccl": {}}'],
)  # fmt: skip
def test_a_stamp_that_cannot_be_read_is_not_taken_for_none(text: str) -> None:
    with pytest.raises(Unreadable):
        stamp.parse(text)


def test_what_it_writes_is_what_the_probe_reads() -> None:
    parsed = stamp.parse(json.dumps({"node": "train-0", "roles": {"nccl": B | {"configured": None}}}))
    assert (parsed.fingerprint, parsed.node) == (None, "train-0")
    assert parsed.roles == {"nccl": stamp.RoleStamp("b", "b", None)}
