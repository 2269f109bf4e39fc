"""The shape of `gpuprov status --json`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from provisioner.output.base import Number, OpenOutput
from provisioner.output.cost import SpentOutput
from provisioner.output.drift import DriftOutput
from provisioner.output.report import QuarantineOutput
from provisioner.output.site_choice import SiteChoiceOutput


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


class StatusScheduler(OpenOutput):
    """What Slurm has of a node."""

    state: list[str] = Field(description="As scontrol has it: IDLE, DRAIN …; empty where Slurm was not asked")
    reason: str = Field(default="", description="Why it is out of service; gpuprov's own reasons begin with its name")
    user: str = Field(default="", description="Who took it out of service; slurm: slurmctld itself")
    is_ours: bool = Field(default=False, description="Whether gpuprov took it out of service")
    error: str | None = Field(default=None, description="Why Slurm was not asked")


class NodeMaintained(OpenOutput):
    """The last maintenance of a node."""

    at: str = Field(description="When, UTC")
    packages: dict[str, str] = Field(description="Package → version, of all that were in a set of its group")
    waiting: dict[str, str] = Field(description="Security updates that were not taken: package → why")
    freed: int = Field(description="Bytes freed")
    rebooted: str = Field(description="Why it was rebooted; empty where it was not")
    due: str = Field(description="Why a reboot was due and not done; empty where none was")


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
    maintained: NodeMaintained | None = Field(default=None, description="null where it had no maintenance")
    bmc: StatusBmc | None = Field(default=None, description="null where it has no BMC, or nobody was asked")
    scheduler: StatusScheduler | None = Field(
        default=None, description="null where there is no scheduler, on a node that it does not know, or with --offline"
    )


class StatusUpgrade(OpenOutput):
    """The last upgrade."""

    phase: Literal["moving", "rolling-back", "done", "rolled-back"]
    to: str = Field(description="The lock's id")
    reason: str = Field(description="Why it was rolled back")


class PartialReport(OpenOutput):
    """A report of `replace`: of some nodes alone, and newer than the fleet's."""

    report: str = Field(description="Path of the page")
    nodes: list[str]


class StatusRun(OpenOutput):
    """The newest run that held the cluster's lock on this computer."""

    command: str
    state: Literal["at work", "done", "interrupted", "failed", "killed"]
    stage: str = Field(description="The stage that it has begun last; empty before the first")
    since: Number = Field(description="When it began, in seconds since 1970")
    process: int | None = Field(description="Of a run at work, else null")
    user: str = Field(description="Whose it is, of a run at work; empty where that is not known")


class ClusterOutput(OpenOutput):
    cluster: str
    sandbox: bool
    file: str | None = Field(description="Its cluster.yaml; null where none beside it has its name")
    nodes: int | None = Field(description="Machines that there are; null where nodes.json cannot be read")
    healthy: int = Field(description="How many of them were healthy when they were last verified")
    run: StatusRun | None = None
    created_from: str | None = Field(
        default=None, description="The file of which its machines were created; null where none was recorded"
    )
    renamed_to: str | None = Field(
        default=None, description="The name that this file has for its cluster now, where that is another one"
    )


class ClustersOutput(OpenOutput):
    """`gpuprov status --json` without a file"""

    clusters: list[ClusterOutput]


class StatusOutput(OpenOutput):
    """`gpuprov status --json`"""

    cluster: str
    sandbox: bool = Field(default=False, description="Whether it is the sandbox of the file's cluster")
    nodes: list[StatusNode]
    report: str | None = Field(default=None, description="Path of the last report's page; null where there is none")
    partial_report: PartialReport | None = Field(default=None, description="null where no later one is of some nodes")
    run: StatusRun | None = Field(default=None, description="null where there was none")
    upgrade: StatusUpgrade | None = None
    cost: SpentOutput | None = Field(default=None, description="null for a sandbox, and where nothing was made yet")
    ends: dict[str, str] = Field(
        default={}, description="By group: when its capacity block ends, ISO 8601, as the last `up` was told"
    )
    site_choices: list[SiteChoiceOutput] = Field(
        default=[], description="Of each group with a list of sites: which one was chosen, and why the others were not"
    )
    failed: dict[str, str] = Field(default={}, description="By site: what the last `up` failed with there")
    lock_changes: list[str] = Field(
        default=[], description="What FILE asks for otherwise than when the lock was made; empty where the lock fits"
    )
