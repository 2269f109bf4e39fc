"""What on a node is not what the lock says: a pure function of what its probe brought home.

The answer comes from what is really installed and running; the stamp that the playbook leaves only says for which
inputs (roles, variables) it ran. What could not be read is a difference of kind "unknown", never fine. A node without a
difference that `up` mends costs no Ansible.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import yaml

from provisioner import paths
from provisioner.fleet import group_variables
from provisioner.interruption import digest
from provisioner.mounts import unit
from provisioner.plan import Plan, PlannedGroup
from provisioner.stack.models import Image, Package
from provisioner.text import printable
from provisioner.verify.bundle import Bundle
from provisioner.verify.expectations import HEALTH_TIMER, INTERRUPTION
from provisioner.verify.facts import Facts, read
from provisioner.verify.parsers.images import tag
from provisioner.verify.parsers.kernel import is_kernel, newest_kernel
from provisioner.verify.parsers.systemd import Unit

Kind = Literal["unknown", "stamp", "package", "hold", "unit", "hook", "image", "updates", "system", "kernel", "reboot"]

MOUNTS = "mounts"
"""The tag of role mounts."""
ON = ("enabled", "enabled-runtime", "static", "alias", "indirect", "generated", "linked")
"""Unit file states (systemctl(1), is-enabled) of what starts at boot, or by what needs it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as locked. `wanted` and `found` are versions, states or digests, None where there is none.

    `part` says which roles have to do with it (the tags of playbooks/site.yml); None: all of them. `mended` is whether
    `up` mends it by running them.
    """

    kind: Kind
    subject: str
    wanted: str | None
    found: str | None
    message: str
    part: str | None = None
    mended: bool = True

    def __post_init__(self) -> None:
        for text in ("subject", "wanted", "found", "message"):
            object.__setattr__(self, text, printable(getattr(self, text)))

    @property
    def reboots(self) -> bool:
        """Whether the node will have to reboot to be as locked: for a kernel, and for a driver that is loaded."""
        return self.kind in ("kernel", "reboot") or (self.kind == "package" and self.part == "driver")

    def to_json(self) -> dict[str, str | None]:
        keys = ("kind", "subject", "wanted", "found", "message")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a node of a group is compared with. `kernel` is None where the lock names none, or the kernel is not the
    node's own (a rehearsal's nodes run on this machine's); `system` is the distribution, such as ubuntu-24.04."""

    stamp: str
    packages: tuple[Package, ...]
    images: tuple[Image, ...]
    units: tuple[str, ...]
    system: str
    kernel: str | None = None
    hook: str | None = None
    """sha256 of what a node runs when its machine is taken away, empty for nothing; None where no machine is."""


def wanted(plan: Plan, group: PlannedGroup, stamp: str, units: Sequence[str]) -> Wanted:
    """What the lock, the catalogue and cluster.yaml want of this group's nodes."""
    stack = group.stack
    kernel = None if plan.simulated else stack.kernel
    timers = (HEALTH_TIMER,) if plan.spec.monitoring.health_check is not None else ()
    return Wanted(stamp, stack.packages, stack.images, (*units, *timers), stack.os, kernel,
                  digest(plan) if INTERRUPTION in units else None)  # fmt: skip


def fingerprint(plan: Plan, group: str, role_variables: dict[str, Any]) -> str:
    """What a node of this group is configured from: the roles' text, the group's variables, the provider's."""
    variables = group_variables(group, plan)
    if variables["gpuprov_interruption"] is not None:
        # The hook is looked at itself (_hook), so that another one costs its role alone.
        variables["gpuprov_interruption"] = {**variables["gpuprov_interruption"], "hook": None}
    content = json.dumps([variables, role_variables], sort_keys=True)
    return hashlib.sha256(f"{_roles()}{content}".encode()).hexdigest()[:32]


@cache
def _roles() -> str:
    digest, root = hashlib.sha256(), paths.data("ansible")
    for file in sorted(root.rglob("*")):
        if file.is_file() and file.suffix in (".yml", ".py", ".j2"):
            digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def stamps(plan: Plan, role_variables: dict[str, Any]) -> dict[str, str]:
    """Group → fingerprint."""
    return {group.name: fingerprint(plan, group.name, role_variables) for group in plan.groups}


def differences(bundle: Bundle, lock: Wanted) -> tuple[Difference, ...]:
    """Everything on the node that is not as wanted, most telling first; empty for a node that is what the lock says."""
    if bundle.error:
        return (Difference("unknown", "node", None, None, f"it could not be asked: {bundle.error}"),)
    facts = read(bundle)
    return tuple(
        difference
        for look in (_stamp, _packages, _holds, _units, _shared, _hook, _images, _updates, _system, _kernel)
        for difference in look(facts, lock)
    )


@cache
def playbook_tags() -> frozenset[str]:
    """The tags that playbooks/site.yml gives its roles: the parts and units that each has to do with."""
    text = (paths.data("ansible") / "playbooks" / "site.yml").read_text(encoding="utf-8")
    found: set[str] = set()
    for task in yaml.safe_load(text)[0]["tasks"]:
        tags = task.get("tags", [])
        found |= {tags} if isinstance(tags, str) else set(tags)
    return frozenset(found)


def tags(found: Iterable[Difference]) -> frozenset[str]:
    """The tags of the roles that mend these differences; empty where all roles have to run: for a driver, which others
    hang on, for what no single role answers for, and for what a role has no tag for."""
    parts = {difference.part for difference in found if difference.mended}
    whole = not parts or None in parts or "driver" in parts or not parts <= playbook_tags()
    return frozenset() if whole else frozenset(part for part in parts if part is not None)


def _unread(facts: Facts, name: str) -> Iterator[Difference]:
    yield Difference("unknown", name, None, None, f"{name}: {facts.source(name).reason or 'not in the bundle'}")


def _stamp(facts: Facts, lock: Wanted) -> Iterator[Difference]:
    if facts.stamp is None:
        yield from _unread(facts, "stamp.json")
    elif facts.stamp.fingerprint is None:
        yield Difference("stamp", "roles", lock.stamp, None, "not configured yet")
    elif facts.stamp.fingerprint != lock.stamp:
        found = facts.stamp.fingerprint
        yield Difference("stamp", "roles", lock.stamp, found, "configured by other roles or for other variables")


def _packages(facts: Facts, lock: Wanted) -> Iterator[Difference]:
    if facts.packages is None:
        yield from _unread(facts, "packages.txt")
        return
    for package in lock.packages:
        found = (facts.unfinished or {}).get(package.name) or facts.packages.get(package.name)
        if found != package.version:
            message = f"{package.name} is {found or 'not installed'}, locked {package.version}"
            yield Difference("package", package.name, package.version, found, message, package.part)


def _holds(facts: Facts, lock: Wanted) -> Iterator[Difference]:
    if facts.holds is None:
        yield from _unread(facts, "holds.txt")
        return
    held, there = set(facts.holds), facts.packages or {}
    for package in lock.packages:
        right = there.get(package.name) == package.version  # else the package itself is the difference
        if right and package.repository is not None and package.name not in held:
            yield Difference("hold", package.name, "hold", None, f"{package.name} is not held", package.part)


def _units(facts: Facts, lock: Wanted) -> Iterator[Difference]:
    if not lock.units:
        return
    if facts.units is None:
        yield from _unread(facts, "units.txt")
        return
    for name in lock.units:
        unit = facts.units.get(name)
        found = _state(unit)
        if found != "active":
            # A mount unit is called as its path: role mounts is tagged for all of them.
            part = MOUNTS if name.endswith(".mount") else name
            yield Difference("unit", name, "active", found, f"{name} is {found}", part)


def _state(unit: Unit | None) -> str:
    """What is wrong with a unit that should run, in words; "active" where nothing is."""
    if unit is None:
        return "unknown"
    if unit.load != "loaded":
        return unit.load
    if unit.active != "active":
        return unit.active
    return "active" if unit.enabled in ON else f"active, but {unit.enabled or 'unknown'} at boot"


def _shared(facts: Facts, lock: Wanted) -> Iterator[Difference]:
    """A bucket whose process has ended: the kernel keeps the mount, and systemd its unit as active."""
    if not any(name.endswith(".mount") for name in lock.units):
        return
    if facts.shared is None:
        yield from _unread(facts, "shared.json")
    for one in facts.shared or ():
        name = unit(one.path)
        if name in lock.units and os.strerror(errno.ENOTCONN) in one.error:
            message = f"what served {one.path} has ended"
            yield Difference("unit", name, "active", "ended", message, MOUNTS)


def _hook(facts: Facts, lock: Wanted) -> Iterator[Difference]:
    if lock.hook is None:
        return
    if facts.interruption is None:
        yield from _unread(facts, "interruption.json")
    elif facts.interruption.digest != lock.hook:
        found = facts.interruption.digest
        message = "hooks.interrupted is another one on the node" if found else "hooks.interrupted is not on the node"
        message = message if lock.hook else "there is a hook on the node, and cluster.yaml has no hooks.interrupted"
        yield Difference("hook", "hooks.interrupted", lock.hook or None, found or None, message, INTERRUPTION)


def _images(facts: Facts, lock: Wanted) -> Iterator[Difference]:
    if not lock.images:
        return
    if facts.images is None:
        yield from _unread(facts, "container-images.json")
        return
    for image in lock.images:
        named = [i for i in facts.images if "@" in image.reference or tag(image.reference) in map(tag, i.tags)]
        if any(image.digest in i.digests for i in named):
            continue
        found = next((digest for i in named for digest in i.digests), named[0].id if named else None)
        message = f"{image.reference} is {found or 'not there'}, locked {image.digest}"
        yield Difference("image", image.reference, image.digest, found, message, "images")


def _updates(facts: Facts, lock: Wanted) -> Iterator[Difference]:
    driver = [package.name for package in lock.packages if package.part == "driver"]
    if not driver:
        return
    if facts.unattended is None:
        if facts.source("unattended.txt").state != "missing":  # no apt at all: nothing that could move a package
            yield from _unread(facts, "unattended.txt")
        return
    free = [name for name in driver if not facts.unattended.spares(name)]
    if facts.unattended.periodic and free:
        message = f"unattended-upgrades may move {', '.join(free[:3])}: its Package-Blacklist does not name it"
        yield Difference("updates", "unattended-upgrades", "keeps off the stack", "on", message)


def _system(facts: Facts, lock: Wanted) -> Iterator[Difference]:
    if facts.system is None:
        yield from _unread(facts, "os-release.txt")
    elif facts.system.name != lock.system:
        message = f"{facts.system.name} runs, the lock is for {lock.system}"
        yield Difference("system", "system", lock.system, facts.system.name, message, mended=False)


def _kernel(facts: Facts, lock: Wanted) -> Iterator[Difference]:
    if facts.kernel is None:
        yield from _unread(facts, "kernel.txt")
        return
    if lock.kernel is not None and not is_kernel(facts.kernel, lock.kernel):
        message = f"kernel {facts.kernel} is running, locked {lock.kernel}"
        yield Difference("kernel", "kernel", lock.kernel, facts.kernel, message)
    newest = newest_kernel(facts.packages or ())
    if f"linux-image-{facts.kernel}" in (facts.packages or {}) and newest not in (None, facts.kernel, lock.kernel):
        message = f"kernel {newest} is installed and waits for a reboot; {facts.kernel} is running"
        yield Difference("reboot", "kernel", facts.kernel, newest, message, mended=False)
    if facts.reboot is None:
        yield from _unread(facts, "reboot.txt")
    elif facts.reboot:
        yield Difference("reboot", "system", None, facts.reboot, f"{facts.reboot} asks for a reboot", mended=False)
