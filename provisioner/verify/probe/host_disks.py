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
    rows = []
    for line in lines_of("/proc/self/mounts"):
        fields = line.split(" ")
        is_local = len(fields) >= 4 and not any(part in fields[1] for part in FOREIGN)
        if is_local and not re.match(r"^(cgroup|proc$|sysfs|nsfs|mqueue|devpts|bpf|tracefs|debugfs)", fields[2]):
            rows.append(" ".join([*fields[:3], fields[3][:200]]))
    return rows[:500]


def space() -> dict[str, Any]:
    """df of local filesystems: a server that does not answer must not hold it up."""
    answer = run(DF, ASK)
    answer["text"] = "\n".join(
        " ".join(row.split()) for row in answer["text"].splitlines() if not any(p in row for p in FOREIGN)
    )
    return answer


def remote() -> dict[str, dict[str, Any]]:
    """Whether file systems of the network answer: each is asked by a program of its own, all at once."""
    kind_of: dict[str, str] = {}
    for line in mounts():
        fields = line.split(" ")
        if fields[2] in REMOTE and len(kind_of) < 32:
            kind_of[re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), fields[1])] = fields[2]
    reports: dict[str, dict[str, Any]] = {}

    def ask(path: str, kind: str) -> None:
        reports[path] = {"kind": kind, **outcome(run(["stat", "--file-system", "--", path], REMOTE_S))}

    at_once(ask, list(kind_of.items()), REMOTE_S + 3)
    return dict(reports)


def nvme() -> dict[str, dict[str, str]]:
    base = "/sys/class/nvme"
    return {name: texts(base + "/" + name, ["model", "serial", "state", "transport"]) for name in listed(base)}


def smart() -> dict[str, Any]:
    """`nvme smart-log` of every NVMe disk, where the tool is installed."""
    logs: dict[str, Any] = {}
    names = [name for name in listed("/sys/class/nvme") if re.fullmatch("nvme[0-9]+", name)][:32]

    def ask(name: str) -> None:
        logs[name] = run(["nvme", "smart-log", "/dev/" + name, "--output-format=json"], ASK)

    at_once(ask, [(name,) for name in names], ASK + 1)
    return {name: log["text"] for name, log in dict(logs).items() if log["rc"] == 0}
