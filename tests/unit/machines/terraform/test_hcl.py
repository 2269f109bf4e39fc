"""Every string of cluster.yaml reaches Terraform as exactly that string: asked of the real Terraform."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from provisioner.machines.terraform.binary import find
from provisioner.machines.terraform.hcl import hcl

HOSTILE = [
    '${file("/etc/passwd")}',
    '"}',
    'a\nb = "c"',
    "%{ for x in [1] }x%{ endfor }",
    "$${x}",
    "$$${x}",
    "%%{ if",
    "\\${a}",
    "$\\{",
    "\b\f\\b",
    "é\U0001f600",
    "\x7f  ",
    "<<EOT\nx\nEOT",
    "$",
    "%",
    '"',
    "\\",
    "",
]


def _random_strings(count: int) -> list[str]:
    dice = random.Random(20261121)
    return ["".join(dice.choice('${}%"\\\n\t ab\x01é') for _ in range(dice.randint(1, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], dict[str, object]]:
    texts = [*HOSTILE, *_random_strings(400)]
    folder: Path = tmp_path_factory.mktemp("hcl")
    keys = {text: index for index, text in enumerate(dict.fromkeys(texts))}
    (folder / "main.tf").write_text(
        f'output "list" {{\n  value = {hcl(texts)}\n}}\noutput "map" {{\n  value = {hcl(keys)}\n}}\n'
        f'output "rest" {{\n  value = {hcl([None, True, False, 3, 2.5, {"a": [1]}])}\n}}\n',
        encoding="utf-8",
    )
    environment = {k: v for k, v in os.environ.items() if k != "TF_CLI_CONFIG_FILE"}
    for arguments in (["init", "-input=false"], ["apply", "-auto-approve", "-input=false"]):
        subprocess.run(
            [*find().argv, *arguments], cwd=folder, env=environment, check=True, capture_output=True, timeout=120
        )
    answer = subprocess.run(
        [*find().argv, "output", "-json"], cwd=folder, env=environment, check=True, capture_output=True, timeout=120
    )
    return texts, {name: entry["value"] for name, entry in json.loads(answer.stdout).items()}


def test_strings_arrive_as_they_are(rendered: tuple[list[str], dict[str, object]]) -> None:
    texts, values = rendered
    assert values["list"] == texts


def test_map_keys_arrive_as_they_are(rendered: tuple[list[str], dict[str, object]]) -> None:
    texts, values = rendered
    assert values["map"] == {text: index for index, text in enumerate(dict.fromkeys(texts))}


def test_other_values_keep_their_type(rendered: tuple[list[str], dict[str, object]]) -> None:
    assert rendered[1]["rest"] == [None, True, False, 3, 2.5, {"a": [1]}]


def test_what_hcl_can_not_say_is_refused() -> None:
    with pytest.raises(TypeError, match="no HCL for set"):
        hcl({1, 2})
