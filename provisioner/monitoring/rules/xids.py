"""Alerts on Xids that dcgm-exporter shows. The kernel log is the first witness (check gpu.xid): DCGM keeps the last Xid
for ever and shows the second of two equal ones not at all (NVIDIA/dcgm-exporter#500, NVIDIA/DCGM#277)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from provisioner import catalog
from provisioner.catalog.models import Xid
from provisioner.common.text import counted
from provisioner.monitoring.fleet import WatchedFleet, WatchedGroup
from provisioner.monitoring.models import AlertRule, RecordingRule, RuleGroup
from provisioner.monitoring.rules.gpus import XID, absence_name
from provisioner.monitoring.rules.series import VERIFY, constant, on_gpu, samples, select

WINDOW = "5m"
KEEP = "30m"


def rule_group(fleet: WatchedFleet) -> RuleGroup | None:
    """A rule for each severity and action of the catalogue's Xids, and one for codes that it does not have. None where
    no node exports DCGM's metrics."""
    group = next(iter(fleet.dcgm_groups), None)
    return RuleGroup(f"gpuprov-xids-{fleet.cluster}", tuple(_rules(fleet, group))) if group is not None else None


NEW = "gpuprov:xid_new"
"""The last Xid of each GPU that had one within WINDOW: so few series that comparing them with each code costs nothing,
where all GPUs of a thousand nodes took half a minute."""


def _rules(fleet: WatchedFleet, group: WatchedGroup) -> Iterator[AlertRule | RecordingRule]:
    xids = catalog.load().xids()
    kinds = sorted({(xid.severity, xid.action) for xid in xids if xid.severity != "info"})
    last, new = select(fleet, XID), select(fleet, NEW)
    yield RecordingRule(NEW, f"{last} > 0 and changes({last}[{WINDOW}]) > 0", "the new Xid of a GPU, its code")
    for severity, action in kinds:
        of_kind = [xid for xid in xids if (xid.severity, xid.action) == (severity, action)]
        name = "GpuXid" + action.capitalize() if severity == "fatal" else f"GpuXidWarning{action.capitalize()}"
        yield _rule(
            fleet, group, name,
            " or ".join(f"{new} == {xid.code}" for xid in of_kind),
            fatal=severity == "fatal", action=action, code=of_kind[0].code, description=_listing(of_kind),
        )  # fmt: skip
    known = " unless ".join(f"{new} == {xid.code}" for xid in xids)
    unlisted = max(xid.code for xid in xids) + 1
    yield _rule(
        fleet, group, "GpuXidUnknown",
        f"{new} unless {known}",
        fatal=False, action="vendor", code=unlisted, description="The catalogue has no such Xid: ask NVIDIA.",
    )  # fmt: skip


def _rule(
    fleet: WatchedFleet, group: WatchedGroup, name: str, expr: str, *, fatal: bool, action: str, code: int,
    description: str,
) -> AlertRule:  # fmt: skip
    return AlertRule(
        name=name,
        expr=expr,
        pending="0s",
        severity="page" if fatal else "ticket",
        summary=f"{{{{ $labels.node }}}}: GPU {{{{ $labels.gpu }}}} had an Xid; action {action}",
        description=description,
        doc='runbook "gpu.xid"',
        command=VERIFY,
        basis="NVIDIA Xid catalogue",
        # the same code all along is old, and a change between two scrapes is new
        firing=(on_gpu(fleet, group, XID, f"0x{samples(300)} {constant(str(code))}"),),
        silent=(on_gpu(fleet, group, XID, constant(code)),),
        fires_at_s=420,
        twin=absence_name(XID),
        keep_firing_for=KEEP,
    )


def _listing(xids: Sequence[Xid]) -> str:
    codes = ", ".join(str(xid.code) for xid in xids)
    return f"{counted(len(xids), 'Xid code')} ({codes}). `gpuprov docs runbook` says more of each."
