"""Builds of images for tests: manifests as a sandbox would leave them, with versions that are solved for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from provisioner.common.paths import private_dir, write_whole
from provisioner.lifecycle.images.book import Book
from provisioner.lifecycle.images.manifest import Inputs, Manifest, Proof, RoleOnImage, Target
from tests.support.plans import planned_group

RECIPE = """\
name: pytorch
sites: { virginia: { provider: aws, region: us-east-1 } }
groups: { p4d: { machine: p4d.24xlarge } }
image: { keep: 2 }
"""


def recipe(folder: Path, text: str = RECIPE, name: str = "pytorch") -> Path:
    """images/<name>.yaml below a folder."""
    file = private_dir(folder / "images") / f"{name}.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def target(machine: str = "p4d.24xlarge", **changed: Any) -> Target:
    stack = planned_group(machine).stack
    counts = {"passed": 1, "warned": 0, "unknown": 0}
    proof = Proof(machine=machine, node="p4d-0", level="standard", report="p4d-boot-1.json", **counts)
    fields: dict[str, Any] = {
        "site": "virginia", "provider": "aws", "machine": machine, "builder": "m7i.2xlarge",
        "ids": {"us-east-1": "ami-1"}, "base": "ami-0", "kernel": "6.8.0-1024-aws", "stack": stack,
        "roles": {"base": RoleOnImage(digest="a", installed="b")}, "packages": {"nvidia-open": "580"},
        "proofs": (proof,),
    }  # fmt: skip
    return Target(**{**fields, **changed})


def manifest(build: str, name: str = "pytorch", **targets: Target) -> Manifest:
    return Manifest(
        name=name, build=build, made="2026-01-31T03:15:00Z", simulated=False, gpuprov="0.1.0",
        inputs=Inputs(recipe="r", stacks={"p4d": "s"}, bases={"virginia ubuntu-24.04": "ami-0"}, roles={"base": "a"}),
        targets=targets or {"p4d": target()},
    )  # fmt: skip


def keep(build_index: Book, *manifests: Manifest) -> None:
    """Write these builds as the pipeline does, oldest first; channel nightly has the last one."""
    for build_manifest in manifests:
        folder = private_dir(build_index.build(build_manifest.build))
        write_whole(folder / "manifest.json", build_manifest.model_dump_json(indent=1) + "\n")
        build_index.move("nightly", build_manifest.build, "built")
