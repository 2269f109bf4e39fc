"""Terraform's own state and its lock file lie in a bucket: whoever writes there names no program that is run here."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from provisioner.common.errors import ProviderError
from provisioner.common.events import Events
from provisioner.machines.terraform import binary
from provisioner.machines.terraform.workspace import Workspace

MAIN = 'terraform {\n  backend "local" {\n    path = "terraform.tfstate"\n  }\n}\noutput "nodes" {\n  value = {}\n}\n'
STATE = {
    "version": 4, "terraform_version": "1.6.0", "serial": 1, "lineage": "x", "outputs": {}, "check_results": None,
    "resources": [{
        "mode": "managed", "type": "evil_thing", "name": "a", "provider": 'provider["registry.terraform.io/some/evil"]',
        "instances": [{"schema_version": 0, "attributes": {"id": "1"}, "sensitive_attributes": []}],
    }],
}  # fmt: skip


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry that has the foreign provider; the file that is there once it was run."""
    system = {"x86_64": "linux_amd64", "aarch64": "linux_arm64"}[platform.machine()]
    folder = tmp_path / "mirror/registry.terraform.io/some/evil/1.0.0" / system
    folder.mkdir(parents=True)
    program = folder / "terraform-provider-evil_v1.0.0"
    program.write_text(f"#!/bin/sh\ntouch '{tmp_path}/ran'\n")
    program.chmod(0o755)
    config = tmp_path / "terraform.rc"
    config.write_text(f'provider_installation {{\n  filesystem_mirror {{\n    path = "{tmp_path}/mirror"\n  }}\n}}\n')
    monkeypatch.setenv("TF_CLI_CONFIG_FILE", str(config))
    return tmp_path / "ran"


def test_a_provider_that_the_state_names_is_not_run(ran: Path, tmp_path: Path) -> None:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "main.tf").write_text(MAIN)
    (folder / "terraform.tfstate").write_text(json.dumps(STATE))
    workspace = Workspace(folder, binary.find(), Events())
    for _ in "12":  # also where init was done before
        with pytest.raises(ProviderError, match=r"for the provider registry\.terraform\.io/some/evil") as caught:
            workspace.init()
            workspace.plan()
        assert caught.value.where == str(folder / ".terraform.lock.hcl")
    assert not ran.exists()


@pytest.mark.parametrize(
    "name",
    ["evil.example/hashicorp/aws", "registry.terraform.io/some/aws", "registry.terraform.io/hashicorp/evil", "x"],
)
def test_a_provider_that_the_lock_file_names_is_not_fetched(name: str, tmp_path: Path) -> None:
    source = '    aws = { source = "hashicorp/aws", version = "~> 6.0" }\n'
    (tmp_path / "main.tf").write_text(f"terraform {{\n  required_providers {{\n{source}  }}\n}}\n")
    lock = tmp_path / ".terraform.lock.hcl"
    lock.write_text(f'provider "registry.terraform.io/hashicorp/aws" {{\n}}\n\nprovider "{name}" {{\n}}\n')
    with pytest.raises(ProviderError, match="asks for the provider"):
        Workspace(tmp_path, binary.find(), Events()).init()
    assert not (tmp_path / ".terraform").exists()
