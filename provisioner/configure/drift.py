"""What on a node is not what the lock says: a pure function of what its probe brought home.

The answer comes from what is really installed and running; the stamp that the playbook leaves only says which text and
variables each role ran with (stamps.py). What could not be read is a difference of kind "unknown", never fine. A node
without a difference that `up` mends costs no Ansible.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from provisioner.common.text import printable
from provisioner.configure import playbook
from provisioner.machines.mounts import unit
from provisioner.plan import roles
from provisioner.plan.models import Plan, PlannedGroup
from provisioner.plan.roles import node_exporter
from provisioner.plan.roles.interruption import digest
from provisioner.plan.roles.nvidia_driver import by_switch
from provisioner.stack.models import Image, Package, VendorImage
from provisioner.verify.bundle import Bundle
from provisioner.verify.checks.software import image_versions, is_version
from provisioner.verify.expectations import FABRIC_MANAGER, HEALTH_TIMER, INTERRUPTION
from provisioner.verify.facts import Facts, read
from provisioner.verify.parsers.images import tag
from provisioner.verify.parsers.kernel import is_kernel, newest_kernel
from provisioner.verify.parsers.stamp import RoleStamp
from provisioner.verify.parsers.systemd import Unit

Kind = Literal["unknown", "stamp", "package", "hold", "unit", "hook", "image", "updates", "system", "kernel", "reboot"]

ON = ("enabled", "enabled-runtime", "static", "alias", "indirect", "generated", "linked")
"""Unit file states (systemctl(1), is-enabled) of what starts at boot, or by what needs it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as locked. `wanted` and `found` are versions, states or digests, None where there is none.

    `role` is the role that has to run for it, None where all of them have to; `mended` is whether `up` mends it by
    that. `reboots`: the node will have to reboot to be as locked, for a kernel or for a driver that is loaded.
    `configures`: configure.yml of the role mends it, nothing has to be installed.
    """

    kind: Kind
    subject: str
    wanted: str | None
    found: str | None
    message: str
    role: str | None = None
    mended: bool = True
    reboots: bool = False
    configures: bool = False

    def __post_init__(self) -> None:
        for text in ("subject", "wanted", "found", "message"):
            object.__setattr__(self, text, printable(getattr(self, text)))

    def to_json(self) -> dict[str, str | None]:
        keys = ("kind", "subject", "wanted", "found", "message")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True, slots=True)
class DesiredState:
    """What a node of a group is compared with. `kernel` is None where the lock names none, or the kernel is not the
    node's own (the sandbox's nodes run on this machine's); `system` is the distribution, such as ubuntu-24.04."""

    stamps: Mapping[str, RoleStamp]
    packages: tuple[Package, ...]
    images: tuple[Image, ...]
    units: tuple[str, ...]
    system: str
    kernel: str | None = None
    vendor: VendorImage | None = None
    """The cloud's own GPU image that it boots."""
    switch_units: tuple[str, ...] = ()
    """Those of `units` that run only where an NVSwitch is visible: no source says that the machine has one."""
    hook: str | None = None
    """sha256 of what a node runs when its machine is taken away, empty for nothing; None where no machine is."""


def desired_state(
    plan: Plan, group: PlannedGroup, stamps: Mapping[str, RoleStamp], units: Sequence[str]
) -> DesiredState:
    """What the lock, the catalogue and cluster.yaml want of this group's nodes; `stamps`: of stamps.desired."""
    stack = group.stack
    kernel = None if plan.simulated else stack.kernel
    wanted_units = (*units, *monitoring_units(plan))
    return DesiredState(stamps, stack.packages, stack.images, wanted_units, stack.os, kernel, stack.vendor,
                  switch_units=(FABRIC_MANAGER,) if by_switch(group.machine) else (),
                  hook=digest(plan) if INTERRUPTION in units else None)  # fmt: skip


def monitoring_units(plan: Plan) -> tuple[str, ...]:
    """Units that watch every node: `up` starts them again, and no check condemns a node for them."""
    monitoring = plan.spec.monitoring
    timers = (HEALTH_TIMER,) if plan.spec.health_timer is not None else ()
    exporters = (node_exporter.UNIT,) if monitoring.installs_node_exporter else ()
    return (*timers, *exporters)


def differences(bundle: Bundle, lock: DesiredState) -> tuple[Difference, ...]:
    """Everything on the node that is not as wanted, most telling first; empty for a node that is what the lock says."""
    if bundle.error:
        return (Difference("unknown", "node", None, None, f"could not be probed: {bundle.error}"),)
    facts = read(bundle)
    return tuple(
        difference
        for look in (_stamp, _packages, _vendor, _holds, _units, _shared, _hook, _images, _updates, _system, _kernel)
        for difference in look(facts, lock)
    )


Half = Literal["", "install", "configure"]
"""Of roles: both halves, or one of them."""


class Pass(NamedTuple):
    """One run of the playbook: these roles, or all where `roles` is empty; of each only that half."""

    roles: frozenset[str] = frozenset()
    half: Half = ""


EVERYTHING = Pass()


def passes(differences: Iterable[Difference]) -> list[Pass]:
    """What mends these differences, in this order. All roles run for what no single role answers for, and for a role
    that others depend on, unless only a unit of it does not run. A node that an image has installed most of is given
    the rest first, and is then configured."""
    to_mend = [difference for difference in differences if difference.mended]
    role_names = {difference.role for difference in to_mend if difference.role is not None}
    # the unit of a role that was only installed is not there yet
    unborn = {difference.role for difference in to_mend if difference.kind == "stamp" and difference.configures}
    install = {d.role for d in to_mend if not d.configures and not (d.kind == "unit" and d.role in unborn)}
    leading = {d.role for d in to_mend if d.kind != "unit" and d.role is not None and roles.get(d.role).others_follow}
    everything = None in install or bool(leading) or not role_names <= set(playbook.load().roles)
    which = frozenset[str]() if everything else frozenset(role_names)
    if not install:
        return [Pass(which, "configure")] if role_names else []
    if None in install or leading & install or len(role_names) < 2 * len(install):
        return [Pass(which)]
    return [Pass(frozenset(name for name in install if name), "install"), Pass(which, "configure")]


def _unread(facts: Facts, name: str) -> Iterator[Difference]:
    yield Difference("unknown", name, None, None, f"{name}: {facts.source(name).reason or 'not in the bundle'}")


def _stamp(facts: Facts, lock: DesiredState) -> Iterator[Difference]:
    stamp = facts.stamp
    if stamp is None:
        yield from _unread(facts, "stamp.json")
    elif stamp.fingerprint is not None:
        yield Difference("stamp", "roles", None, stamp.fingerprint, "configured by an earlier gpuprov")
    elif not stamp.roles:
        yield Difference("stamp", "roles", None, None, "not configured yet")
    else:
        for role, right in lock.stamps.items():
            yield from _role(role, right, stamp.roles.get(role))


def _role(role: str, right: RoleStamp, present: RoleStamp | None) -> Iterator[Difference]:
    """What of one role is not as it is to be; `right` and `there` are its stamps."""
    text = right.digest, present.digest if present else None
    variables = right.configured, present.configured if present else None
    if present is None:
        yield Difference("stamp", role, *text, f"role {role} has not run yet", role)
    elif present.configured is None:
        message = f"role {role} is installed and not configured yet"
        yield Difference("stamp", role, *variables, message, role, configures=right.installs_as(present))
    elif text[0] != text[1]:
        yield Difference("stamp", role, *text, f"role {role} has changed since it ran", role)
    elif variables[0] != variables[1]:
        message = f"role {role} ran with other variables"
        yield Difference("stamp", role, *variables, message, role, configures=right.installs_as(present))


def _packages(facts: Facts, lock: DesiredState) -> Iterator[Difference]:
    if facts.packages is None:
        yield from _unread(facts, "packages.txt")
        return
    for package in lock.packages:
        version = (facts.unfinished or {}).get(package.name) or facts.packages.get(package.name)
        if version != package.version:
            message = f"{package.name} is {version or 'not installed'}, locked {package.version}"
            role, driver = roles.of_part(package.part), package.part == "driver"
            yield Difference("package", package.name, package.version, version, message, role, reboots=driver)


def _vendor(facts: Facts, lock: DesiredState) -> Iterator[Difference]:
    """What the cloud's image was to bring and did not; no role mends that."""
    if lock.vendor is None or facts.packages is None:  # packages that could not be read are told of already
        return
    for part, version in lock.vendor.parts.items():
        if part == "driver":
            versions: tuple[str, ...] = (facts.module.version,) if facts.module else ()
        else:
            versions = image_versions(facts, part, [p.name for p in lock.vendor.packages if p.part == part and p.asked])
        if not any(is_version(version_there, version) for version_there in versions):
            have = ", ".join(versions) or "not there"
            message = f"{part} of the image is {have}, locked {version}"
            yield Difference("package", part, version, versions[0] if versions else None, message, mended=False)


def _holds(facts: Facts, lock: DesiredState) -> Iterator[Difference]:
    if facts.holds is None:
        yield from _unread(facts, "holds.txt")
        return
    held_names, packages = set(facts.holds), facts.packages or {}
    for package in lock.packages:
        right = packages.get(package.name) == package.version  # else the package itself is the difference
        if right and package.repository is not None and package.name not in held_names:
            role = roles.of_part(package.part)
            yield Difference("hold", package.name, "hold", None, f"{package.name} is not held", role)


def _units(facts: Facts, lock: DesiredState) -> Iterator[Difference]:
    if not lock.units:
        return
    if facts.units is None:
        yield from _unread(facts, "units.txt")
        return
    unswitched = facts.bus is not None and not facts.bus.nvswitches
    for name in lock.units:
        if unswitched and name in lock.switch_units:
            continue
        unit = facts.units.get(name)
        state = _state(unit)
        if state != "active":
            role = roles.of_unit(name)
            configures = role is not None and unit is not None and unit.load == "loaded"
            yield Difference("unit", name, "active", state, f"{name} is {state}", role, configures=configures)


def _state(unit: Unit | None) -> str:
    """What is wrong with a unit that should run, in words; "active" where nothing is."""
    if unit is None:
        return "unknown"
    if unit.load != "loaded":
        return unit.load
    if unit.active != "active":
        return unit.active
    return "active" if unit.enabled in ON else f"active, but {unit.enabled or 'unknown'} at boot"


def _shared(facts: Facts, lock: DesiredState) -> Iterator[Difference]:
    """A bucket whose process has ended: the kernel keeps the mount, and systemd its unit as active."""
    if not any(name.endswith(".mount") for name in lock.units):
        return
    if facts.shared is None:
        yield from _unread(facts, "shared.json")
    for mount in facts.shared or ():
        name = unit(mount.path)
        if name in lock.units and os.strerror(errno.ENOTCONN) in mount.error:
            message = f"the process that serves {mount.path} has ended"
            yield Difference("unit", name, "active", "ended", message, roles.of_unit(name))


def _hook(facts: Facts, lock: DesiredState) -> Iterator[Difference]:
    if lock.hook is None:
        return
    if facts.interruption is None:
        yield from _unread(facts, "interruption.json")
    elif facts.interruption.digest != lock.hook:
        digest = facts.interruption.digest
        message = (
            "hooks.interrupted on the node differs from cluster.yaml"
            if digest
            else "hooks.interrupted is missing on the node"
        )
        message = message if lock.hook else "a hook is on the node, but cluster.yaml has no hooks.interrupted"
        yield Difference("hook", "hooks.interrupted", lock.hook or None, digest or None, message, "interruption")


def _images(facts: Facts, lock: DesiredState) -> Iterator[Difference]:
    if not lock.images:
        return
    if facts.images is None:
        yield from _unread(facts, "container-images.json")
        return
    for image in lock.images:
        candidates = [i for i in facts.images if "@" in image.reference or tag(image.reference) in map(tag, i.tags)]
        if any(image.digest in i.digests for i in candidates):
            continue
        present_digest = next(
            (digest for i in candidates for digest in i.digests), candidates[0].id if candidates else None
        )
        message = f"{image.reference} is {present_digest or 'missing'}, locked {image.digest}"
        yield Difference("image", image.reference, image.digest, present_digest, message, "pytorch_images")


def _updates(facts: Facts, lock: DesiredState) -> Iterator[Difference]:
    driver = [package.name for package in lock.packages if package.part == "driver"]
    if not driver:
        return
    if facts.unattended is None:
        if facts.source("unattended.txt").state != "missing":  # no apt at all: nothing that could move a package
            yield from _unread(facts, "unattended.txt")
        return
    free = [name for name in driver if not facts.unattended.spares(name)]
    if facts.unattended.periodic and free:
        message = f"unattended-upgrades may upgrade {', '.join(free[:3])}: not in its Package-Blacklist"
        yield Difference("updates", "unattended-upgrades", "keeps off the stack", "on", message, "base")


def _system(facts: Facts, lock: DesiredState) -> Iterator[Difference]:
    if facts.system is None:
        yield from _unread(facts, "os-release.txt")
    elif facts.system.name != lock.system:
        message = f"{facts.system.name} runs, the lock is for {lock.system}"
        yield Difference("system", "system", lock.system, facts.system.name, message, mended=False)


def _kernel(facts: Facts, lock: DesiredState) -> Iterator[Difference]:
    if facts.kernel is None:
        yield from _unread(facts, "kernel.txt")
        return
    if lock.kernel is not None and not is_kernel(facts.kernel, lock.kernel):
        message = f"kernel {facts.kernel} is running, locked {lock.kernel}"
        yield Difference("kernel", "kernel", lock.kernel, facts.kernel, message, reboots=True)
    newest = newest_kernel(facts.packages or ())
    if f"linux-image-{facts.kernel}" in (facts.packages or {}) and newest not in (None, facts.kernel, lock.kernel):
        message = f"kernel {newest} is installed and waits for a reboot; {facts.kernel} is running"
        yield Difference("reboot", "kernel", facts.kernel, newest, message, mended=False, reboots=True)
    if facts.reboot is None:
        yield from _unread(facts, "reboot.txt")
    elif facts.reboot:
        yield Difference("reboot", "system", None, facts.reboot, f"a reboot is required by {facts.reboot}",
                         mended=False, reboots=True)  # fmt: skip
