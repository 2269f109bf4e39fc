"""Runs as root on each node that Slurm has given to a job: starts the job's unit there, and ends with it.

Its source stands behind that of on_node.py, in the batch script; srun sends it to every node. Standard library only,
Python 3.8 or newer.
"""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import sys
import time
from typing import Any

from provisioner.lifecycle.jobs.on_node import ROOT, Refused, load, start, stop

POLL_S = 0.5
ENDED = "Slurm has ended the job: scancel, its time limit, or a drain"


def run(request: dict[str, Any]) -> int:
    """Start this node's part of the job, and wait for its end; the status of the job. `request`: `job` (all nodes of
    the group in `nodes`), `program` (supervisor.py), `archive` (the folder as a tar, base64). The nodes that Slurm has
    given stand in GPUPROV_TASK_NODES, in Slurm's order; this one in GPUPROV_TASK_NODE."""
    os.umask(0o077)
    names, node = os.environ["GPUPROV_TASK_NODES"].split(), os.environ["GPUPROV_TASK_NODE"]
    by_name = {row["name"]: row for row in request["job"]["nodes"]}
    job = {**request["job"], "nodes": [by_name[name] for name in names], "node": node, "watch": os.getpid()}
    job["rdma"] = job["rdma"] and len(names) > 1
    signal.signal(signal.SIGTERM, lambda *_: stop(job["id"], ENDED))
    folder = f"{ROOT}/{job['id']}"
    try:
        os.makedirs(f"{folder}/work")
        unpack = ["tar", "--extract", "--gzip", "--no-same-owner", "--directory", f"{folder}/work"]
        subprocess.run(unpack, input=base64.b64decode(request["archive"]), check=True, timeout=600)
        start(job, request["program"])
    except (Refused, OSError, subprocess.SubprocessError) as error:
        print(f"{node}: {error}", file=sys.stderr)
        return 1
    while "ended" not in load(f"{folder}/status.json"):
        if not is_active(job["id"]):
            break
        time.sleep(POLL_S)
    return int(load(f"{folder}/status.json").get("status", 1))


def is_active(job_id: str) -> bool:
    command = ["systemctl", "is-active", "--quiet", f"gpuprov-job-{job_id}.service"]
    return subprocess.run(command, check=False, timeout=60).returncode == 0
