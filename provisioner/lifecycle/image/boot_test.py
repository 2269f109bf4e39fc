"""A new image on the machine that it is for: booted, configured, proven, and all that again after a reboot."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from provisioner import ssh
from provisioner.errors import GpuprovError, VerifyError
from provisioner.fleet import Node
from provisioner.images.manifest import Proof
from provisioner.lifecycle import diff, up, verifying
from provisioner.paths import write_whole
from provisioner.session import Cluster
from provisioner.stack import lockfile, request
from provisioner.stack.models import GoldenImage, Lock
from provisioner.workspace.binary import Binary

if TYPE_CHECKING:
    from provisioner.verify.results import Report

BOOT_ID = "systemctl show --property=UserspaceTimestamp --value"
"""Unlike the kernel's boot id it is also new where the kernel stays (a rehearsed node)."""
REBOOT_S = 1800.0
"""A machine with 2 TB of memory takes 15 minutes."""
SETTLED = "systemctl is-system-running || true"
STARTING = ("", "initializing", "starting")
"""States of a system whose services are not up yet (systemctl(1)). Its --wait is of no use: it misses an end that comes
while it subscribes."""


def lock_for(cluster: Cluster, group: str, built: Lock, image: GoldenImage) -> None:
    """Write the lock of the machine that is booted: the builder's versions, and the image."""
    lock = built.model_copy(update={"request": request(cluster.spec), "images": {group: image}, "bases": {}})
    lockfile.write(cluster.paths.user_lock, lock)


def prove(cluster: Cluster, binary: Binary, folder: Path, boots: int) -> list[Proof]:
    """Boot it, and again; a proof for each boot. `folder`: of the build, for reports. Raises VerifyError with the
    checks that failed."""
    run = up.up(cluster, binary, confirm=lambda _plan, _changes: True)
    assert run.report is not None
    proofs = [_proof(cluster, run.report, run.healthy, folder, 1, run.page)]
    for number in range(2, boots + 1):
        for node in cluster.nodes():
            reboot(cluster, node)
        compared = diff.compare(cluster)
        verdict = verifying.verify_fleet(cluster, compared)
        proofs.append(_proof(cluster, verdict.report, verdict.healthy, folder, number, verdict.page))
    return proofs


def reboot(cluster: Cluster, node: Node) -> None:
    """Reboot a node and wait until its services are up. Raises GpuprovError where it does not come back."""
    cluster.events("verify", "log", f"rebooting {node.name}", node=node.name)
    before = ask(cluster, node, BOOT_ID)
    if not before:
        raise GpuprovError("it does not answer", where=node.name)
    ask(cluster, node, "sudo -n systemctl reboot")
    until = time.monotonic() + REBOOT_S
    while time.monotonic() < until:
        time.sleep(0.5)
        ssh.disconnect(cluster.paths, [node.name])
        now = ask(cluster, node, BOOT_ID)
        if now and now != before and ask(cluster, node, SETTLED) not in STARTING:
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


def ask(cluster: Cluster, node: Node, command: str, seconds: float = 30) -> str:
    """What a command prints on a node; empty where it did not answer."""
    argv = [*ssh.argv(cluster.paths, node.name, "-o", "ConnectTimeout=10"), command]
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _proof(cluster: Cluster, report: Report, healthy: bool, folder: Path, boot: int, page: Path | None) -> Proof:
    """Keep the report with the build. Raises VerifyError where it is not healthy."""
    (node,) = report.nodes
    name = f"{node.group}-boot-{boot}.json"
    if page is not None:
        for source in (page.with_suffix(".json"), page):
            write_whole((folder / name).with_suffix(source.suffix), source.read_text(encoding="utf-8"), mode=0o644)
    if not healthy:
        said = f"boot {boot} of the image on {node.machine}: {node.why}"
        raise VerifyError(said, where=cluster.spec.name, hint=f"the report: {folder / name}")
    count = {status: sum(c.status == status for c in node.checks) for status in ("pass", "fail", "unknown")}
    return Proof(
        machine=node.machine, node=node.name, level=cluster.spec.verify.level, report=name, passed=count["pass"],
        warned=count["fail"], unknown=count["unknown"],
    )  # fmt: skip
