"""The recipe that people edit between builds, and what a build is made of beside it."""

from __future__ import annotations

import functools
import json
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner import spec, stack
from provisioner.stack.models import BaseImage, Lock, Stack

NAME = "pytorch"
MACHINES = {
    "aws": {"p4d": "p4d.24xlarge", "p5": "p5.48xlarge"},
    "azure": {"p4d": "Standard_ND96asr_v4", "p5": "Standard_ND96isr_H100_v5"},
}
REGIONS = {"aws": ("us-east-1", "us-west-2", "eu-west-1"), "azure": ("eastus", "westeurope", "northeurope")}
DRIVERS = ("580.1", "590.2", "595.3")


@dataclass
class RecipeText:
    """What the recipe says. `home`, `copies`: numbers of regions of its provider."""

    provider: str = "aws"
    home: int = 0
    copies: tuple[int, ...] = ()
    groups: tuple[str, ...] = ("p4d",)
    keep: int = 1

    def copy(self) -> RecipeText:
        return deepcopy(self)

    @property
    def region(self) -> str:
        return REGIONS[self.provider][self.home]

    def write(self, file: Path) -> None:
        names = REGIONS[self.provider]
        site: dict[str, Any] = {"provider": self.provider, "region": self.region}
        if self.provider == "azure":
            site["subscription"] = "00000000-0000-0000-0000-000000000000"
        copies = [names[number] for number in self.copies if number != self.home]
        document = {
            "name": NAME,
            "sites": {"virginia": site},
            "groups": {name: {"machine": MACHINES[self.provider][name]} for name in self.groups},
            "image": {"keep": self.keep, "boots": 1, "targets": {name: {"copy_to": copies} for name in self.groups}},
        }
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


@dataclass
class Inputs:
    """What a build is made of beside its recipe: the newest driver, the newest base image, the text of the roles."""

    driver: str = DRIVERS[0]
    base: int = 0
    roles: int = 0


@functools.cache
def stack_of(machine: str) -> Stack:
    from tests.support import plans

    solved = plans.with_digests(stack.solve(plans.cluster_spec(machine))["train"])
    repository = next(row for row in solved.repositories if not row.archives)
    package = next(row for row in solved.packages if row.repository == repository.name)
    return solved.model_copy(update={"packages": (package,), "images": (), "repositories": (repository,)})


def lock_of(loaded: spec.ClusterSpec, inputs: Inputs) -> Lock:
    """The newest versions that the recipe allows."""
    groups = {
        name: stack_of(group.machine).model_copy(update={"driver": inputs.driver})
        for name, group in loaded.groups.items()
    }
    base = BaseImage(id=f"ami-base-{inputs.base}", why="newest")
    bases = {site: {group_stack.os: base for group_stack in groups.values()} for site in loaded.sites}
    return Lock(request=stack.request(loaded), simulated=False, bases=bases, groups=groups)
