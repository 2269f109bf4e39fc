"""This node's part in a run of several nodes together (load/multi_node_launcher.py).

fabric.json says the same as load.json (load.py) of this node's part; fabric_run.py makes one
verdict of all. The request's "load" holds "together" beside what load.py needs: {"launcher": its text, "nodes",
"node", "address" of the first node, "own" (this node's), "port"}. It says besides: "grown", counters of RDMA ports that
count more than before (port → counter → by how much), and "rails" (perftest.py), where the request asks for them. With
"lent" in "together" a node that is not idle (idle.py) takes no part. A run of one node goes over its own network cards.

Instead of "together" the request can hold "alone": "idle", which answers {"state": "idle"} or {"state": "busy", "why"}
and starts nothing, or "own cards", which works the node's network cards against each other (perftest.py).

Standard library only, Python 3.8 or newer. Nothing is left on the node: the container is removed, whatever happens.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import time
from typing import Any

from provisioner.verify.probe.idle import job_reason
from provisioner.verify.probe.job import job_options, unwritten
from provisioner.verify.probe.load import ASK_S, container, document, follow, occupied
from provisioner.verify.probe.node import rdma
from provisioner.verify.probe.perftest import own_cards, rails
from provisioner.verify.probe.runner import COLLECTORS, run

SIOCGIFADDR = 0x8915
"""netdevice(7)"""
COULD_NOT_BEGIN = 75
OVER_THE_NETWORK = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
"""Of a run of one node: its GPUs have its network cards alone to reach each other (NCCL's documentation of environment
variables; awslabs/awsome-distributed-ai#531, Azure/azurehpc-health-checks azure_nccl_allreduce_ib_loopback.nhc)."""
VANISH_S = 15.0
"""What was killed at the end of the round before takes a while to let go of its GPU."""


def fabric(seconds: float, request: dict[str, Any]) -> dict[str, Any]:
    """Take part once; `seconds` is the deadline, start of the container and all."""
    load_request = request["load"]
    if load_request.get("alone") == "own cards":
        return own_cards(seconds, request)
    if load_request.get("alone") == "idle":
        reason = job_reason(load_request["vendor"])
        return document({"state": "busy", "why": reason} if reason else {"state": "idle"})
    holders = occupied(load_request["vendor"])
    until = time.monotonic() + VANISH_S
    while holders and time.monotonic() < until:
        time.sleep(0.5)
        holders = occupied(load_request["vendor"])
    if holders is None:
        return document({"state": "absent", "why": "cannot tell whether a job is using the GPUs"})
    if holders:
        return document({"state": "busy", "busy": holders})
    if load_request["together"].get("lent"):
        reason = job_reason(load_request["vendor"])  # the last moment before it is used
        if reason:
            return document({"state": "absent", "why": reason})
    interface = interface_of(load_request["together"]["own"])
    if interface is None:
        reason = "no interface of this node has its address {}".format(load_request["together"]["own"])
        return document({"state": "absent", "why": reason})
    options = job_options(load_request["image"])
    if options is None:
        return document({"state": "absent", "why": unwritten(load_request["image"])})
    command, feed = together(load_request, options, interface, seconds)
    previous = port_counters()
    try:
        outcome_of_run = follow(command, feed, seconds, None, 0.0)
    finally:
        # Also of a container whose client was killed, or that docker has not removed yet.
        run(["docker", "rm", "--force", container()], ASK_S)
    if (
        outcome_of_run["rc"] == COULD_NOT_BEGIN or outcome_of_run["rc"] == 125
    ):  # docker's own failure: no image, no such option
        return document(
            {"state": "absent", "why": last_line(outcome_of_run["error"]), "error": outcome_of_run["error"]}
        )
    outcome_of_run["rails"] = rails(load_request) if load_request.get("rails") and outcome_of_run["rc"] == 0 else None
    outcome_of_run["grown"] = grown(previous, port_counters())
    return document(dict(outcome_of_run, state="ran", launcher="docker " + load_request["reference"]))


def port_counters() -> dict[str, dict[str, int]]:
    """Counters of every RDMA port, by mlx5_0/1."""
    return {
        device + "/" + port: {name: int(text) for name, text in row["counters"].items() if text.isdigit()}
        for device, ports in json.loads(rdma()["text"])["devices"].items()
        for port, row in ports["ports"].items()
    }


def grown(previous: dict[str, dict[str, int]], after: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """What counts more than before, by port."""
    growth = {}
    for port, counters in after.items():
        old = previous.get(port, {})
        more = {name: value - old[name] for name, value in counters.items() if name in old and value > old[name]}
        if more:
            growth[port] = more
    return growth


def together(
    load_request: dict[str, Any], options: list[str], interface: str, seconds: float
) -> tuple[list[str], bytes]:
    """The command and what it gets on its standard input. `options`: the environment of a job on this node."""
    part = load_request["together"]
    command = ["docker", "run", "--rm", "--interactive", "--name", container(), "--pull=never"]
    command += ["--security-opt", "no-new-privileges", *options]
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "OMP_NUM_THREADS": "4"}
    if not any(option.startswith("--env=GLOO_SOCKET_IFNAME=") for option in options):
        # A node without a default route, or with AMD's GPUs: nothing there says which interface is the group's.
        environment.update(GLOO_SOCKET_IFNAME=interface, NCCL_SOCKET_IFNAME="=" + interface)
    if part["nodes"] == 1:
        environment.update(OVER_THE_NETWORK)
    command += [item for pair in sorted(environment.items()) for item in ("--env", "=".join(pair))]
    command += ["--entrypoint", "python3", load_request["image"], "-", "gpuprov-together"]
    for name in ("nodes", "node", "address", "port"):
        command += ["--" + name, str(part[name])]
    command += ["--wait", str(int(seconds / 2)), "--only", "all_reduce"]
    command += [
        argument for name, value in sorted(load_request["options"].items()) for argument in ("--" + name, str(value))
    ]
    text = (
        part["launcher"] + "\nimport json\nmain(json.loads(" + json.dumps(json.dumps(load_request["program"])) + "))\n"
    )
    return command, text.encode()


def interface_of(address: str) -> str | None:
    """The interface that has this IPv4 address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asking.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # it has none
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def last_line(text: str) -> str:
    rows = [line.strip() for line in text.splitlines() if line.strip()]
    return rows[-1][:300] if rows else "it said nothing"


COLLECTORS["fabric.json"] = fabric
