"""Each recipe of examples/recipes: its file, the program that it names, and the pages that name it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.torch_programs import RECIPES, ROOT, torch_python

FILES = sorted(RECIPES.glob("*/recipe.yaml"))
KEYS = {"description", "folder", "command", "needs", "environment"}
NEEDS = {"torch", "gpu_memory_gib", "nodes", "gpus_per_node"}
FRAMEWORKS = {"deepspeed", "megatron"}
"""Their programs import what plain PyTorch has not; test_framework_recipes.py starts them."""


def read(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_recipe_names_a_program_that_exists(file: Path) -> None:
    recipe = read(file)
    assert set(recipe) <= KEYS
    assert set(recipe.get("needs", {})) <= NEEDS
    assert "\n" not in recipe["description"]
    launcher, program = recipe["command"][:2]
    assert launcher == "torchrun"
    assert (file.parent / recipe.get("folder", ".") / program).is_file()
    assert all(isinstance(argument, str) for argument in recipe["command"])


@pytest.mark.heavy
@pytest.mark.parametrize(
    "file", [file for file in FILES if file.parent.name not in FRAMEWORKS], ids=lambda file: file.parent.name
)
def test_program_has_the_options_of_the_recipe(file: Path) -> None:
    recipe = read(file)
    folder = file.parent / recipe.get("folder", ".")
    command = [str(torch_python()), *recipe["command"][1:], "--help"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "--checkpoint-every" in result.stdout


def test_guide_names_every_recipe_and_option() -> None:
    guide = (ROOT / "docs" / "guides" / "recipes.md").read_text(encoding="utf-8")
    assert [file.parent.name for file in FILES if file.parent.name not in guide] == []
    options = [
        option
        for program in sorted((RECIPES / "src").glob("*.py"))
        for option in re.findall(r'add_argument\(\s*"(--[a-z-]+)"', program.read_text(encoding="utf-8"))
    ]
    assert len(options) > 20
    assert [option for option in options if option not in guide] == []
