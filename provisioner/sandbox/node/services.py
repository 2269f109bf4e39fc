"""Daemons of the driver: persistence, fabric manager, DCGM's host engine.

Once started they have nothing to do, so each becomes a sleeping process under its real name: a node stays small.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from . import kernel, state
from .smi_facts import NoAnswer, driver

SLEEP = "/bin/sleep"


def _sleep_as(name: str, seconds: str = "infinity") -> None:
    """Become `name`, asleep. The link gives the process the name that systemctl and ps show."""
    link = Path("/run/gpuprov-sandbox/bin") / name
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(SLEEP)
    os.execv(link, [f"/usr/bin/{name}", seconds])  # noqa: S606 - this process becomes the other


def _daemon(name: str, pid_file: Path | None = None, seconds: str = "infinity") -> int:
    """Leave `name` running in the background; the parent ends when it is there."""
    child = os.fork()
    if child == 0:
        os.setsid()
        _sleep_as(name, seconds)
    if pid_file is not None:
        pid_file.parent.mkdir(parents=True, exist_ok=True)
        pid_file.write_text(f"{child}\n", encoding="utf-8")
    return 0


def persistenced(arguments: list[str], _version: str) -> int:
    """Loads the module. Every GPU keeps its driver state by default, and not with --no-persistence-mode: then a client
    has to ask for it (`nvidia-smi -pm 1`). Of both options the last one counts."""
    modes = [option for option in arguments if option in ("--persistence-mode", "--no-persistence-mode")]
    problem = kernel.load("nvidia")
    if problem:
        print(
            "nvidia-persistenced: Failed to query NVIDIA devices. "
            f"{problem}. Please ensure that the NVIDIA device files exist.",
            file=sys.stderr,
        )
        return 1
    state.change(state.PERSISTENCE, lambda _: {"all": not modes or modes[-1] == "--persistence-mode"}, {})
    return _daemon("nvidia-persistenced", state.path("run/nvidia-persistenced/nvidia-persistenced.pid"))


def fabric_manager(_arguments: list[str], version: str) -> int:
    """Refuses a driver of another version, and a machine without NVSwitch; real messages, real exit status."""
    machine = state.hardware()
    loaded = state.loaded_driver(machine)
    if loaded is None:
        print("Cannot open /dev/nvidiactl: the NVIDIA driver is not loaded", file=sys.stderr)
        return 1
    if loaded != version:
        print(
            f"fabric manager NVIDIA GPU driver interface version {version} doesn't match with driver version {loaded}. "
            "Please update with matching NVIDIA driver package.",
            file=sys.stderr,
        )
        return 1
    if not machine.get("fabric_manager", {}).get("required"):
        print(
            "request to query NVSwitch device information from NVSwitch driver failed with error:WARNING Nothing to do "
            "[NV_WARN_NOTHING_TO_DO]",
            file=sys.stderr,
        )
        return 1
    if machine["fabric_manager"].get("subnet_manager") and (problem := _subnet_manager()):
        print(problem, file=sys.stderr)
        return 1
    print("Connected to 1 node.")
    print(
        "Successfully configured all the available NVSwitches to route "
        "GPU NVLink traffic. NVLink Peer-to-Peer support will be enabled "
        "once the GPUs are successfully registered with the NVLink fabric."
    )
    return _daemon("nv-fabricmanager", seconds="0.3" if machine["fabric_manager"].get("broken") else "infinity")


def _subnet_manager() -> str | None:
    """What the start script of NVLink 5 wants before it starts nvlsm; None when all is there."""
    if not state.path("usr/sbin/ibstat").exists():
        return "nvidia-fabricmanager-start.sh: ibstat: command not found"
    if not state.path("opt/nvidia/nvlsm/sbin/nvlsm").exists():
        return "nvidia-fabricmanager-start.sh: /opt/nvidia/nvlsm/sbin/nvlsm: No such file or directory"
    if "ib_umad" not in state.modules():
        return "nvlsm: can't open a port of the switches: the module ib_umad is not loaded"
    return None


def imex(_arguments: list[str], version: str) -> int:
    """Refuses to start without the list of nodes, or beside a driver of another version."""
    loaded = state.loaded_driver(state.hardware())
    if loaded != version:
        print(f"nvidia-imex {version} does not go with driver {loaded}", file=sys.stderr)
        return 1
    nodes = state.path("etc/nvidia-imex/nodes_config.cfg")
    if not nodes.exists() or not nodes.read_text(encoding="utf-8").strip():
        print("nvidia-imex: no nodes are configured in /etc/nvidia-imex/nodes_config.cfg", file=sys.stderr)
        return 1
    return _daemon("nvidia-imex")


def own_addresses() -> set[str]:
    """The node's IPv4 addresses: what the kernel's table of routes calls a local host."""
    trie = state.path("proc/net/fib_trie")
    rows = trie.read_text(encoding="utf-8").splitlines() if trie.exists() else []
    return {rows[number - 1].split()[-1] for number, row in enumerate(rows) if "/32 host LOCAL" in row}


def imex_ctl(arguments: list[str], _version: str) -> int:
    """-N -j: the domain as JSON, every node ready but those that a fault takes away."""
    if arguments != ["-N", "-j"]:
        print("nvidia-imex-ctl: this form is not simulated by gpuprov", file=sys.stderr)
        return 1
    import json

    listed = state.path("etc/nvidia-imex/nodes_config.cfg")
    hosts = listed.read_text(encoding="utf-8").split() if listed.exists() else []
    machine = state.hardware()
    local_addresses = own_addresses()
    missing = hosts if machine.get("imex_domain_down") else []
    missing = missing or ([h for h in hosts if h not in local_addresses][-1:] if machine.get("imex_node_lost") else [])
    missing = missing or ([h for h in hosts if h in local_addresses] if machine.get("imex_not_ready") else [])
    runs = "nvidia-imex" in kernel.daemons()
    ready = {host: runs and host not in missing for host in hosts}
    between = {True: "CONNECTED", False: "INVALID"}
    nodes = {
        str(n): {
            "status": "READY" if ready[host] else "UNAVAILABLE", "host": host, "hostName": "N/A",
            "connections": {
                str(m): {"host": other, "status": between[ready[host] and ready[other]], "changed": False}
                for m, other in enumerate(hosts)
            },
        }
        for n, host in enumerate(hosts)
    }  # fmt: skip
    status = "UP" if all(ready.values()) else "DEGRADED" if any(ready.values()) else "DOWN"
    print(json.dumps({"nodes": nodes, "timestamp": time.strftime("%m/%d/%Y %H:%M:%S.000"), "status": status}))
    return 0


def hostengine(_arguments: list[str], _version: str) -> int:
    """Stays in the foreground, as its unit asks for."""
    state.write("run/gpuprov-sandbox/hostengine.json", {"pid": os.getpid()})
    try:
        driver()
    except NoAnswer:
        # The real one starts without a driver too and finds no GPUs; it looks again when it is asked.
        time.sleep(0)
    _sleep_as("nv-hostengine")
    return 1
