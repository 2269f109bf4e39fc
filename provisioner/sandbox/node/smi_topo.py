"""`nvidia-smi topo -m` and `nvidia-smi nvlink`."""

from __future__ import annotations

from .smi_facts import Driver, NoAnswer
from .smi_xml import matches

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

LEGEND = """\

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def topo(arguments: list[str], driver: Driver) -> str:
    """The matrix of GPUs and network cards, tab-separated as the real tool writes it, with its legends."""
    if arguments[:1] in (["-p2p"], ["--p2pstatus"]) and arguments[1:2] == ["r"]:
        return _p2p(driver)
    if arguments[:1] not in (["-m"], ["--matrix"]):
        raise NoAnswer(2, "Invalid combination of input arguments. Please run 'nvidia-smi topo -h' for help.")
    machine, gpus = driver.machine, driver.gpus
    nics = [*machine["nics"], *machine["efa"]]
    names = [f"GPU{i}" for i in range(len(gpus))] + [f"NIC{i}" for i in range(len(nics))]
    out = "\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    for i, gpu in enumerate(gpus):
        cells = [" X " if i == j else machine["topology"][gpu["index"]][other["index"]] for j, other in enumerate(gpus)]
        cells += [_path_to_nic(gpu, nic, gpus, nics) for nic in nics]
        out += (
            "\t".join(
                [names[i], *cells, affinity(machine, gpu["numa"]), str(gpu.get("numa_printed", gpu["numa"])), "", "N/A"]
            )
            + "\n"
        )
    for i, nic in enumerate(nics):
        cells = [_path_to_nic(gpu, nic, gpus, nics) for gpu in gpus]
        cells += [
            " X " if i == j else ("NODE" if nic["numa"] == other["numa"] else "SYS") for j, other in enumerate(nics)
        ]
        out += "\t".join([names[len(gpus) + i], *cells]) + "\n"
    out += LEGEND
    if nics:
        out += "\nNIC Legend:\n\n" + "".join(f"  NIC{i}: {nic['name']}\n" for i, nic in enumerate(nics))
    return out + "\n"


P2P_LEGEND = """\

Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
  GNS  = GPU not supported
  TNS  = Topology not supported
  NS   = Not supported
  DR   = Disabled by regkey
  U    = Unknown
"""


def _p2p(driver: Driver) -> str:
    """Who can read whose memory. GPUs without NVLink between them are the chipset's matter: not supported."""
    gpus, cells = driver.gpus, driver.machine["topology"]
    out = " \t" + "\t".join(f"GPU{i}" for i in range(len(gpus))) + "\t\n"
    for i, gpu in enumerate(gpus):
        row = []
        for j, other in enumerate(gpus):
            linked = cells[gpu["index"]][other["index"]].startswith("NV")
            cut = {gpu["index"], other["index"]} == set(driver.machine.get("p2p_cut", ()))
            row.append("X" if i == j else "NS" if cut else "OK" if linked else "CNS")
        out += f" GPU{i}\t" + "\t".join(row) + "\t\n"
    return out + P2P_LEGEND


def _path_to_nic(
    gpu: dict[str, Any], nic: dict[str, Any], gpus: tuple[dict[str, Any], ...], nics: list[dict[str, Any]]
) -> str:
    if gpu["numa"] != nic["numa"]:
        return "SYS"
    if gpu["pci"].lower()[-12:-8] != nic["slot"].lower()[:4]:
        return "NODE"  # each on a PCI domain of its own, as in Azure's machines: no bridge is common to them
    # A card shares the PCIe switch of the GPU at the same place in line.
    return "PIX" if nics.index(nic) * len(gpus) // len(nics) == gpus.index(gpu) else "NODE"


def affinity(machine: dict[str, Any], node: int) -> str:
    """CPU list of a NUMA node: cores first, their second threads after all cores, as AMD and Intel servers count
    them."""
    threads, nodes = machine["vcpus"], machine["numa_nodes"]
    if nodes == 1 or threads % (2 * nodes):
        return f"0-{threads - 1}"
    share = threads // 2 // nodes
    first, second = node * share, threads // 2 + node * share
    return f"{first}-{first + share - 1},{second}-{second + share - 1}"


def nvlink(arguments: list[str], driver: Driver) -> str:
    """`nvlink -s` (state and speed of each link) and `nvlink -e` (error counters), for all GPUs or for -i."""
    id_list = arguments[arguments.index("-i") + 1] if "-i" in arguments[:-1] else None
    counters = "-e" in arguments or "--errorcounters" in arguments
    if not counters and not {"-s", "--status"} & {*arguments}:
        raise NoAnswer(2, "Invalid combination of input arguments. Please run 'nvidia-smi nvlink -h' for help.")
    if id_list is not None and not any(matches(gpu, id_list) for gpu in driver.gpus):
        raise NoAnswer(6, "No devices were found")
    out = ""
    for gpu in driver.gpus:
        if id_list is not None and not matches(gpu, id_list):
            continue
        out += f"GPU {gpu['index']}: {gpu['name']} (UUID: {gpu['uuid']})\n"
        if not gpu["links"]:
            out += "Device does not have or support Nvlink\n"
        elif gpu["mig_current"] == "Enabled":
            out += "Nvlink queries are not supported for Devices in MIG mode\n"
        elif not any(link["active"] for link in gpu["links"]):
            out += "NVML: Unable to retrieve NVLink information as all links are inActive\n"
        else:
            speed = gpu["product"]["link"]
            for number, link in enumerate(gpu["links"]):
                if counters:
                    counts = {"Replay": 0, "Recovery": 0, "CRC": 0} | link.get("errors", {})
                    out += "".join(f"\t Link {number}: {kind} Errors: {count}\n" for kind, count in counts.items())
                    out += "\n"
                else:
                    rate_text = f"{link.get('speed', speed)} GB/s" if link["active"] else "<inactive>"
                    out += f"\t Link {number}: {rate_text}\n"
    return out
