"""What to do about a finding: one procedure for each action, and how to see by hand what a check has seen.

The same text is in docs/reference/runbook and in the report, whose reader may have nothing else open.
"""

from __future__ import annotations

from provisioner.verify.check import Action, Check
from provisioner.verify.tools import FILES

STEPS: dict[Action, tuple[str, ...]] = {
    "none": ("Nothing has to be done. It is told so that you know it.",),
    "reconfigure": (
        "`gpuprov status FILE` says what on the node differs from the lock.",
        "`gpuprov up FILE` mends exactly that. What runs on the node goes on, unless a driver has to be loaded again.",
        "`gpuprov verify FILE --node NODE` has to be healthy then.",
        "If it comes back, something else changes the node: another configuration management, an automatic upgrade, a "
        "person. `journalctl` and /var/log/apt/history.log on the node say when.",
    ),
    "clean": (
        "`gpuprov exec FILE --node NODE df -h` shows which file system is full; `df -i` shows its inodes.",
        "`gpuprov exec FILE --node NODE 'sudo du -xh --max-depth=3 / | sort -h | tail -n 30'` shows what fills it "
        "(with another path for another file system). Ask the owner before you delete data.",
        "`docker image prune` frees old images, `journalctl --vacuum-size=1G` old logs, `apt-get clean` old packages. "
        "Move checkpoints to scratch or to shared storage.",
        "`gpuprov verify FILE --node NODE` has to be healthy then: it takes the node out of quarantine.",
        "Neither `gpuprov up` nor a new machine is the remedy: `up` frees no disk, and the next job fills the new one. "
        "Where it fills again, ask for a larger disk in cluster.yaml.",
    ),
    "reset": (
        "`gpuprov quarantine FILE NODE --reason TEXT` takes the node out of service (its drain hook runs).",
        "`gpuprov collect FILE NODE -o TICKET` keeps what the tools say now: a reset clears counters.",
        "No program may hold a GPU: `nvidia-smi --query-compute-apps=pid,name --format=csv` lists those that do. Stop "
        "nvidia-dcgm and nvidia-persistenced, and nvidia-fabricmanager where there are NVSwitches.",
        "`nvidia-smi --gpu-reset` (all GPUs: on NVLink machines they go together), then start what was stopped. Where "
        "the reset is refused, reboot.",
        "`gpuprov verify FILE --node NODE --level stress` has to be healthy; then `gpuprov release FILE NODE`.",
        "The same finding on the same GPU again within days: replace the node.",
    ),
    "reboot": (
        "`gpuprov quarantine FILE NODE --reason TEXT`, and wait until no job runs on the node.",
        "`gpuprov collect FILE NODE -o TICKET` keeps what the tools say now.",
        "`gpuprov exec FILE --node NODE sudo systemctl reboot`. Where that does not help, "
        "the power has to go off: `gpuprov bmc FILE power force-restart NODE` on bare metal; on a cloud, "
        "replace the node.",
        "`gpuprov up FILE`, then `gpuprov verify FILE --node NODE --level stress`, then `gpuprov release FILE NODE`.",
        "The same finding after two reboots is hardware: replace the node.",
    ),
    "replace": (
        "`gpuprov collect FILE NODE -o TICKET`: the provider or the vendor will ask for it.",
        "`gpuprov replace FILE NODE` drains the node, makes a new machine of the same name, configures and proves it.",
        "On bare metal there is no other machine to be had: leave the node in quarantine and open a case with the "
        "vendor, with the bundle, the GPU's serial number and the slot.",
    ),
    "vendor": (
        "`gpuprov quarantine FILE NODE --reason TEXT` where the check is fatal; a warning can wait for a pause.",
        "`gpuprov collect FILE NODE -o TICKET`, and `nvidia-bug-report.sh` on NVIDIA machines.",
        "Rule out what is near: cable and transceiver (swap with a neighbour's: does the fault go along?), air flow, "
        "power feeds, the slot.",
        "Open a case with whoever answers for the part (vendor, provider, fabric team), with the bundle, serial "
        "numbers, and the line of the report.",
    ),
}  # fmt: skip
"""Action → what a person does, in order. FILE is cluster.yaml, NODE the node's name, TICKET a new directory."""

COMMANDS: dict[Action, str] = {
    "replace": "gpuprov replace FILE NODE",
    "reboot": "gpuprov exec FILE --node NODE sudo systemctl reboot; if it stays: `gpuprov docs runbook reboot`",
    "reset": "gpuprov quarantine FILE NODE --reason reset, then the steps of `gpuprov docs runbook reset`",
    "vendor": "gpuprov collect FILE NODE -o TICKET, then open a case",
    "clean": "gpuprov exec FILE --node NODE df -h, then delete what fills it: `gpuprov docs runbook clean`",
    "reconfigure": "gpuprov up FILE",
}
"""Action → the command that it begins with."""

IN_QUARANTINE: dict[Action, str] = {
    "reset": "the steps of `gpuprov docs runbook reset`, then gpuprov verify FILE --node NODE --level stress",
}
"""The same where the node is out of service already."""

RELEASE = "gpuprov release FILE NODE"
"""What follows where a person has quarantined it: no verdict takes the node out."""


def by_hand(check: Check, vendor: str = "nvidia") -> tuple[str, ...]:
    """Commands (or files) that show on the node what the check has read."""
    gpus = "rocm-smi.json" if vendor == "amd" or check.vendor == "amd" else "nvidia-smi.xml"
    return tuple(FILES[gpus if need == "gpus" else need].source for need in check.needs)


def anchor(id: str) -> str:
    """The anchor that Markdown viewers give a heading that is a check's id: its dot goes."""
    return id.replace(".", "")
