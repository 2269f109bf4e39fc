"""`verify.reboot`: machines that were never handed over boot a second time and are proven again before they are.

What is right only until the next boot (a module of another kernel, a service that nobody enabled, a disk that is not
mounted again) is found here and not when a job has run for a day. A machine that was proven before is left alone: a
job may run there.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from provisioner.common import bounded
from provisioner.common.errors import GpuprovError
from provisioner.common.events import Stage
from provisioner.common.text import counted
from provisioner.lifecycle.session import Cluster
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger
from provisioner.transport import ssh, ssh_config, ssh_sockets

if TYPE_CHECKING:
    from provisioner.verify.results import NodeReport, Report

BOOT_ID = "systemctl show --property=UserspaceTimestamp --value"
"""Unlike the kernel's boot id it is also new where the kernel stays (a sandbox node)."""
REBOOT_S = 1800.0
"""A machine with 2 TB of memory takes 15 minutes."""
SETTLED = "systemctl is-system-running || true"
STARTING = ("", "initializing", "starting")
"""States of a system whose services are not up yet (systemctl(1)). Its --wait is of no use: it misses an end that comes
while it subscribes."""
ANSWER_S = 30
HOLDERS = (
    "if command -v nvidia-smi >/dev/null; then nvidia-smi --query-compute-apps=pid,process_name --format=csv,noheader; "
    "else ls /sys/class/kfd/kfd/proc; fi && echo asked"
)
"""Processes that have the GPUs, one in a line, then "asked": without it nobody knows."""
PARALLEL = 64
"""Machines that boot at once."""


def chosen(cluster: Cluster, report: Report, nodes: Sequence[Node]) -> list[Node]:
    """Which machines boot again after this first verdict: of those that are healthy and were never handed over (no
    release of them is in the ledger) the first one of each group, or all."""
    policy, ledger = cluster.spec.verify.reboot, Ledger(cluster.paths)
    if policy == "never":
        return []
    healthy = {node.name for node in report.nodes if node.ok}
    new = [node for node in nodes if node.name in healthy and ledger.of(node) is None]
    local_nodes = [node for node in new if node.name in ssh_config.local(cluster.paths)]
    for node in local_nodes:
        message = "it is the machine that gpuprov runs on: reboot it yourself, then run `gpuprov verify`"
        cluster.events("verify", "warning", f"verify.reboot: {message}", node=node.name)
    new = [node for node in new if node not in local_nodes]
    return new if policy == "all" else list({node.group: node for node in reversed(new)}.values())


def free(cluster: Cluster, nodes: Sequence[Node]) -> list[Node]:
    """Those of them whose GPUs no process has; the others are left running, and a warning says so. A machine of one's
    own may have worked long before gpuprov came."""
    reasons = gpu_holders(cluster, nodes)
    for name, reason in reasons.items():
        cluster.events("verify", "warning", f"verify.reboot: not rebooted: {reason}", node=name)
    return [node for node in nodes if node.name not in reasons]


def gpu_holders(cluster: Cluster, nodes: Sequence[Node]) -> dict[str, str]:
    """Node → which processes have its GPUs, or that nobody can tell; a node whose GPUs are free is not in it."""

    def holders_of(node: Node) -> str:
        *holders, last = ask(cluster, node, HOLDERS).splitlines() or [""]
        if last.strip() != "asked":
            return "nobody can tell whether a process has its GPUs"
        return f"a process has its GPUs: {', '.join(holders[:3])}" if holders else ""

    with ThreadPoolExecutor(PARALLEL) as pool:
        reasons = dict(zip([node.name for node in nodes], pool.map(holders_of, nodes), strict=True))
    return {name: reason for name, reason in reasons.items() if reason}


def reboot(cluster: Cluster, node: Node, stage: Stage = "verify") -> None:
    """Reboot a node and wait until its services are up. Raises GpuprovError where it does not come back."""
    cluster.events(stage, "log", f"rebooting {node.name}", node=node.name)
    old_boot = ask(cluster, node, BOOT_ID)
    if not old_boot:
        raise GpuprovError("it does not answer", where=node.name)
    ask(cluster, node, "sudo -n systemctl reboot")
    until = time.monotonic() + REBOOT_S
    while time.monotonic() < until:
        time.sleep(0.5)
        ssh_sockets.disconnect(cluster.paths, [node.name])
        current_boot = ask(cluster, node, BOOT_ID)
        if current_boot and current_boot != old_boot and ask(cluster, node, SETTLED) not in STARTING:
            return
    raise GpuprovError(f"it did not come back within {REBOOT_S:.0f} s after a reboot", where=node.name)


def settle(cluster: Cluster, node: Node, seconds: float, look: Callable[[], None]) -> None:
    """Return once a machine's services are up. `look` is called meanwhile and raises where the machine is gone. Raises
    GpuprovError after so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        look()
        if ask(cluster, node, SETTLED) not in STARTING:
            return
        time.sleep(2)
    raise GpuprovError(
        f"its services are not up after {seconds:.0f} s", where=node.name, hint="look at its console's log"
    )


def reboot_all(
    cluster: Cluster, nodes: Sequence[Node], stage: Stage = "verify", kind: str = "new node"
) -> dict[str, str]:
    """Reboot them at once; node → why it was not seen to come back. `kind`: what they are called."""

    def reboot_one(node: Node) -> str:
        try:
            reboot(cluster, node, stage)
        except GpuprovError as error:
            return str(error.message)
        return ""

    message = f"rebooting {counted(len(nodes), kind)}, to prove {'it' if len(nodes) == 1 else 'them'} again"
    cluster.events(stage, "started", message, total=len(nodes), until=time.time() + REBOOT_S)
    with ThreadPoolExecutor(PARALLEL) as pool:
        failed = dict(zip([node.name for node in nodes], pool.map(reboot_one, nodes), strict=True))
    return {name: reason for name, reason in failed.items() if reason}


def merged(first: Report, second: Report, failed: Mapping[str, str]) -> Report:
    """One report: what was proven after the reboot takes the place of what was before it, but where a check needs the
    others of the group, who were looked at the first time alone. `failed`: node → why it did not come back."""
    second_verdicts = {node.name: node for node in second.nodes}
    nodes = tuple(
        _both(node, second_verdicts[node.name], failed) if node.name in second_verdicts else node
        for node in first.nodes
    )
    return replace(first, nodes=nodes, seconds={k: v + second.seconds.get(k, 0.0) for k, v in first.seconds.items()})


def _both(first: NodeReport, after: NodeReport, failed: Mapping[str, str]) -> NodeReport:
    if first.name in failed:
        return replace(after, error=f"after a reboot: {failed[first.name]}", lost=True)
    if after.error:
        return replace(after, error=f"after a reboot: {after.error}", lost=True)
    old = {check.id: check for check in first.checks}
    checks = [old[c.id] if c.status == "skip" and c.id in old else c for c in after.checks]
    checks = [replace(c, message=f"after a reboot: {c.message or c.says}") if c.condemns else c for c in checks]
    return replace(after, checks=tuple(checks))


def ask(cluster: Cluster, node: Node, command: str) -> str:
    """What a command prints on a node; empty where it did not answer."""
    argv = [*ssh.argv(cluster.paths, node.name, "-o", "ConnectTimeout=10"), command]
    try:
        done = bounded.run(argv, deadline_s=ANSWER_S)
    except (subprocess.TimeoutExpired, bounded.UnboundedOutputError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
