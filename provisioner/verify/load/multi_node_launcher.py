"""Starts the load program on this node as a part of several: one process for each GPU, and all of them end together.

    python3 - gpuprov-together --nodes 2 --node 0 --address 10.0.0.4 --port 23456 --only all_reduce < this file

What follows this text is the call of `main` with the program's text (probe/fabric.py); options that it does not know
are the program's. torchrun would do, but its rendezvous listens on every address of the node; this one listens on the
first node's own address in the group's network alone. Node 0 keeps it. A process that fails takes all others of all
nodes along, so that nobody waits for NCCL's own patience.

It knows PyTorch (2.1 or newer) and the standard library. Exit status: 0; 1 where a process failed, here or elsewhere;
75 where it could not begin, which says nothing of the network between the nodes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from typing import Any

COULD_NOT_BEGIN = 75
"""EX_TEMPFAIL of sysexits(3)."""
FAILED, ENDED = "gpuprov-failed", "gpuprov-ended"
LINGER_S = 20.0
"""How long node 0 keeps the rendezvous for nodes that have not said that they ended."""


def give_up(reason: str) -> Any:
    sys.stderr.write(f"Error: {reason}\n")
    sys.exit(COULD_NOT_BEGIN)


def open_store(address: str, port: int) -> Any:
    """The rendezvous itself, on one address."""
    from torch.distributed import TCPStore

    try:
        listener = socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
    except OSError as error:
        return give_up(f"the rendezvous can't listen on {address} port {port}: {error.strerror}")
    try:
        return TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    except TypeError:
        return give_up("this PyTorch can't keep a rendezvous on one address alone: it is older than 2.1")


def joined(address: str, port: int, seconds: float) -> Any:
    """The rendezvous as a guest; None where it does not answer. Node 0 may still be importing PyTorch."""
    from torch.distributed import TCPStore

    with contextlib.suppress(Exception):
        return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=seconds))
    return None


def follow(children: list[subprocess.Popen[bytes]], store: Any) -> bool:
    """Wait until all have ended; whether all ended well. The first that does not ends the others, and tells."""
    while True:
        ended = [child.poll() for child in children]
        with contextlib.suppress(Exception):
            if any(code not in (None, 0) for code in ended):
                store.add(FAILED, 1)
                return False
            if store.add(FAILED, 0) > 0:
                sys.stderr.write("Error: a process on another node failed\n")
                return False
        if any(code not in (None, 0) for code in ended):
            return False
        if all(code == 0 for code in ended):
            return True
        time.sleep(0.2)


def main(program: str) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mark")
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--node", type=int, required=True)
    parser.add_argument("--address", required=True, help="of node 0")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--wait", type=float, default=90.0, help="most seconds until node 0 answers")
    parser.add_argument("--processes", type=int, default=0, help="in place of one for each GPU")
    options, program_arguments = parser.parse_known_args()
    import torch

    count = options.processes or torch.cuda.device_count()
    if count < 1:
        give_up("PyTorch sees no GPU")
    first = options.node == 0
    store = open_store(options.address, options.port) if first else joined(options.address, options.port, options.wait)
    if store is None:
        sys.stderr.write(f"Error: no answer from the first node, {options.address} port {options.port}\n")
        sys.exit(1)
    with tempfile.NamedTemporaryFile("w", suffix=".py", encoding="utf-8") as file:
        file.write(program)
        file.flush()
        common = {
            "MASTER_ADDR": options.address, "MASTER_PORT": str(options.port), "WORLD_SIZE": str(options.nodes * count),
            "LOCAL_WORLD_SIZE": str(count), "GROUP_RANK": str(options.node), "GROUP_WORLD_SIZE": str(options.nodes),
            # What torchrun sets: the processes are guests of a rendezvous that is there already.
            "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
        }  # fmt: skip
        children = [
            subprocess.Popen(
                [sys.executable, file.name, *program_arguments],
                env=dict(os.environ, **common, RANK=str(options.node * count + i), LOCAL_RANK=str(i)),
                stdin=subprocess.DEVNULL,
            )
            for i in range(count)
        ]
        try:
            well = follow(children, store)
        finally:
            for child in children:
                with contextlib.suppress(OSError):
                    child.send_signal(signal.SIGKILL)
    with contextlib.suppress(Exception):
        ended_count = store.add(ENDED, 1)
        until = time.monotonic() + LINGER_S
        while first and ended_count < options.nodes and time.monotonic() < until:
            time.sleep(0.1)
            ended_count = store.add(ENDED, 0)
    sys.exit(0 if well else 1)
