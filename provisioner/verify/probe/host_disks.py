"""A host's mounts, space and NVMe disks, for host.json.

Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import re
import threading
from typing import Any

from provisioner.verify.probe.runner import ASK, lines_of, listed, run, texts

FOREIGN = ("/docker/", "/containerd/", "/containers/", "/kubelet/")
"""Parts of the places where containers' filesystems are mounted."""
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


def nvme() -> dict[str, dict[str, str]]:
    base = "/sys/class/nvme"
    return {name: texts(base + "/" + name, ["model", "serial", "state", "transport"]) for name in listed(base)}


def smart() -> dict[str, Any]:
    """`nvme smart-log` of every NVMe disk, where the tool is installed."""
    found: dict[str, Any] = {}
    names = [name for name in listed("/sys/class/nvme") if re.fullmatch("nvme[0-9]+", name)][:32]

    def ask(name: str) -> None:
        found[name] = run(["nvme", "smart-log", "/dev/" + name, "--output-format=json"], ASK)

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(ASK + 1)
    return {name: one["text"] for name, one in dict(found).items() if one["rc"] == 0}
