"""Every key of cluster.yaml that is accepted is read by something."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from provisioner.spec import schema
from provisioner.spec.stack_request import StackRequest

ROOT = Path(__file__).parents[3]
CHOOSES = {"sites.<name>.provider", "state.backend"}
"""They choose the model that is read."""
WHOLE = (
    "sites.<name>.bandwidth.", "sites.<name>.storage.efs.", "sites.<name>.storage.files.", "sites.<name>.storage.fsx.",
    "sites.<name>.storage.nas.",
)  # fmt: skip
"""Blocks that go to the Terraform module as they are; test_aws_, test_alicloud_ and test_tencent_provider.py and
test_azure_module.py hold its variables to them."""


@cache
def attributes() -> frozenset[str]:
    """Names of all attributes that the code reads, but for those of the rules that refuse a file."""
    names: set[str] = set()
    for path in (ROOT / "provisioner").rglob("*.py"):
        refuses = path.name in ("rules.py", "site.py") and path.parent.parent.name in ("providers", "provisioner")
        if not refuses:
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            names |= {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}
    return frozenset(names)


def unread(keys: list[str]) -> set[str]:
    """The keys that no code reads. Pins of the stack are read by their name (stack/solve.py)."""
    pins = {f"stack.{name}" for name in StackRequest.model_fields}
    plain_keys = [key for key in keys if key not in pins | CHOOSES and not key.startswith(WHOLE)]
    return {key for key in plain_keys if key.rpartition(".")[2] not in attributes()}


def test_every_key_is_read() -> None:
    assert unread(schema.key_names()) == set()


def test_a_key_that_nobody_reads_is_found() -> None:
    assert unread(["groups.<name>.colour", "groups.<name>.count"]) == {"groups.<name>.colour"}
