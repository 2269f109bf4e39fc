"""Every file of the run directory, and which of them the operators of a cluster share (docs/guides/operators.md)."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Sharing = Literal["shared", "if there is room", "local"]
"""shared: every operator has it. if there is room: it is left out where all would be larger than the store takes.
local: it is of this machine alone."""

WhenDamaged = Literal["refused", "ignored", "made again", ""]
"""refused: commands that need it end with an error that names the file. ignored: what is damaged of it counts as
missing. made again: the next `up` writes it. Empty: there is no rule."""


@dataclass(frozen=True, slots=True)
class RunFile:
    """`pattern`: below the run directory, where `*` is a part of one name. `by_node`: it has one row for each node."""

    pattern: str
    holds: str
    sharing: Sharing = "local"
    by_node: bool = False
    damaged: WhenDamaged = ""


MEASURES, PAGE = "measures.jsonl", "runs/*/report.html"
FILES = (
    RunFile("id", "what tells this cluster from others of its name", "shared", damaged="refused"),
    RunFile("nodes.json", "the nodes: group, site, machine, addresses", "shared", damaged="refused"),
    RunFile(
        "intent.json", "what `up` was about to create, and the chosen site of each group", "shared", damaged="ignored"
    ),
    RunFile("state.json", "stage and last verdict of each node", "shared", damaged="ignored"),
    RunFile("applied.json", "the lock that each node was proven with", "shared", by_node=True, damaged="refused"),
    RunFile("locks/*.lock", "the locks that nodes run", "shared", damaged="refused"),
    RunFile("quarantine.json", "nodes in quarantine, with owner and reason", "shared", by_node=True, damaged="refused"),
    RunFile("replace.json", "replacements in progress", "shared", by_node=True, damaged="refused"),
    RunFile(
        "upgrade.json", "the upgrade in progress, and what was rolled back", "shared", by_node=True, damaged="refused"
    ),
    RunFile(
        "maintenance.json", "the maintenance in progress, or the last one", "shared", by_node=True, damaged="refused"
    ),
    RunFile("maintained.json", "the last maintenance of each node", "shared", by_node=True, damaged="refused"),
    RunFile("acknowledged.json", "acknowledged warnings", "shared", damaged="refused"),
    RunFile("baseline.json", "what each node measured when it was saved as the baseline", "shared", damaged="refused"),
    RunFile("bench.json", "what benchmarks reached when they were saved as the baseline", "shared", damaged="refused"),
    RunFile(MEASURES, "what nodes measured in earlier runs", "if there is room", damaged="ignored"),
    RunFile("inventory.yml", "Ansible's inventory", "shared", damaged="made again"),
    RunFile("ssh/pins.json", "the pinned host key of each node", "shared", damaged="refused"),
    RunFile("sites/*/provider", "the provider that created the site's machines", "shared"),
    RunFile(
        "sites/*/site.json",
        "the site's block of cluster.yaml when its machines were created",
        "shared",
        damaged="refused",
    ),
    RunFile("sites/*/account", "the account that owns the site's machines", "shared"),
    RunFile("sites/*/capacity.json", "zones and capacity kinds that were tried", "shared", damaged="ignored"),
    RunFile("sites/*/bmc.json", "installations through BMCs", "shared", damaged="refused"),
    RunFile("sites/*/netboot.json", "installations over the network", "shared", damaged="refused"),
    RunFile("sites/*/leaving", "hosts that a `down` is giving back", "shared"),
    RunFile("sites/*/left", "hosts that a `down` has given back", "shared"),
    RunFile("sites/*/.terraform.lock.hcl", "checksums of Terraform's providers", "shared"),
    RunFile("runs/*/report.json", "the report of a run; the last one is shared", "if there is room", damaged="ignored"),
    RunFile("runs/*/report.xml", "the same as JUnit", "if there is room"),
    RunFile(PAGE, "the same as a page, made on each machine"),
    RunFile("runs/*/events.jsonl", "the events of a run"),
    RunFile("runs/*/*.log", "output of Terraform"),
    RunFile("runs/*/ansible*/*", "output of Ansible"),
    RunFile("runs/*/bundles/*", "what each node answered"),
    RunFile("runs/*/second-boot/*", "what it answered after a reboot (`verify.reboot`)"),
    RunFile("runs/*/console-*.txt", "the console of a machine that did not answer"),
    RunFile("cluster.yaml", "the file as it was when machines were created"),
    RunFile("cluster.lock", "the lock of a sandbox"),
    RunFile("folder", "the folder of the run directory, which a copy of it does not have"),
    RunFile("shared.json", "what this machine last read and sent of the shared files"),
    RunFile("holder.json", "the run in progress"),
    RunFile("run.lock", "the lock of a run in progress"),
    RunFile("state.json.lock", "the lock of state.json"),
    RunFile("bmc_pins.json", "certificates of BMCs"),
    RunFile("bmc_seen*.json", "event log entries of BMCs that were reported"),
    RunFile("looks/*", "the last answer of each node"),
    RunFile("known_hosts", "host keys as ssh reads them"),
    RunFile("ssh/*", "configuration, key and sockets of ssh"),
    RunFile("sites/*/main.tf", "Terraform's root module"),
    RunFile("sites/*/module/*", "a copy of the provider's module"),
    RunFile("sites/*/terraform.tfstate*", "Terraform's state, where it is kept on this machine"),
    RunFile("sites/*/errored.tfstate", "a state that Terraform could not store"),
    RunFile("sites/*/plan.bin", "Terraform's plan"),
    RunFile("sites/*/applying", "an apply is in progress"),
    RunFile("sites/*/hosts", "the site's machines existed before"),
    RunFile("sites/*/machines", "since when each machine has cost money"),
    RunFile("sites/*/.terraform/*", "Terraform's providers and modules"),
    RunFile("sites/*/images/*", "installation images, while they are in use"),
    RunFile("sites/*/netboot/*", "what netboot serves"),
    RunFile("sites/*/dnsmasq.conf", "configuration of dnsmasq for netboot"),
    RunFile("monitoring/*", "rules and targets of head nodes, as `up` sends them"),
    RunFile("suite/*", "the acceptance suite"),
    RunFile("builds/*", "builds of golden images in progress"),
    RunFile("disks/*", "disks of golden images"),
    RunFile("book/*", "builds and channels of a sandbox"),
)

REPORTS = tuple(row.pattern for row in FILES if row.sharing == "if there is room" and row.pattern != MEASURES)
"""The last run's report, in the forms that are data."""
SHARED = tuple(row.pattern for row in FILES if row.sharing != "local" and row.pattern not in REPORTS)
"""What is shared beside the last run's report. Nothing else is ever written from there."""
OPTIONAL = ((MEASURES,), REPORTS)
"""Files that are left out, in this order, where all would be larger than the store takes: they decide nothing. What is
missing of them in the store stays in the run directory."""
BY_NODE = tuple(row.pattern for row in FILES if row.by_node)
_PART = re.compile(r"\.?[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""A folder or file: no .., nothing that a file system could not have."""


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of these patterns is that of a file, by its path below the run directory."""
    parts = name.split("/")
    if not all(_PART.fullmatch(part) for part in parts):
        return False
    return any(
        len(parts) == pattern.count("/") + 1 and all(map(fnmatch.fnmatchcase, parts, pattern.split("/")))
        for pattern in patterns
    )
