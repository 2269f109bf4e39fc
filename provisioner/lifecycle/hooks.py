"""The commands of cluster.yaml that take nodes out of service and put them back: run on this machine, all nodes at
once, each with a deadline, what they say as events."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Literal

from provisioner import process
from provisioner.events import Events
from provisioner.fleet import Node

HookStep = Literal["drain", "resume"]

GRACE_S = 5.0
"""Seconds that a command may take to end when it is asked to."""

LINE = 500
"""Characters of a line that are passed on."""


def run(
    step: HookStep,
    command: str | None,
    nodes: Sequence[Node],
    *,
    cluster: str,
    folder: Path,
    deadline_s: float,
    events: Events,
) -> dict[str, str]:
    """Run the command once for every node, with GPUPROV_NODE, GPUPROV_ADDRESS, GPUPROV_GROUP, GPUPROV_CLUSTER and
    GPUPROV_STEP in its environment. Gives node → why it failed; nothing for those that it worked on, and for all where
    there is no command."""
    if command is None:
        return {}
    children: dict[str, subprocess.Popen[str]] = {}
    readers: list[threading.Thread] = []
    last: dict[str, str] = {}

    def read(node: str, stream: IO[str]) -> None:
        for line in stream:
            if line.strip():
                last[node] = line.strip()[:LINE]
                events("upgrade", "log", f"{step}: {last[node]}", node=node)

    try:
        for node in nodes:
            environment = {
                **os.environ, "GPUPROV_NODE": node.name, "GPUPROV_ADDRESS": node.address, "GPUPROV_GROUP": node.group,
                "GPUPROV_CLUSTER": cluster, "GPUPROV_STEP": step,
            }  # fmt: skip
            # one pipe for both, so that the last line is the last one
            argv = ["sh", "-c", f"exec 2>&1\n{command}"]
            child = children[node.name] = process.start(argv, cwd=folder, env=environment)
            readers.append(threading.Thread(target=read, args=(node.name, child.stdout), daemon=True))
            readers[-1].start()
        deadline = time.monotonic() + deadline_s
        bad = {}
        for name, child in children.items():
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                bad[name] = f"the {step} command did not end within {deadline_s:g} s"
        for name in bad:
            process.stop(children[name], grace_s=GRACE_S)
    except BaseException:
        for child in children.values():
            process.stop(child, grace_s=GRACE_S)
        raise
    for reader in readers:
        reader.join(timeout=1)
    for name, child in children.items():
        if name not in bad and child.returncode:
            said = f": {last[name]}" if name in last else ""
            bad[name] = f"the {step} command ended with status {child.returncode}{said}"
    return bad
