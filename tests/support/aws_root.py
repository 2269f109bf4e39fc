"""A root module around terraform/aws, and Terraform in it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner.machines.terraform.binary import find
from tests.support.moto_aws import REGION, Cloud

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJuoz4Y3nV3+3mY2YlqHOZzNmU8bUvMpWIOu0aYJvBqV test"
DEADLINE_S = 240


@dataclass
class Root:
    """A root module that calls terraform/aws, in a folder of its own."""

    folder: Path
    cloud: Cloud
    environment: dict[str, str]
    region: str = REGION

    def write(self, groups: dict[str, Any], aws: dict[str, Any], **common: Any) -> None:
        """The root module; every value is taken literally."""
        self.write_calls({"site": {"groups": groups, "aws": aws, **common}})

    def write_calls(self, calls: dict[str, dict[str, Any]]) -> None:
        """A root module that calls ours under several names."""
        shared = {"source": "./module", "name": "test", "ssh_public_key": KEY}
        text = json.dumps(
            {
                "terraform": {"required_version": ">= 1.6"},
                "provider": {"aws": self.cloud.provider(self.region)},
                "module": {name: {**shared, **_literal(call)} for name, call in calls.items()},
                "output": {"nodes": {"value": "${module.site.nodes}"}},
            }
        )
        (self.folder / "main.tf.json").write_text(text, encoding="utf-8")

    def terraform(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run Terraform there."""
        done = subprocess.run(
            [*find().argv, *arguments],
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
        document: dict[str, Any] = json.loads(self.terraform("show", "-json", "plan.bin").stdout)
        return document

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

    def changes(self, *arguments: str) -> dict[str, str]:
        """What a plan would do: address below the module → create, update, replace or delete."""
        done = self.terraform("plan", "-input=false", "-json", *arguments)
        records = [json.loads(line) for line in done.stdout.splitlines()]
        planned = [record["change"] for record in records if record["type"] == "planned_change"]
        return {c["resource"]["addr"].removeprefix("module.site."): c["action"] for c in planned}

    def destroy(self) -> None:
        self.terraform("destroy", "-input=false", "-no-color", "-auto-approve", "-refresh=false", "-parallelism=30")


def _literal(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("${", "$${").replace("%{", "%%{")
    if isinstance(value, dict):
        return {key: _literal(item) for key, item in value.items()}
    return [_literal(item) for item in value] if isinstance(value, list) else value
