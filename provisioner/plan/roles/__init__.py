"""What gpuprov knows of each Ansible role, one module a role, called as its folder in ansible/roles: the packages of
the lock that it installs, the systemd units that it leaves running, the inventory variables that are its own.

A role without a module here installs nothing of the lock and leaves no unit that is looked after.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from provisioner.catalog.models import Gpu, Machine
    from provisioner.plan.models import Plan, PlannedGroup
    from provisioner.spec.groups import Group
    from provisioner.stack.models import Stack


@dataclass(frozen=True, slots=True)
class Target:
    """What decides which units run on a node: its machine type, its stack, its group in cluster.yaml."""

    machine: Machine
    gpu: Gpu
    stack: Stack
    group: Group

    def has(self, part: str) -> bool:
        """Whether the lock has that part for it, installed by a role or brought by its image."""
        return self.stack.has(part)


def _none(_group: PlannedGroup, _plan: Plan) -> dict[str, Any]:
    return {}


def always(_: Target) -> bool:
    """The condition of a unit that runs wherever the role does."""
    return True


@dataclass(frozen=True, slots=True)
class Role:
    """One role.

    `parts`: of the lock, whose packages it installs. `units`: systemd units that it leaves enabled and active → where.
    `variables`: the inventory variables that it is given beside those of every role (configure/inventory.py).
    `depends_on`: variable → what of it the role depends on, for a variable that it does not use whole.
    `all_package_names`: it depends on the names of all packages of the lock, not only on its own parts.
    `others_follow`: all roles run again where it runs for another package or another text.
    """

    parts: tuple[str, ...] = ()
    units: Mapping[str, Callable[[Target], bool]] = field(default_factory=dict)
    variables: Callable[[PlannedGroup, Plan], dict[str, Any]] = _none
    depends_on: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    all_package_names: bool = False
    others_follow: bool = False


@cache
def registry() -> Mapping[str, Role]:
    """Name → role, for all roles that have a module here."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return MappingProxyType({name: importlib.import_module(f"{__name__}.{name}").ROLE for name in names})


def get(name: str) -> Role:
    """What is known of a role; an empty Role where it has no module."""
    return registry().get(name, Role())


def units(machine: Machine, gpu: Gpu, stack: Stack, group: Group) -> tuple[str, ...]:
    """The systemd units that the roles leave enabled and active on such a node."""
    target = Target(machine, gpu, stack, group)
    return tuple(unit for role in registry().values() for unit, runs in role.units.items() if runs(target))


def of_part(part: str) -> str | None:
    """The role that installs a part of the lock."""
    return next((name for name, role in registry().items() if part in role.parts), None)


def of_unit(unit: str) -> str | None:
    """The role that starts a unit."""
    if unit.endswith(".mount"):
        return "mounts"  # called as the path that it mounts
    return next((name for name, role in registry().items() if unit in role.units), None)
