"""The shape of `gpuprov plan --json`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioner.output.base import OpenOutput
from provisioner.output.cost import PlannedCost
from provisioner.output.drift import DriftOutput
from provisioner.output.site_choice import SiteChoiceOutput


class PlannedNode(OpenOutput):
    """One node that is wanted."""

    name: str
    group: str
    site: str
    machine: str
    drift: list[DriftOutput] | None = Field(
        default=None, description="What `up` would mend; null where there is no node yet, or it did not answer"
    )
    reboot: bool | None = Field(default=None, description="Whether it will have to reboot for that")
    waiting: list[str] = Field(default=[], description="What only `gpuprov upgrade` would change")


class SiteChanges(OpenOutput):
    """What Terraform would do at a site: numbers of resources."""

    add: int = Field(ge=0)
    change: int = Field(ge=0)
    destroy: int = Field(ge=0)


class SharedChange(OpenOutput):
    """A change of something that belongs to no node."""

    action: str = Field(description="create, update, replace or delete")
    resource: str = Field(description="Terraform's address, or what a person calls it")


class MachineChanges(OpenOutput):
    """What would be done to machines: names of nodes."""

    create: list[str] = Field(default=[], description="There is none of that name yet")
    recreate: list[str] = Field(default=[], description="Another machine takes the place of one that is known")
    change: list[str] = Field(default=[], description="The machine stays, and something of it changes")
    remove: list[str] = Field(default=[], description="cluster.yaml wants it no more")


class PlannedStack(OpenOutput):
    """Versions that would be installed; null where the machine has no such thing."""

    driver: str | None
    cuda: str | None
    nccl: str | None


class FindingOutput(OpenOutput):
    """One preflight finding."""

    status: Literal["ok", "warning", "blocks", "unknown"] = Field(description="blocks: `up` refuses while it stands")
    subject: str
    message: str
    action: str


class PlanOutput(OpenOutput):
    """`gpuprov plan --json`"""

    cluster: str
    sandbox: bool
    nodes: list[PlannedNode]
    machines: MachineChanges = MachineChanges()
    reasons: dict[str, str] = Field(default={}, description="By node: why its machine is recreated, if known")
    changes: dict[str, SiteChanges] = Field(description="By site")
    shared: dict[str, list[SharedChange]] = Field(default={}, description="By site: changes that are of no node")
    images: dict[str, str] = Field(default={}, description="By group: the golden image and its build")
    stack: dict[str, PlannedStack] = Field(description="By group")
    new_lock: bool = Field(
        default=False, description="Whether there is no cluster.lock yet: `gpuprov lock` or `up` writes it"
    )
    lock_file: str = Field(default="", description="Path of the lock")
    ends: dict[str, str] = Field(
        default={}, description="By group: when its capacity block ends, ISO 8601; its machines end a little before"
    )
    findings: list[FindingOutput]
    site_choices: list[SiteChoiceOutput] = Field(
        default=[], description="Of each group with a list of sites: which one was chosen, and why the others were not"
    )
    cost: PlannedCost | None = Field(default=None, description="By list prices; null for a sandbox")
