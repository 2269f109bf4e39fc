"""The faults that a sandbox node can have: what each is, where it can be, what it does to hardware.json and in the
node.

A change of hardware.json is a pure function; commands run in the node break and mend what is a process or a file. No
fault has side effects that the real one would not have: verify must find one cause.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]
Change = Callable[[Json, int], None]
Commands = tuple[tuple[str, ...], ...]


def _anywhere(_machine: Json) -> bool:
    return True


def _nvidia(machine: Json) -> bool:
    return bool(machine["vendor"] == "nvidia")


def _gpus(machine: Json) -> bool:
    return bool(machine["gpus"])


def _kind(kind: str) -> Callable[[Json], bool]:
    return lambda machine: any(nic["kind"] == kind for nic in machine["nics"])


def _nothing(_machine: Json, _gpu: int) -> None:
    """Faults that are only commands."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`needs` says in words what a machine must have; `check` is the one that finds it."""

    name: str
    sentence: str
    check: str
    applies: Callable[[Json], bool] = _nvidia
    needs: str = "an NVIDIA GPU"
    change: Change = _nothing
    break_: Commands = field(default=())
    mend: Commands = field(default=())
    moment: bool = False
    """Over at the second look: its check notes it, and does not fail."""
    with_version: Callable[[str], Change] | None = None
    """The change for NAME:VERSION, where the fault may say for which driver it is."""

    def apply(self, machine: Json, gpu: int) -> Json:
        """hardware.json with this fault; the argument stays as it is."""
        changed = deepcopy(machine)
        self.change(changed, gpu)
        return changed


def _lose(machine: Json, gpu: int) -> None:
    # Gone from the bus, as after a reboot of a node whose board has lost it: 7 of 8 are listed and nothing is said of
    # the 8th.
    lost = machine["gpus"][gpu]
    lost["present"] = False
    slot = lost["pci"][4:].lower()
    machine["pci"] = [row for row in machine["pci"] if row["slot"] != slot]


OTHER_MODELS = {
    "NVIDIA A100-SXM4-40GB": ("NVIDIA A100-SXM4-80GB", "20B210DE"),
    "NVIDIA H100 80GB HBM3": ("NVIDIA H800", "232410DE"),
    "NVIDIA H200": ("NVIDIA H100 80GB HBM3", "233010DE"),
    "NVIDIA GeForce RTX 4090": ("NVIDIA GeForce RTX 4090 D", "268510DE"),
}


def _other_model(machine: Json, gpu: int) -> None:
    # Only the name differs: what belongs to the other product (memory) is not for other checks to find.
    item = machine["gpus"][gpu]
    item["name"], device = OTHER_MODELS.get(item["name"], ("NVIDIA Graphics Device", item.get("pci_device_id", "")))
    item["pci_device_id"] = device


def _link_down(machine: Json, gpu: int) -> None:
    active = [link for link in machine["gpus"][gpu]["links"] if link["active"]]
    active[-1]["active"] = False


def _log(template: str) -> Change:
    def change(machine: Json, gpu: int) -> None:
        slot = machine["gpus"][gpu]["pci"][4:].rpartition(".")[0].lower() if machine["gpus"] else ""
        at = max([line["at"] for line in machine["kernel_log"]], default=0.0) + 100.0
        machine["kernel_log"].append({"at": at, "level": "err", "text": template.format(pci=slot)})

    return change


def _ecc(machine: Json, gpu: int) -> None:
    machine["gpus"][gpu]["ecc"]["volatile"]["dram"] += 2
    machine["gpus"][gpu]["ecc"]["aggregate"]["dram"] += 2


def _remap(machine: Json, gpu: int) -> None:
    # ECC counters stay 0: the capture of an A10 with a pending remap shows just that.
    machine["gpus"][gpu]["remap"].update(uncorrectable=1, pending=True)


def _has_ecc(machine: Json) -> bool:
    return _nvidia(machine) and any(gpu["ecc"]["supported"] for gpu in machine["gpus"])


def _has_links(machine: Json) -> bool:
    return _nvidia(machine) and any(link["active"] for gpu in machine["gpus"] for link in gpu["links"])


def _set(section: str, **values: Any) -> Change:
    def change(machine: Json, _gpu: int) -> None:
        machine[section].update(values)

    return change


def _first_port(**values: Any) -> Change:
    def change(machine: Json, _gpu: int) -> None:
        machine["nics"][0].update(values)

    return change


def _half_rate(machine: Json, _gpu: int) -> None:
    machine["nics"][0]["rate_gbps"] = machine["nics"][0]["rate_gbps"] / 2


def _lose_efa(machine: Json, _gpu: int) -> None:
    removed = machine["efa"].pop()
    machine["pci"] = [row for row in machine["pci"] if row["slot"] != removed["slot"]]


def _wrong_driver(machine: Json, _gpu: int) -> None:
    # Filled in by faults.inject, which knows what is installed in the node.
    version = machine["driver"].get("other", "")
    machine["driver"].update(loaded=version, library=version)


def _mismatch(machine: Json, _gpu: int) -> None:
    machine["driver"].update(loaded=machine["driver"].get("other", ""), library=None)


def _bad_driver(version: str | None) -> Change:
    # Dormant until that driver is loaded: then one GPU offers half its memory, a defect that goes with the driver.
    def change(machine: Json, gpu: int) -> None:
        machine["driver"]["bad"] = {"version": version or machine["driver"].get("installed", ""), "gpu": gpu}

    return change


def _persistence_off(machine: Json, _gpu: int) -> None:
    for gpu in machine["gpus"]:
        gpu["persistence"] = False


def _ecc_off(machine: Json, gpu: int) -> None:
    machine["gpus"][gpu]["ecc"]["mode"] = "Disabled"


XID_79 = "NVRM: Xid (PCI:{pci}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_48 = (
    "NVRM: Xid (PCI:{pci}): 48, pid='<unknown>', name=<unknown>, An "
    "uncorrectable double bit error (DBE) has been detected on GPU "
    "in the framebuffer at physAddr 0x12bac1c3e0 partition 2, subpartition 1."
)
NVSWITCH = "an NVSwitch that fabric manager serves"
INFINIBAND = "InfiniBand"

FAULTS: tuple[Fault, ...] = (
    Fault("gpu-lost", "one GPU is gone: all but one are listed", "gpu.count", _gpus, "a GPU", _lose),
    Fault("gpu-model", "one GPU is of another product", "gpu.model", change=_other_model),
    Fault("nvlink-down", "one NVLink of one GPU is inactive", "nvlink.links", _has_links, "NVLink", _link_down),
    Fault("xid-79", "the kernel log says that a GPU has fallen off the bus (Xid 79)", "gpu.xid", change=_log(XID_79)),
    Fault("xid-48", "the kernel log says that a GPU had a double-bit error (Xid 48)", "gpu.xid", change=_log(XID_48)),
    Fault(
        "ecc-uncorrectable",
        "one GPU counts two uncorrectable memory errors",
        "gpu.ecc",
        _has_ecc,
        "GPUs with ECC",
        _ecc,
    ),
    Fault("row-remap-pending", "one GPU has a row remap pending", "gpu.remap", _has_ecc, "GPUs with ECC", _remap),
    Fault("ecc-off", "ECC is switched off on one GPU", "gpu.ecc", _has_ecc, "GPUs with ECC", _ecc_off),
    Fault(
        "wrong-driver", "another version of the same driver branch is loaded", "driver.version", change=_wrong_driver
    ),
    Fault(
        "driver-mismatch",
        "the loaded module and the libraries are of different versions",
        "driver.version",
        change=_mismatch,
    ),
    Fault(
        "bad-driver",
        "one GPU offers half its memory with the driver that is installed; bad-driver:VERSION: once that one is loaded",
        "gpu.memory",
        change=_bad_driver(None),
        with_version=_bad_driver,
    ),
    Fault("persistence-off", "persistence mode is off", "gpu.persistence", change=_persistence_off),
    Fault(
        "hold-lost",
        "a package of the stack is no longer on hold",
        "packages.held",
        break_=(("apt-mark", "unhold", "libnccl2"),),
        mend=(("apt-mark", "hold", "libnccl2"),),
    ),
    Fault("nvidia-smi-hangs", "nvidia-smi never answers", "driver.responds", change=_set("nvidia_smi", hangs=True)),
    Fault(
        "fabric-manager-dead",
        "fabric manager has died and dies again when it is started",
        "nvswitch.fabric",
        lambda m: bool(m["fabric_manager"]["required"]),
        NVSWITCH,
        _set("fabric_manager", broken=True),
        (("systemctl", "kill", "--signal=KILL", "nvidia-fabricmanager"),),
        (("systemctl", "reset-failed", "nvidia-fabricmanager"), ("systemctl", "restart", "nvidia-fabricmanager")),
    ),
    Fault(
        "ib-port-down",
        "the first InfiniBand port is down",
        "ib.ports",
        _kind("infiniband"),
        INFINIBAND,
        _first_port(state="Down", physical_state="Polling"),
    ),
    Fault(
        "ib-port-slow",
        "the first InfiniBand port runs at half its rate",
        "ib.rate",
        _kind("infiniband"),
        INFINIBAND,
        _half_rate,
    ),
    Fault(
        "ib-link-errors",
        "the first InfiniBand port counts errors that its neighbours do not have",
        "rdma.errors",
        _kind("infiniband"),
        INFINIBAND,
        _first_port(counters={"symbol_error": 48211, "link_downed": 19}),
    ),
    Fault(
        "ib-no-subnet-manager",
        "no subnet manager has given the first InfiniBand port an address",
        "rdma.lid",
        _kind("infiniband"),
        INFINIBAND,
        _first_port(lid=0, sm_lid=0),
    ),
    Fault(
        "ib-firmware",
        "the first InfiniBand card has other firmware than its neighbours",
        "rdma.firmware",
        _kind("infiniband"),
        INFINIBAND,
        _first_port(firmware="20.31.1014"),
    ),
    Fault(
        "uverbs-lost",
        "the first RDMA card has no device file",
        "rdma.uverbs",
        lambda m: bool(m["efa"] or m["nics"]),
        "RDMA",
        lambda m, _gpu: (m["nics"] or m["efa"])[0].update(no_uverbs=True),
    ),
    Fault("efa-device-lost", "one EFA device is gone", "efa.devices", lambda m: bool(m["efa"]), "EFA", _lose_efa),
    Fault(
        "exporter-dead",
        "the DCGM exporter has died and dies again when it is started",
        "dcgm.exporter",
        change=_set("exporter", broken=True),
        break_=(("systemctl", "stop", "nvidia-dcgm-exporter"),),
        mend=(("systemctl", "reset-failed", "nvidia-dcgm-exporter"), ("systemctl", "restart", "nvidia-dcgm-exporter")),
    ),
    Fault(
        "wrong-image",
        "the first container image is another one than is locked",
        "container.image",
        break_=(("/usr/lib/gpuprov-sandbox/image", "swap"),),
        mend=(("/usr/lib/gpuprov-sandbox/image", "restore"),),
        applies=_gpus,
        needs="a GPU, for which the lock has an image",
    ),
)
"""Every fault by name, in the order in which `gpuprov sandbox faults` lists them."""
