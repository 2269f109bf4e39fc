"""File systems of the network, which all nodes of a site share."""

from __future__ import annotations

from collections.abc import Mapping

from provisioner.verify.check import check, fail, saw, unknown
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.shared import Shared


@check(
    "storage.shared",
    severity="fatal",
    documented="/proc/self/mountinfo, proc(5); cluster.yaml asks for the mount; github facebookresearch/gcm, mej/nhc",
    action="reconfigure",
    needs=("shared.json",),
    applies=lambda e: e.shared,
    otherwise="no file system of the network is expected: none is asked for, or it is a rehearsal, which makes none",
    says="A shared file system is not mounted, is another one, or does not answer: data sets and checkpoints are not "
    "there. Look at the file system and its security group, at a bucket's policy and the node's role; `gpuprov up` "
    "mounts it.",
)
def test_shared(node: Facts, expected: Expected) -> None:
    there = {one.path: one for one in node.shared or ()}
    told_by = {one["path"]: _shared(one, there.get(one["path"])) for one in expected.shared}
    saw(expected={one["path"]: one["source"] for one in expected.shared}, actual=told_by)
    if wrong := [f"{path}: {said}" for path, said in told_by.items() if said != "answers"]:
        fail("; ".join(wrong))
    if unasked := [one["path"] for one in expected.shared if one["path"] not in there]:
        unknown(f"{', '.join(unasked)} was not asked")


def _shared(wanted: Mapping[str, str], found: Shared | None) -> str:
    """What is wrong at one path; "answers" where nothing is, or nobody knows."""
    if not wanted["source"]:
        return "Terraform has not made it yet"
    if found is None:
        return "answers"
    if found.mount is None:
        return "nothing is mounted"
    mount = found.mount
    if not _is(mount.device, wanted["shows_source"]) or mount.kind != wanted["shows_type"]:
        return f"{mount.device} ({mount.kind}) is mounted, not {wanted['source']} ({wanted['type']})"
    if found.hung:
        return f"no answer within {found.seconds or 0:.0f} s"
    if found.status != 0:
        return f"read error: {found.error or f'status {found.status}'}"
    if mount.kind == "fuse" and found.serves != wanted["source"]:
        return f"{found.serves or 'an unknown bucket'} is mounted, not {wanted['source']}"
    if mount.read_only and wanted["access"] == "rw":
        return "it is mounted read-only"
    if not mount.read_only and wanted["access"] == "ro":
        return "it is mounted for writing, which cluster.yaml does not allow"
    return found.unwritten or "answers"


def _is(source: str, shown: str) -> bool:
    """Whether the kernel shows what it has to; what stands for a leading `*` nobody can know before."""
    return source.endswith(shown[1:]) if shown.startswith("*") else source == shown
