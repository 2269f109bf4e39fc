"""A site of one machine in QEMU that gpuprov installs through its BMC, which replays a real one."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import ProviderError
from provisioner.common.events import Events
from provisioner.common.paths import ClusterPaths
from provisioner.machines.bmc import RedfishMachines
from provisioner.machines.existing import Way
from provisioner.machines.installer import serve
from provisioner.machines.journal import Journal
from provisioner.machines.providers.base import Installation
from provisioner.machines.providers.hosts import Host
from provisioner.plan.models import Plan
from provisioner.rundir import fleet
from provisioner.transport import ssh, ssh_keys
from tests.support import bmc as fake
from tests.support import qemu_machine
from tests.support.plans import cluster_spec, plan

MIRROR = os.environ.get("GPUPROV_TEST_DEBIAN", "http://deb.debian.org/debian")
TREE = "nvidia-dgx-h100"
WAIT_S = 2400.0


@dataclass
class Site:
    """One machine, and gpuprov's way of installing it."""

    folder: Path
    image: tuple[Path, str]
    machine: qemu_machine.Machine
    reinstall: tuple[str, ...] = ()
    lines: list[str] = field(default_factory=list)
    credentials = "env:BMC"
    installation: Any = None
    fleet_plan: Plan = field(default_factory=lambda: plan(cluster_spec("dgx-h100")))

    def listed(self, groups: object = ()) -> list[Host]:
        machine = self.machine
        group = self.fleet_plan.groups[0].name
        return [Host("dgx01.lab", group, "127.0.0.1", machine.port, bmc=machine.bmc.address, serial=machine.serial)]

    def host_key(self, machine: str) -> str | None:
        return None

    @property
    def name(self) -> str:
        return self.fleet_plan.sites()[0]

    @property
    def node(self) -> str:
        return f"{self.fleet_plan.groups[0].name}-0"

    @functools.cached_property
    def paths(self) -> ClusterPaths:
        return ClusterPaths(self.folder / "cluster.yaml", "lab", sandbox=False)

    def up(self) -> list[fleet.Node]:
        """What `gpuprov up` does with the machines before it configures them."""
        file, sha256 = self.image
        installation = Installation(None, "by-size", file, sha256, qemu_machine.HOST, MIRROR, self.reinstall, True)
        key = ssh_keys.ensure_key(self.paths, None)
        events, access = Events(), Way(self.paths, {self.node: "ubuntu"}, {}, lambda: key, lambda: "1234", frozenset())
        events.subscribe(lambda event: self.lines.append(f"{time.monotonic():.0f} {event.node}: {event.message}"))
        machines = RedfishMachines(
            self.name, self, self, installation, [], access, events, WAIT_S, self.folder, "ubuntu", lambda _: None
        )
        return machines.apply(self.fleet_plan, machines.plan(self.fleet_plan), always=True)

    def contact(self, nodes: list[fleet.Node]) -> dict[str, ProviderError]:
        return fleet.contact(self.paths, nodes, {self.node: "ubuntu"}, Events())

    def ask(self, command: str) -> str:
        done = subprocess.run(
            [*ssh.argv(self.paths, self.node), command], capture_output=True, text=True, timeout=120, check=False
        )
        return done.stdout.strip()

    def step(self) -> str:
        return Journal(self.paths.site(self.name) / "bmc.json").load()["dgx01.lab"].step


@contextlib.contextmanager
def powered_off_site(
    folder: Path, image: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, log: str
) -> Iterator[Site]:
    """The machine is off, its disk empty. `image`: what it is to be installed from, and its SHA-256; `log`: the name of
    what is left in the folder GPUPROV_TEST_LOG of all that it said."""
    monkeypatch.setenv("BMC_USER", "admin")
    monkeypatch.setenv("BMC_PASSWORD", "not-a-real-one")
    monkeypatch.setattr(serve, "serving", functools.partial(serve.serving, bind="127.0.0.1"))
    bmc = qemu_machine.Behind(copy.deepcopy(fake.tree(TREE)), fake.MANNERS[TREE])
    bmc.system.update(SerialNumber="GPU-0001", PowerState="Off")
    (folder / "machine").mkdir()
    with contextlib.ExitStack() as running:
        running.enter_context(fake.serving(bmc, fake.certificate(folder)))
        machine = qemu_machine.Machine(folder / "machine", "GPU-0001", bmc)
        running.callback(machine.end)
        site = Site(folder, image, machine)
        try:
            yield site
        finally:
            if log_folder := os.environ.get("GPUPROV_TEST_LOG"):
                text = "\n".join(site.lines) + "\n" + machine.said()
                Path(log_folder, f"{log}.txt").write_text(text, encoding="utf-8")
