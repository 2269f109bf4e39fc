"""The machine that an image is made of: made, installed, proven to be complete, generalised, captured."""

from __future__ import annotations

import json
import shlex
import subprocess
from dataclasses import dataclass, field, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from provisioner import __version__
from provisioner.catalog.models import LocalNVMe, Machine, Network
from provisioner.common import bounded
from provisioner.common.errors import ConfigureError, GpuprovError, ProviderError
from provisioner.lifecycle import configuring, machines
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.subjects import subjects_of
from provisioner.machines.providers.images import Disks, Images
from provisioner.machines.terraform.binary import Binary
from provisioner.plan.models import Plan, PlannedGroup, build_plan
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger, Release, identity
from provisioner.spec.groups import Capacity
from provisioner.stack.models import Lock
from provisioner.transport import ssh, ssh_failure

if TYPE_CHECKING:
    from provisioner.verify.bundle import Bundle

GENERALISE_S = 3600
"""27 MiB of a disk were looked through in a second of one core (a program of 12 MiB)."""
GENERALISE_LIMIT = 8 << 20
"""Bytes of its answer: the paths that it removed, and those of secrets."""
CLEAN_MOST = 10
"""Lines of what is wrong that an error has."""


def disks_of(cluster: Cluster, group: str) -> Disks | None:
    """How images at a group's site become disks; None where those are made on a virtual machine (virtual.py)."""
    return cluster.providers.at(cluster.spec.site_of(group)).disks


def images_of(cluster: Cluster, group: str) -> Images:
    """How images are made at a group's site. Raises GpuprovError for a provider that makes none."""
    site = cluster.spec.site_of(group)
    images = cluster.providers.at(site).images
    if images is None:
        provider = cluster.spec.sites[site].provider
        raise GpuprovError(
            f"gpuprov makes no images at {provider}", where=str(cluster.file),
            hint="leave the group out of the recipe, or run it with --sandbox",
        )  # fmt: skip
    return images


@dataclass(frozen=True, slots=True)
class Installed:
    """What is on the builder: role → digests of its stamp, package → version, the kernel that it will boot."""

    roles: dict[str, dict[str, str]]
    packages: dict[str, str]
    kernel: str
    sources: dict[str, str] = field(default_factory=dict)
    """Package → "source version", where they are not the package's own."""


@dataclass(slots=True)
class Builder:
    """One builder. `cluster` is its own cluster of one machine, `lock` the recipe's for it."""

    cluster: Cluster
    group: str
    lock: Lock
    wanted: str | None
    """The machine type that the recipe asks for."""

    @property
    def images(self) -> Images:
        """Raises GpuprovError for a provider that makes none."""
        return images_of(self.cluster, self.group)

    @property
    def plan(self) -> Plan:
        """What the roles are told: the machine that the image is for, and everything on that an image may carry."""
        plan, group = self._plan_and_group()
        # role interruption, where there is one
        spot = group.spec.model_copy(update={"capacity": Capacity(kind="spot")})
        return replace(plan, groups=(replace(group, spec=spot),))

    @property
    def type(self) -> str:
        """Of the machine that is built on."""
        return self.images.builder(self._plan_and_group()[1], self.wanted)

    def _plan_and_group(self) -> tuple[Plan, PlannedGroup]:
        """As cluster.yaml has it, and its one group."""
        plan = build_plan(self.cluster.spec, self.lock)
        return plan, plan.group(self.group)

    def _machines(self) -> Plan:
        """What is made: a machine without GPUs, or the machine itself, bought on demand."""
        (plan, group), kind = self._plan_and_group(), self.type
        plain = {"capacity": Capacity(), "placement": None}
        bought = group.spec.model_copy(update=plain) if kind != group.machine.name else group.spec
        machine = group.machine if kind == group.machine.name else without_gpus(group.machine, kind)
        return replace(plan, groups=(replace(group, machine=machine, spec=bought),))

    def make(self, binary: Binary) -> Node:
        """The machine, reachable. Goes on where an earlier call was cut off."""
        cluster, plan = self.cluster, self._machines()
        site = cluster.spec.site_of(self.group)
        with cluster.exclusively("image") as run_dir:
            site_machines = machines.of_site(cluster, site, binary, run_dir)
            machines.write_intent(cluster, plan)
            planned = site_machines.plan(plan)
            result = machines.make(cluster, plan, [(site_machines, planned)], cluster.events, run_dir)
            if result.failed:
                raise next(iter(result.failed.values()))
            return result.nodes[0]

    def install(self, node: Node) -> Installed:
        """Run the installing half of all roles and prove what they left. Raises ConfigureError naming what is not as
        locked."""
        from provisioner.configure import drift, inventory, stamps
        from provisioner.configure.run import configure, refuse_failures

        cluster, plan = self.cluster, self.plan
        release = Release(identity(self.lock), self.lock, plan)
        releases = {node.name: release}
        with cluster.exclusively("image") as run_dir:
            variables = configuring.role_variables(cluster, releases)
            role_stamps = stamps.desired(plan, self.group, variables)
            Ledger(cluster.paths).keep(self.lock)
            file = inventory.write(cluster.paths, [node], plan, variables, {self.group: role_stamps})
            cluster.events("configure", "started", f"installing on {node.name}", total=1)
            half = drift.Pass(half="install")
            push = cluster.spec.configure.push
            refuse_failures(configure(cluster.paths, [node], file, run_dir, cluster.events, half, push=push), run_dir)
            bundle = self._look(node, releases)
            self._prove(bundle, drift.desired_state(plan, plan.group(self.group), role_stamps, ()), node.name)
        return _installed(bundle, role_stamps)

    def prove_installed(self, node: Node) -> Bundle:
        """What a machine of the image shows, once level `image` has passed. Raises ConfigureError naming what is not as
        locked."""
        from provisioner.configure import drift, stamps

        cluster, plan = self.cluster, self.plan
        releases = {node.name: Release(identity(self.lock), self.lock, plan)}
        with cluster.exclusively("image"):
            role_stamps = stamps.desired(plan, self.group, configuring.role_variables(cluster, releases))
            bundle = self._look(node, releases)
            self._prove(bundle, drift.desired_state(plan, plan.group(self.group), role_stamps, ()), node.name)
        return bundle

    def _look(self, node: Node, releases: dict[str, Release]) -> Bundle:
        subjects = subjects_of(self.cluster, [node], releases)
        light = [replace(subject, expected=replace(subject.expected, level="quick")) for subject in subjects]
        return configuring.look(self.cluster, light, "looking at what was installed")[node.name]

    def _prove(self, bundle: Bundle, desired_state: Any, node: str) -> None:
        """Level `image`: all packages, held, at their versions; all container images by digest; every role installed;
        no other kernel waiting; nothing that could not be read."""
        from provisioner.configure import drift

        differences = drift.differences(bundle, desired_state)
        remaining = [
            difference
            for difference in differences
            if not (difference.configures or difference.kind in ("unit", "hook"))
        ]
        if remaining:
            lines = "\n  ".join(difference.message for difference in remaining[:CLEAN_MOST])
            more = f"\n  and {len(remaining) - CLEAN_MOST} more" if len(remaining) > CLEAN_MOST else ""
            raise ConfigureError(
                f"what was installed is not what is locked:\n  {lines}{more}", where=f"machine {node}",
                hint="the log of Ansible is in the build's folder",
            )  # fmt: skip

    def generalise(self, node: Node, image_identity: dict[str, str]) -> list[str]:
        """Take away what belongs to the builder alone; gives what that was. Raises ProviderError where a secret is left
        on it, or a file could not be looked at."""
        source = files("provisioner.lifecycle.images").joinpath("generalise_node.py").read_text(encoding="utf-8")
        document = json.dumps({**image_identity, "gpuprov": __version__}, sort_keys=True)
        command, argv = f"sudo -n python3 -I - {shlex.quote(document)}", ssh.argv(self.cluster.paths, node.name)
        try:
            done = bounded.run([*argv, command], stdin=source, deadline_s=GENERALISE_S, limit=GENERALISE_LIMIT)
            answer = json.loads(done.stdout) if done.returncode == 0 else None
        except (subprocess.TimeoutExpired, bounded.UnboundedOutputError, ValueError) as error:
            raise ProviderError(f"the builder did not answer: {error}", where=f"builder {node.name}") from None
        if answer is None:
            is_ssh_failure = ssh_failure.is_own(argv, done.returncode)
            message = (
                ssh_failure.explain(argv, done.stderr)
                if is_ssh_failure
                else ssh_failure.error_text(done.stderr) or "no error message"
            )
            raise ProviderError(f"it could not be generalised: {message}", where=f"builder {node.name}")
        wrong = [*answer["secrets"], *(f"{path}: could not be read" for path in answer["unread"])]
        if wrong:
            raise ProviderError(
                "no image is made of a machine with a secret on it:\n  " + "\n  ".join(wrong[:CLEAN_MOST]),
                where=f"builder {node.name}", hint="find out which role or base image leaves it there",
            )  # fmt: skip
        return list(answer["removed"])


def without_gpus(machine: Machine, name: str) -> Machine:
    """A machine type that is in no catalogue: nothing of the machine that the image is for but its processors' kind."""
    return machine.model_copy(
        update={
            "name": name,
            "gpu_count": 0,
            "nvlink": machine.nvlink.model_copy(update={"links_per_gpu": 0, "nvswitch_count": 0, "topology": "none"}),
            "topo_peer_cell": None,
            "topology": None,
            "fabric_manager_required": False,
            "network": Network(kind="ethernet", ports=1, rate_gbps=10, cards=1),
            "local_nvme": LocalNVMe(count=0, size_gb=0),
            "placement_cluster": False,
            "rdma_devices": (),
            "rdma_pci": (),
        }
    )


def _installed(bundle: Bundle, role_stamps: dict[str, Any]) -> Installed:
    from provisioner.verify.facts import read
    from provisioner.verify.parsers.kernel import newest_kernel

    facts = read(bundle)
    packages = dict(facts.packages or {})
    roles = {name: {"digest": stamp.digest, "installed": stamp.installed or ""} for name, stamp in role_stamps.items()}
    return Installed(roles, packages, newest_kernel(packages) or facts.kernel or "", facts.package_sources or {})
