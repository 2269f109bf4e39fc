"""The shape of `gpuprov status --json`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioner.documents.base import OpenOutput
from provisioner.documents.cost import SpentOutput
from provisioner.documents.drift import DriftOutput
from provisioner.documents.report import QuarantineOutput


class NodeUpgrade(OpenOutput):
    """Where a node is in an upgrade."""

    step: Literal[
        "waiting", "draining", "drained", "proven", "moved", "leaving", "failed", "back", "rolled-back", "left", "stuck"
    ]
    reason: str = Field(description="Why, where something went wrong")


class NodeReplacement(OpenOutput):
    """How far the replacement of a node's machine is."""

    step: Literal["draining", "making", "proving"]


class StatusBmc(OpenOutput):
    """What a machine's BMC says of it."""

    power: str | None = Field(description="On, Off …; null where the BMC does not say, or was not read")
    health: str | None = Field(description="OK, Warning or Critical; null as for power")
    error: str | None = Field(description="Why the BMC was not read")


class StatusNode(OpenOutput):
    name: str
    group: str
    site: str
    machine: str
    address: str | None
    stage: str
    ok: bool | None
    drift: list[DriftOutput] | None = Field(
        default=None, description="What is not as the node's lock says; null where it was not asked or did not answer"
    )
    lock: str | None = Field(default=None, description="The lock that it runs, by gpuprov's id")
    driver: str | None = Field(default=None, description="The driver of that lock")
    waiting: list[str] = Field(default=[], description="What `gpuprov upgrade` would change")
    upgrade: NodeUpgrade | None = Field(default=None, description="null where no upgrade is under way")
    quarantine: QuarantineOutput | None = Field(default=None, description="null where it is in none")
    replace: NodeReplacement | None = Field(default=None, description="null where its machine is not being replaced")
    bmc: StatusBmc | None = Field(default=None, description="null where it has no BMC, or nobody was asked")


class StatusUpgrade(OpenOutput):
    """The last upgrade."""

    phase: Literal["moving", "rolling-back", "done", "rolled-back"]
    to: str = Field(description="The lock's id")
    reason: str = Field(description="Why it was rolled back")


class StatusOutput(OpenOutput):
    """`gpuprov status --json`"""

    cluster: str
    nodes: list[StatusNode]
    upgrade: StatusUpgrade | None = None
    cost: SpentOutput | None = Field(default=None, description="null for a rehearsal, and where nothing was made yet")
    ends: dict[str, str] = Field(
        default={}, description="By group: when its capacity block ends, ISO 8601, as the last `up` was told"
    )
    failed: dict[str, str] = Field(default={}, description="By site: what the last `up` failed with there")
