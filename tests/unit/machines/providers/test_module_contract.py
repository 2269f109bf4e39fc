"""Every Terraform module has the same inputs and the same output, and can be used without gpuprov."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from provisioner.common.paths import data
from provisioner.machines.terraform.binary import find
from tests.support import terraform_plugins
from tests.support.schema_provider import Cloud, serving
from tests.support.schema_provider.cloud import names

pytestmark = pytest.mark.heavy

MODULES = sorted(path.parent for path in data("terraform").glob("*/main.tf"))
COMMON = {"name", "groups", "ssh_public_key", "user_data", "tags"}
VARIABLE = re.compile(r'^variable\s+"([^"]+)"\s*\{(.*?)^\}', re.M | re.S)
OUTPUT = re.compile(r'^output\s+"([^"]+)"\s*\{(.*?)^\}', re.M | re.S)
NODE_KEYS = {"id", "group", "zone", "private_ip", "public_ip", "machine"}

every_module = pytest.mark.parametrize("module", MODULES, ids=lambda m: m.name)


def blocks(pattern: re.Pattern[str], module: Path) -> dict[str, str]:
    """Name → body of every block of that kind in the module's files."""
    bodies = {}
    for file in sorted(module.glob("*.tf")):
        bodies.update(dict(pattern.findall(file.read_text(encoding="utf-8"))))
    return bodies


def test_there_are_modules() -> None:
    assert {"sandbox", "aws"} <= {module.name for module in MODULES}


@every_module
def test_inputs_are_the_common_ones_and_one_object_of_the_provider(module: Path) -> None:
    inputs = blocks(VARIABLE, module)
    assert set(inputs) == COMMON | {module.name}
    assert re.search(r"^\s*type\s*=\s*object\(", inputs[module.name], re.M)
    for name, body in inputs.items():
        assert re.search(r"^\s*description\s*=", body, re.M), name
        assert re.search(r"^\s*type\s*=", body, re.M), name
    for optional in ("user_data", "tags"):
        assert re.search(r"^\s*default\s*=", inputs[optional], re.M), optional


@every_module
def test_the_output_is_nodes_alone(module: Path) -> None:
    outputs = blocks(OUTPUT, module)
    assert set(outputs) == {"nodes"}
    assert set(re.findall(r"^\s*(\w+)\s*=", outputs["nodes"], re.M)) >= NODE_KEYS


@every_module
@pytest.mark.parametrize(
    "name", ["README.md", "versions.tf", "variables.tf", "outputs.tf", "examples/complete/main.tf"]
)
def test_a_module_is_complete(module: Path, name: str) -> None:
    file = module / name
    assert file.is_file(), f"{file} is missing"
    assert file.read_text(encoding="utf-8").strip()


@every_module
def test_the_readme_has_every_input_and_the_output(module: Path) -> None:
    text = (module / "README.md").read_text(encoding="utf-8")
    for name in (*blocks(VARIABLE, module), *blocks(OUTPUT, module)):
        assert re.search(rf"`{name}\b", text), name


@every_module
def test_a_required_version_is_named(module: Path) -> None:
    assert re.search(r'required_version\s*=\s*">= ?\d', (module / "versions.tf").read_text(encoding="utf-8"))


@every_module
@pytest.mark.parametrize("folder", ["", "examples/complete"])
def test_terraform_validates_it(module: Path, folder: str, tmp_path: Path) -> None:
    copy = tmp_path / "terraform" / module.name
    shutil.copytree(module, copy, ignore=shutil.ignore_patterns(".terraform", "*.tfstate*"))
    with serving(*map(Cloud, names())) as stand_ins:
        cli_variables = {"TF_CLI_CONFIG_FILE": str(terraform_plugins.cli_config(tmp_path))}
        validate(copy / folder, {**os.environ, **stand_ins, **cli_variables})


def validate(folder: Path, environment: dict[str, str]) -> None:
    for arguments in (["init", "-backend=false", "-input=false"], ["validate", "-no-color"]):
        done = subprocess.run(
            [*find().argv, *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
