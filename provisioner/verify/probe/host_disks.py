"""A host's mounts, space and NVMe disks, for host.json.

Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import re
from typing import Any

from provisioner.verify.probe.runner import ASK, at_once, lines_of, listed, outcome, run, texts

FOREIGN = ("/docker/", "/containerd/", "/containers/", "/kubelet/")
"""Parts of the places where containers' filesystems are mounted."""
REMOTE = (
    "nfs", "nfs4", "lustre", "beegfs", "ceph", "cifs", "smb3", "gpfs", "wekafs", "fuse.ceph", "fuse.glusterfs",
    "fuse.juicefs", "fuse.sshfs",
)  # fmt: skip
"""Types of file systems whose data is on other machines."""
REMOTE_S = 10.0
"""Seconds for statfs: a healthy server takes milliseconds (leptonai/gpud gives NFS 5)."""
DF = ["df", "--local", "--block-size=1", "--output=target,source,fstype,size,used,avail,itotal,iused"]


def mounts() -> list[str]:
    """Mounts without those of the kernel's own filesystems and of containers."""
    kept = []
    for line in lines_of("/proc/self/mounts"):
        words = line.split(" ")
        own = len(words) >= 4 and not any(part in words[1] for part in FOREIGN)
        if own and not re.match(r"^(cgroup|proc$|sysfs|nsfs|mqueue|devpts|bpf|tracefs|debugfs)", words[2]):
            kept.append(" ".join([*words[:3], words[3][:200]]))
    return kept[:500]


def space() -> dict[str, Any]:
    """df of local filesystems: a server that does not answer must not hold it up."""
    said = run(DF, ASK)
    said["text"] = "\n".join(
        " ".join(row.split()) for row in said["text"].splitlines() if not any(p in row for p in FOREIGN)
    )
    return said


def remote() -> dict[str, dict[str, Any]]:
    """Whether file systems of the network answer: each is asked by a program of its own, all at once."""
    places: dict[str, str] = {}
    for line in mounts():
        words = line.split(" ")
        if words[2] in REMOTE and len(places) < 32:
            places[re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), words[1])] = words[2]
    found: dict[str, dict[str, Any]] = {}

    def ask(place: str, kind: str) -> None:
        found[place] = {"kind": kind, **outcome(run(["stat", "--file-system", "--", place], REMOTE_S))}

    at_once(ask, list(places.items()), REMOTE_S + 3)
    return dict(found)


def nvme() -> dict[str, dict[str, str]]:
    base = "/sys/class/nvme"
    return {name: texts(base + "/" + name, ["model", "serial", "state", "transport"]) for name in listed(base)}


def smart() -> dict[str, Any]:
    """`nvme smart-log` of every NVMe disk, where the tool is installed."""
    found: dict[str, Any] = {}
    names = [name for name in listed("/sys/class/nvme") if re.fullmatch("nvme[0-9]+", name)][:32]

    def ask(name: str) -> None:
        found[name] = run(["nvme", "smart-log", "/dev/" + name, "--output-format=json"], ASK)

    at_once(ask, [(name,) for name in names], ASK + 1)
    return {name: one["text"] for name, one in dict(found).items() if one["rc"] == 0}
