"""`gpuprov image` as people type it, and the fleet that starts from a channel: words → the function behind them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from provisioner import spec
from provisioner.cli import image
from provisioner.common.errors import ProviderError
from provisioner.common.paths import write_whole
from provisioner.lifecycle.images import use
from provisioner.spec.models import ClusterSpec
from provisioner.stack import lockfile
from tests.simulation.commands import code_of
from tests.simulation.image_recipe import MACHINES, NAME, Inputs, RecipeText, lock_of
from tests.simulation.image_world import ImageWorld
from tests.simulation.processes import Process

LOOKS = ("list",)
"""Commands that change nothing."""


def fleet(world: ImageWorld, channel: str = "nightly") -> None:
    """`gpuprov lock --upgrade` and `up` of a fleet of one machine, which starts from a channel."""
    file = world.folder / "cluster.yaml"
    manifests, channels = world.manifests(), world.channels()
    target = next(iter(manifests.get(channels.get(channel, ""), {"targets": {}})["targets"].values()), None)
    provider = target["provider"] if target else "aws"
    region = next(iter(target["ids"])) if target else "us-east-1"
    machine = target["machine"] if target else MACHINES["aws"]["p4d"]
    fleet_spec = _fleet_spec(provider, region, machine, channel)
    chosen = use.choose(fleet_spec, "train", file, sandbox=False).golden
    lock = lock_of(fleet_spec, Inputs()).model_copy(update={"images": {"train": chosen}})
    lockfile.write(world.lock, lock)

    def start() -> None:
        stored = world.cloud.images.get(chosen.id)
        if stored is None:
            world.broken(f"channel {channel} leads a fleet to {chosen.id}, which does not exist")
        elif not stored.proven:
            world.broken(f"channel {channel} leads a fleet to {chosen.id}, which was never proven")
        world.cloud.fleet[world.cloud.number("i")] = chosen.id
        world.process.changes += 1

    world.processes.effect("cloud", "start machine", start, refusal=lambda: ProviderError("no capacity"))


@functools.cache
def _fleet_spec(provider: str, region: str, machine: str, channel: str) -> ClusterSpec:
    import tempfile

    site = {"provider": provider, "region": region}
    if provider == "azure":
        site["subscription"] = "00000000-0000-0000-0000-000000000000"
    group = {"machine": machine, "count": 1, "image": f"{NAME}@{channel}"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.yaml"
        recipe = Path(folder) / "images" / f"{NAME}.yaml"
        recipe.parent.mkdir()
        RecipeText().write(recipe)
        write_whole(file, json.dumps({"name": "fleet", "sites": {"here": site}, "groups": {"train": group}}))
        return spec.load(file)


COMMANDS: Mapping[str, Callable[..., Any]] = {
    "build": lambda world, *flags: image.build(world.recipe, yes=True, json_=True, upgrade="--upgrade" in flags),
    "nightly": lambda world, *flags: image.nightly([world.recipe], json_=True, force="--force" in flags, jitter=0),
    "promote": lambda world, channel, *build: image.promote(world.recipe, channel, *build, json_=True),
    "rollback": lambda world, channel: image.rollback(world.recipe, channel, json_=True),
    "prune": lambda world: image.prune(
        world.recipe, [world.lock] if world.lock.exists() else None, yes=True, json_=True
    ),
    "list": lambda world: image.list_(world.recipe),
    "fleet": fleet,
}


def call(arguments: Sequence[str], world: ImageWorld, process: Process) -> int:
    """The exit code of `gpuprov image WORDS`."""
    return code_of(lambda: COMMANDS[arguments[0]](world, *arguments[1:]), process)
