"""Where the world is put under gpuprov's code for images: everything that is simulated is replaced here.

Real are: cli/image.py, lifecycle/images/ (commands, pipeline, nightly, failure, prune, use, journal, work, page),
images/book.py and manifest.py, providers/regional_images.py, paths, session. Simulated are: the cloud's answers, the
clusters of builders and provers, the choice of versions, the digests of roles.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import filelock

from provisioner.common.errors import ProviderError
from provisioner.common.paths import private_dir, remove_tree, write_whole
from provisioner.common.preflight import Finding
from provisioner.configure import playbook, stamps
from provisioner.lifecycle.images import boot_test, pipeline, work
from provisioner.lifecycle.images.builder import Builder, Installed, images_of
from provisioner.lifecycle.images.manifest import Proof
from provisioner.lifecycle.images.recipe import Recipe
from provisioner.machines.providers import base as providers
from provisioner.machines.providers import images as waiting
from provisioner.machines.providers.base import Place, Provider
from provisioner.machines.terraform import binary
from provisioner.plan.models import Plan
from provisioner.stack.models import BaseImage, Lock
from provisioner.transport import ssh_config, ssh_sockets
from tests.simulation.image_cloud import BuildMachine, SimulatedImages
from tests.simulation.image_recipe import lock_of
from tests.simulation.image_world import ImageWorld
from tests.simulation.seams import Printed, Seams


def provider_class(world: ImageWorld, provider: str) -> type[Provider]:
    """A provider of that name that keeps the world's images."""

    class Simulated(Provider):
        name = provider

        def __init__(self, site_context: Place) -> None:
            super().__init__(site_context)
            self.images = SimulatedImages(world, site_context)

        def base_image(self, system: str) -> BaseImage:
            raise NotImplementedError(system)

        def preflight(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:
            raise NotImplementedError(plan, existing_nodes)

        def clean(self, events: Any) -> list[str]:
            raise NotImplementedError(events)

    return Simulated


class ImageSeams(Seams):
    """The replacements, for one world."""

    world: Any

    def call(self, kind: str, name: str, action: Any) -> Any:
        """A call whose answer may be lost."""

        def failure() -> ProviderError:
            return ProviderError(f"{name}: connection lost", where="site virginia")

        def change() -> Any:
            self.world.process.changes += 1
            return action()

        return self.world.processes.effect(kind, name, change, refusal=failure, lost=failure)

    def machine(self, cluster: Any, label: str, driver: str = "") -> BuildMachine:
        """The machine of a cluster, created where it is missing."""
        machines = self.world.cloud.machines
        private_dir(cluster.paths.root)
        build = cluster.file.parents[2].name
        present = next((machine for machine in machines.values() if machine.cluster == cluster.spec.name), None)
        if present is not None:
            return present

        def action() -> BuildMachine:
            created = BuildMachine(self.world.cloud.number("i"), cluster.spec.name, build, driver)
            machines[created.id] = created
            return created

        return self.call("cloud", f"create {label}", action)

    def make(self, builder: Builder, _binary: Any) -> Any:
        machine = self.machine(builder.cluster, "builder")
        return SimpleNamespace(name=f"{builder.group}-0", id=machine.id)

    def install(self, builder: Builder, node: Any) -> Installed:
        machine = self.world.cloud.machines[node.id]
        if machine.generalised:
            raise ProviderError("permission denied (publickey)", where=node.name)
        driver = str(builder.lock.groups[builder.group].driver)
        self.call("node", "install", lambda: setattr(machine, "driver", driver))
        role = {"digest": "digest", "installed": f"roles-{self.world.inputs.roles}"}
        return Installed({"base": role}, {"nvidia-open": driver}, "6.8.0")

    def generalise(self, _builder: Builder, node: Any, _identity: Any) -> list[str]:
        machine = self.world.cloud.machines[node.id]
        if machine.generalised:
            raise ProviderError("permission denied (publickey)", where=node.name)
        self.call("node", "generalise", lambda: setattr(machine, "generalised", True))
        return ["host keys"]

    def prove(self, cluster: Any, _binary: Any, folder: Path, boots: int) -> list[Proof]:
        """Start a machine of the image and judge it. The image's id is in the name of the lock beside cluster.yaml."""
        (group,) = cluster.spec.groups
        number = cluster.paths.user_lock.read_text(encoding="utf-8").strip()
        image = self.world.cloud.images.get(number)
        if image is None or self.world.clock < image.ready_at or image.defect:
            raise ProviderError(f"InvalidAMIID: {number} does not exist", where=group)
        self.machine(cluster, "prover", image.driver)
        self.call("node", "prove", lambda: setattr(image, "proven", True))
        report = f"{group}-boot-1.json"
        write_whole(folder / report, "{}")
        counts = {"passed": 1, "warned": 0, "unknown": 0}
        return [Proof(machine="m", node=f"{group}-0", level="standard", report=report, **counts) for _ in range(boots)]

    @staticmethod
    def lock_for(cluster: Any, _group: str, _built: Lock, image: Any) -> None:
        write_whole(cluster.paths.user_lock, image.id)

    def down(self, cluster: Any, _binary: Any) -> None:
        machines = self.world.cloud.machines
        for machine in [row for row in machines.values() if row.cluster == cluster.spec.name]:
            self.call("cloud", "remove machine", lambda machine=machine: machines.pop(machine.id))
        remove_tree(cluster.paths.root)

    def solved(self, recipe: Recipe, *, renew: bool) -> Lock:
        del renew
        for group in recipe.targets:
            images_of(recipe.cluster, group)
        self.world.processes.effect(
            "cloud", "choose versions", lambda: None, refusal=lambda: ProviderError("the archive does not answer")
        )
        return lock_of(recipe.cluster.spec, self.world.inputs)


def as_method(call: Callable[..., Any]) -> Callable[..., Any]:
    """A function that a class gives its instance to."""

    def method(instance: Any, *arguments: Any) -> Any:
        return call(instance, *arguments)

    return method


@contextlib.contextmanager
def installed(world: ImageWorld) -> Iterator[None]:
    """gpuprov's code runs in this world until the block ends."""
    seams = ImageSeams(world)
    classes = {name: provider_class(world, name) for name in ("aws", "azure")}
    real_find, real_unlink, real_rmtree = providers.find, os.unlink, shutil.rmtree
    outside = world.processes.outside

    def is_inside(path: Any) -> bool:
        return str(path).startswith(str(world.root)) and world.process is not outside

    def unlink(path: Any, *, dir_fd: int | None = None) -> None:
        if dir_fd is None and is_inside(path):
            world.processes.effect("remove", Path(path).name, lambda: real_unlink(path))
        else:
            real_unlink(path, dir_fd=dir_fd)

    def rmtree(path: Any, *arguments: Any, **keywords: Any) -> None:
        """Half of a folder's entries first, so that a kill comes between."""
        if not is_inside(path):
            return real_rmtree(path, *arguments, **keywords)
        entries = sorted(Path(path).iterdir(), reverse=world.clock % 1 > 0.5)

        def refused() -> OSError:
            return PermissionError(13, "Permission denied", str(path))

        def half() -> None:
            for entry in entries[: (len(entries) + 1) // 2]:
                real_rmtree(entry) if entry.is_dir() else real_unlink(entry)

        kind = "build folder" if Path(path).parent == world.workshop else Path(path).parent.name
        world.processes.effect("tree", f"half of {kind}", half, refusal=refused)
        return world.processes.effect("tree", kind, lambda: real_rmtree(path, *arguments, **keywords), refusal=refused)

    clock = SimpleNamespace(monotonic=lambda: world.clock, sleep=world.sleep)
    replacements: list[tuple[Any, str, Any]] = [
        (os, "fsync", seams.fsync), (os, "unlink", unlink), (shutil, "rmtree", rmtree),
        (filelock.BaseFileLock, "acquire", seams.lock(filelock.BaseFileLock.acquire)),
        (ssh_sockets, "abandon", lambda *_: None), (ssh_sockets, "mend", lambda _: None),
        (ssh_config, "refuse_foreign", lambda *_: None),
        (providers, "find", lambda name: classes.get(name) or real_find(name)),
        (binary, "find", lambda *_, **__: binary.Binary(("terraform",), "simulated")),
        (Builder, "type", "m7i.2xlarge"),
        (Builder, "make", as_method(seams.make)), (Builder, "install", as_method(seams.install)),
        (Builder, "generalise", as_method(seams.generalise)),
        (boot_test, "prove", seams.prove), (boot_test, "lock_for", seams.lock_for),
        (work, "down", seams.down), (pipeline, "solved", seams.solved),
        (work, "datetime", SimpleNamespace(now=world.time, strptime=work.datetime.strptime)),
        (waiting, "time", clock),
        (playbook, "load", lambda: SimpleNamespace(entries=[SimpleNamespace(role="base")])),
        (stamps, "text_digest", lambda _: f"roles-{world.inputs.roles}"),
        (secrets, "token_hex", lambda size=16: f"{next(world.tokens):0{2 * size}x}"),
        (sys, "stdout", Printed(world, errors=False)), (sys, "stderr", Printed(world, errors=True)),  # type: ignore[arg-type]
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        for owner, name, value in replacements:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield
