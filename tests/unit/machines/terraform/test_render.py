"""The root module of a site: what Terraform sees is what cluster.yaml says, whatever it says."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from provisioner import spec
from provisioner.common import paths
from provisioner.common.errors import InputError
from provisioner.machines.providers.base import Module, ProviderBlock
from provisioner.machines.terraform.binary import find
from provisioner.machines.terraform.render import main_tf, outputs_to_nodes, render
from provisioner.plan.models import Plan
from tests.support import plans

HOSTILE = (
    '${file("/etc/passwd")}',
    '"}',
    '"}\nresource "terraform_data" "x" {}',
    "a\nb",
    "%{ if true }x%{ endif }",
    "%{",
    "$${x}",
    "\\",
    "{{ 7 * 7 }}",
    "{% raw %}",
    "é\U0001f600",
)
ECHO = "".join(
    f'variable "{name}" {{\n  type = any\n}}\n'
    for name in ("name", "groups", "ssh_public_key", "user_data", "tags", "echo")
) + (
    'output "nodes" {\n  value = { groups = var.groups, key = var.ssh_public_key, echo = var.echo,'
    " tags = var.tags }\n}\n"
)
"""A module of the common contract that makes nothing and tells what it was given."""


@dataclass
class Echo(Module):
    """A module that tells what it was given."""

    given: dict[str, Any]
    folder = "echo"

    def inputs(self, plan: Plan) -> dict[str, Any]:
        return self.given

    def address(self, node: str) -> str:
        raise NotImplementedError


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A terraform/ folder with the module echo, in the place of gpuprov's own."""
    folder = tmp_path / "terraform"
    (folder / "echo" / "examples" / "complete").mkdir(parents=True)
    (folder / "echo" / "tests").mkdir()
    (folder / "echo" / "main.tf").write_text(ECHO)
    (folder / "echo" / "files").mkdir()
    (folder / "echo" / "files" / "boot.sh").write_text("#!/bin/sh\n")
    (folder / "echo" / "examples" / "complete" / "main.tf").write_text("")
    (folder / "echo" / "tests" / "echo.tftest.hcl").write_text("")
    real = paths.data
    monkeypatch.setattr(paths, "data", lambda name: folder if name == "terraform" else real(name))
    return folder


def terraform(folder: Path, *arguments: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "TF_CLI_CONFIG_FILE"}
    argv = [*find().argv, *arguments]
    done = subprocess.run(argv, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def document(text: str) -> dict[str, Any]:
    """A cluster.yaml with the text in every key that a person may fill freely."""
    return {
        "name": "hostile",
        "sites": {"here": {"provider": "aws", "region": "us-east-1"}},
        "groups": {
            "train": {
                "machine": "p4d.24xlarge",
                "capacity": {"kind": "reservation", "id": text},
            }
        },
        "access": {"ssh_key": text},
        "verify": {"checks": [text]},
    }


@pytest.mark.parametrize("field", ["region", "zone", "user", "machine", "scratch", "container", "group", "name"])
def test_text_that_has_a_shape_is_refused(field: str, tmp_path: Path) -> None:
    for number, text in enumerate(HOSTILE):
        wrong = document("plain")
        if field == "region":
            wrong["sites"]["here"]["region"] = text
        elif field == "zone":
            wrong["sites"]["here"]["zones"] = [text]
        elif field == "user":
            wrong["access"]["user"] = text
        elif field == "machine":
            wrong["groups"]["train"]["machine"] = text
        elif field == "scratch":
            wrong["groups"]["train"]["storage"] = {"scratch": text}
        elif field == "container":
            wrong["stack"] = {"containers": [text]}
        elif field == "group":
            wrong["groups"][text] = wrong["groups"].pop("train")
        else:
            wrong["name"] = text
        file = tmp_path / f"{number}.yaml"
        file.write_text(json.dumps(wrong, ensure_ascii=False))
        with pytest.raises(InputError):
            spec.load(file)


def test_free_text_arrives_in_terraform_as_it_is_or_is_refused(modules: Path, tmp_path: Path) -> None:
    arrived = 0
    for number, text in enumerate(HOSTILE):
        file = tmp_path / f"{number}.yaml"
        file.write_text(json.dumps(document(text), ensure_ascii=False))
        (tmp_path / text).mkdir(parents=True)  # for own checks
        try:
            loaded = spec.load(file)
        except InputError as error:
            assert not text.isprintable(), str(error)
            continue
        plan, workspace = plans.plan(loaded), tmp_path / f"site-{number}"
        group = loaded.groups["train"]
        inputs = {"id": group.capacity.id, "key": loaded.access.ssh_key, "checks": loaded.verify.checks, text: text}
        render(
            plan, "here", Echo(inputs), workspace, ssh_public_key=f"ssh-ed25519 AAAA {text}", identity="0123456789ab"
        )  # type: ignore[arg-type]
        terraform(workspace, "init", "-input=false")
        terraform(workspace, "apply", "-auto-approve", "-input=false")
        nodes = outputs_to_nodes(json.loads(terraform(workspace, "output", "-json")))
        assert nodes["groups"]["train"]["capacity"]["id"] == text
        assert nodes["echo"] == {"id": text, "key": text, "checks": [text], text: text}
        assert nodes["key"] == f"ssh-ed25519 AAAA {text}"
        arrived += 1
    assert arrived >= len(HOSTILE) - 2


def test_a_group_is_one_line_however_many_nodes_it_has() -> None:
    def length(count: int) -> int:
        plan = plans.plan(plans.cluster_spec("p4d.24xlarge", count=count))
        return len(main_tf(plan, "here", Echo({}), ssh_public_key="k", identity="0123456789ab"))

    assert length(9_999) - length(1) == len("9999") - len("1")


def test_only_the_groups_of_the_site_are_rendered(tmp_path: Path) -> None:
    loaded = spec.load(_written(tmp_path, TWO_SITES))
    text = main_tf(plans.plan(loaded), "b", Echo({}), ssh_public_key="k", identity="0123456789ab")
    assert '"second" = ' in text
    assert '"first" = ' not in text
    assert '"gpuprov-site" = "b"' in text


TWO_SITES = {
    "name": "two",
    "sites": {"a": {"provider": "aws", "region": "us-east-1"}, "b": {"provider": "aws", "region": "us-west-2"}},
    "groups": {
        "first": {"machine": "p4d.24xlarge", "site": "a"},
        "second": {"machine": "p4d.24xlarge", "site": "b"},
    },
}


def _written(folder: Path, content: dict[str, Any]) -> Path:
    file = folder / "cluster.yaml"
    file.write_text(json.dumps(content))
    return file


def test_the_module_is_copied_without_its_examples_and_tests(modules: Path, tmp_path: Path) -> None:
    plan, workspace = plans.plan(plans.cluster_spec("p4d.24xlarge")), tmp_path / "site"

    def rerender() -> bool:
        return render(plan, "here", Echo({}), workspace, ssh_public_key="k", identity="0123456789ab")  # type: ignore[arg-type]

    assert rerender()
    copied = {str(path.relative_to(workspace / "module")) for path in workspace.rglob("module/**/*") if path.is_file()}
    assert copied == {"main.tf", "files/boot.sh"}
    assert os.access(workspace / "module" / "files" / "boot.sh", os.X_OK)
    assert not rerender()
    (modules / "echo" / "main.tf").write_text(ECHO + "# newer\n")
    assert rerender()
    assert (workspace / "module" / "main.tf").read_text().endswith("# newer\n")
    (modules / "echo" / "files" / "boot.sh").unlink()
    assert rerender()
    assert not (workspace / "module" / "files" / "boot.sh").exists()


def test_outputs_without_nodes_are_no_nodes() -> None:
    assert outputs_to_nodes({}) == {}
    assert outputs_to_nodes({"nodes": {"value": None}}) == {}


def test_a_providers_configuration_has_blocks(tmp_path: Path) -> None:
    class Blocks(Echo):
        def blocks(self, plan: Plan) -> dict[str, ProviderBlock]:
            block = ProviderBlock("x/y", "1.0", {"environment": "public"}, {"features": {"careful": True}, "empty": {}})
            return {"cloud": block}

    plan = plans.plan(plans.cluster_spec("p4d.24xlarge"))
    text = main_tf(plan, "here", Blocks({}), ssh_public_key="k", identity="i")
    expected = (
        'provider "cloud" {\n  environment = "public"\n  features {\n    careful = true\n  }\n  empty {\n  }\n}\n'
    )
    assert expected in text
