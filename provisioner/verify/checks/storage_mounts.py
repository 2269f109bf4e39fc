"""What /etc/fstab promises, and filesystems in user space that no longer keep up."""

from __future__ import annotations

from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.checks.host import NEEDS, host_of, reported
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts

NOWHERE = ("none", "swap", "ignore")
OPTIONAL = ("noauto", "nofail", "x-systemd.automount")
"""Options of what may be missing (fstab(5), systemd.mount(5))."""


@check(
    "storage.fstab",
    severity="fatal",
    documented="fstab(5); github facebookresearch/gcm check-storage mountpoints",
    action="reconfigure",
    needs=NEEDS,
    follows=("storage.scratch", "storage.shared"),
    says="A filesystem of /etc/fstab is not mounted, and it is not optional there. What jobs write to its path "
    "fills the root disk. `mount -a` shows the reason.",
)
def test_fstab(node: Facts) -> None:
    host = host_of(node)
    if host.fstab is None:
        skip("there is no /etc/fstab")
    mounted = {mount.place for mount in reported(host.mounts, "its mounts")}
    rows = [row for row in host.fstab if row.place.startswith("/") and row.kind not in NOWHERE]
    missing = [row for row in rows if (row.place.rstrip("/") or "/") not in mounted]
    fatal = [row.place for row in missing if not set(OPTIONAL) & set(row.options)]
    optional = [row.place for row in missing if row.place not in fatal]
    saw(
        expected=f"{len(rows)} mounted",
        actual=[row.place for row in missing] or f"{len(rows)} mounted",
        note=f"not mounted, and may be missing: {', '.join(optional[:4])}" if optional else "",
    )
    if fatal:
        fail(f"not mounted: {', '.join(fatal[:4])}")


# Nothing is written there, as on those that cluster.yaml names (storage.shared): gpuprov does not know who may.
@check(
    "storage.network",
    severity="fatal",
    documented="statfs(2), nfs(5): hard mounts hold who touches them; github leptonai/gpud nfs, facebookresearch/gcm "
    "check-storage",
    action="vendor",
    needs=NEEDS,
    follows=("storage.shared",),
    says="A network file system does not answer, and programs that touch it hang. Check its server, and the "
    "network in between.",
)
def test_network(node: Facts, expected: Expected) -> None:
    remote_mounts = host_of(node).remote
    if remote_mounts is None:
        skip("an older probe, which did not ask them")
    declared = {mount["path"] for mount in expected.shared}
    undeclared = [mount for mount in remote_mounts if mount.place not in declared]
    saw(expected="an answer of each", actual={mount.place: mount.fault or "answers" for mount in undeclared})
    if not undeclared:
        skip("none is mounted that cluster.yaml does not name")
    if wrong := [f"{mount.place} ({mount.kind}): {mount.fault}" for mount in undeclared if mount.fault]:
        fail("; ".join(wrong[:4]))


@check(
    "storage.fuse",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    applies=lambda e: not e.simulated,
    otherwise="a sandbox node shows this computer's kernel",
    says="Requests pile up at a filesystem in user space (a bucket, sshfs): what reads there stands still. Look at its "
    "process.",
)
def test_fuse(node: Facts, expected: Expected) -> None:
    connections, share = host_of(node).fuse, expected.most["fuse.share"]
    if not connections:
        skip("no filesystem in user space is mounted")
    counts = {
        f"connection {connection.name}": f"{connection.waiting} of {connection.most}" for connection in connections
    }
    saw(expected=f"{share:.0%} of max_background at most", actual=counts)
    if full := [f"connection {c.name}: {c.waiting} requests wait, {c.most} may"
                for c in connections if c.most and c.waiting > c.most * share]:  # fmt: skip
        fail("; ".join(full))
