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
    otherwise="no file system of the network is expected: none is asked for, or it is a sandbox, which makes none",
    says="A shared file system is not mounted, is another one, or does not answer: data sets and checkpoints are not "
    "there. Look at the file system and its security group, at a bucket's policy and the node's role; `gpuprov up` "
    "mounts it.",
)
def test_shared(node: Facts, expected: Expected) -> None:
    by_path = {mount.path: mount for mount in node.shared or ()}
    told_by = {mount["path"]: _shared(mount, by_path.get(mount["path"])) for mount in expected.shared}
    saw(expected={mount["path"]: mount["source"] for mount in expected.shared}, actual=told_by)
    if wrong := [f"{path}: {state}" for path, state in told_by.items() if state != "answers"]:
        fail("; ".join(wrong))
    if unasked := [mount["path"] for mount in expected.shared if mount["path"] not in by_path]:
        unknown(f"{', '.join(unasked)} was not asked")


def _shared(declared: Mapping[str, str], mounted: Shared | None) -> str:
    """What is wrong at one path; "answers" where nothing is, or nobody knows."""
    if not declared["source"]:
        return "Terraform has not made it yet"
    if mounted is None:
        return "answers"
    if mounted.mount is None:
        return "nothing is mounted"
    mount = mounted.mount
    if not _is(mount.device, declared["shows_source"]) or mount.kind != declared["shows_type"]:
        return f"{mount.device} ({mount.kind}) is mounted, not {declared['source']} ({declared['type']})"
    if mounted.hung:
        return f"no answer within {mounted.seconds or 0:.0f} s"
    if mounted.status != 0:
        return f"read error: {mounted.error or f'status {mounted.status}'}"
    if mount.kind == "fuse" and mounted.serves != declared["source"]:
        return f"{mounted.serves or 'an unknown bucket'} is mounted, not {declared['source']}"
    if mount.read_only and declared["access"] == "rw":
        return "it is mounted read-only"
    if not mount.read_only and declared["access"] == "ro":
        return "it is mounted for writing, which cluster.yaml does not allow"
    return mounted.unwritten or "answers"


def _is(source: str, pattern: str) -> bool:
    """Whether the kernel shows what it has to; what stands for a leading `*` nobody can know before."""
    return source.endswith(pattern[1:]) if pattern.startswith("*") else source == pattern
