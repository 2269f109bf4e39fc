"""One moto server and one initialised provider for all tests of the AWS module."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provisioner.paths import data
from provisioner.workspace.binary import find
from tests.support import moto_aws, terraform_plugins
from tests.support.moto_aws import Cloud

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJuoz4Y3nV3+3mY2YlqHOZzNmU8bUvMpWIOu0aYJvBqV test"
DEADLINE_S = 240


@dataclass
class Root:
    """A root module that calls terraform/aws, in a folder of its own."""

    folder: Path
    cloud: Cloud
    environment: dict[str, str]

    def write(self, groups: dict[str, Any], aws: dict[str, Any], **common: Any) -> None:
        """The root module; every value is taken literally."""
        call = {"source": "./module", "name": "test", "ssh_public_key": KEY, "groups": groups, "aws": aws, **common}
        text = json.dumps(
            {
                "terraform": {"required_version": ">= 1.6"},
                "provider": {"aws": self.cloud.provider()},
                "module": {"site": {k: v if k == "source" else _literal(v) for k, v in call.items()}},
                "output": {"nodes": {"value": "${module.site.nodes}"}},
            }
        )
        (self.folder / "main.tf.json").write_text(text, encoding="utf-8")

    def terraform(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run Terraform there."""
        done = subprocess.run(
            [*find().argv, *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
        return done

    def plan(self) -> dict[str, Any]:
        """`terraform show -json` of a plan."""
        self.terraform("plan", "-input=false", "-no-color", "-out=plan.bin")
        shown: dict[str, Any] = json.loads(self.terraform("show", "-json", "plan.bin").stdout)
        return shown

    def refusal(self) -> str:
        """What a plan that is refused says, on one line."""
        done = self.terraform("plan", "-input=false", "-no-color", check=False)
        assert done.returncode != 0, done.stdout
        return " ".join(done.stderr.replace("│", " ").split())

    def apply(self) -> dict[str, Any]:
        """Apply, and the nodes that came out of it."""
        self.terraform("apply", "-input=false", "-no-color", "-auto-approve", "-parallelism=30")
        nodes: dict[str, Any] = json.loads(self.terraform("output", "-json", "nodes").stdout)
        return nodes

    def destroy(self) -> None:
        self.terraform("destroy", "-input=false", "-no-color", "-auto-approve", "-parallelism=30")


def _literal(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("${", "$${").replace("%{", "%%{")
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    return [_literal(item) for item in value] if isinstance(value, list) else value


@pytest.fixture(scope="session")
def cloud() -> Iterator[Cloud]:
    with moto_aws.serve() as served:
        yield served


@pytest.fixture(scope="session")
def initialised(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A root module that `terraform init` has seen."""
    folder = tmp_path_factory.mktemp("aws")
    config = terraform_plugins.cli_config(tmp_path_factory.mktemp("rc"))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "TF_"))}
    environment = {
        **kept,
        "TF_CLI_CONFIG_FILE": str(config),
        "CHECKPOINT_DISABLE": "1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    shutil.copytree(
        data("terraform") / "aws", folder / "module", ignore=shutil.ignore_patterns("examples", ".terraform*")
    )
    root = Root(folder, cloud, environment)
    root.write({}, {"groups": {}})
    root.terraform("init", "-input=false", "-no-color")
    return root


@pytest.fixture(scope="session")
def new_root(initialised: Root, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A maker of initialised root modules without a state."""

    def make() -> Root:
        folder = tmp_path_factory.mktemp("root")
        for name in (".terraform", "module"):
            (folder / name).symlink_to(initialised.folder / name)
        shutil.copy(initialised.folder / ".terraform.lock.hcl", folder)
        return Root(folder, initialised.cloud, initialised.environment)

    return make


@pytest.fixture
def root(new_root: Any) -> Root:
    made: Root = new_root()
    return made
