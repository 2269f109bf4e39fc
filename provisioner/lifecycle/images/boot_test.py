"""A new image on the machine that it is for: booted, configured, proven, and all that again after a reboot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from provisioner.common.errors import VerifyError
from provisioner.common.paths import write_whole
from provisioner.lifecycle import diff, second_boot, up, verifying
from provisioner.lifecycle.images.manifest import Proof
from provisioner.lifecycle.session import Cluster
from provisioner.machines.terraform.binary import Binary
from provisioner.stack import lockfile, request
from provisioner.stack.models import GoldenImage, Lock

if TYPE_CHECKING:
    from provisioner.verify.results import Report


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
            second_boot.reboot(cluster, node)
        compared = diff.compare(cluster)
        verdict = verifying.verify_fleet(cluster, compared)
        proofs.append(_proof(cluster, verdict.report, verdict.healthy, folder, number, verdict.page))
    return proofs


def _proof(cluster: Cluster, report: Report, healthy: bool, folder: Path, boot: int, page: Path | None) -> Proof:
    """Keep the report with the build. Raises VerifyError where it is not healthy."""
    (node,) = report.nodes
    name = f"{node.group}-boot-{boot}.json"
    if page is not None:
        for source in (page.with_suffix(".json"), page):
            write_whole((folder / name).with_suffix(source.suffix), source.read_text(encoding="utf-8"), mode=0o644)
    if not healthy:
        message = f"boot {boot} of the image on {node.machine}: {node.why}"
        raise VerifyError(message, where=cluster.spec.name, hint=f"the report: {folder / name}")
    count = {status: sum(c.status == status for c in node.checks) for status in ("pass", "fail", "unknown")}
    return Proof(
        machine=node.machine, node=node.name, level=cluster.spec.verify.level, report=name, passed=count["pass"],
        warned=count["fail"], unknown=count["unknown"],
    )  # fmt: skip
