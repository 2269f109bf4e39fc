"""What this node reaches with others: one line for the simulated image, whose nodes tell each other theirs over TCP.

    train-0|37.1|NET/AWS Libfabric+GDR|well|train-2=fails|31

Name, GB/s, the way between nodes, what becomes of a run with this node (well, fails), the nodes to which the path is
bad, and its share of the latency, µs. The container runtime's hook puts it into a container that is started for several
nodes; gpuprov-together in the image (provisioner/sandbox/multi_node.py) reads it. A fault says in hardware.json's
`between` what goes wrong.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

    Json = dict[str, Any]


LINE = "between"
"""The file's name, beside that of the GPUs."""


def line(machine: Json, direct: bool) -> str:
    """`direct`: NCCL in this container goes from the GPUs' memory to the network cards (nccl.py)."""
    between = machine["between"]
    transport = between["way"] if direct else between["way"].removesuffix("+GDR")
    ports = [nic for nic in machine["nics"] if nic["kind"] in ("infiniband", "roce")]
    # A rail goes at the rate of its slowest port, and all rails wait for it.
    share = min((nic["rate_gbps"] for nic in ports), default=1) / max((nic["rate_gbps"] for nic in ports), default=1)
    down = any(nic["state"] != "Active" for nic in ports)
    paths = ",".join(f"{other}={how}" for other, how in sorted(between.get("paths", {}).items()))
    how = "fails" if down else between.get("how", "well")
    late = between.get("latency_us", 31)
    return f"{machine['node']}|{between['gbps'] * share:.2f}|{transport}|{how}|{paths}|{late}"
