"""Jobs by Slurm: the batch script of a job, its submission on the head node, and its time in the queue."""

from __future__ import annotations

import base64
import json
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioner.common import bounded
from provisioner.common.errors import GpuprovError
from provisioner.common.text import printable
from provisioner.lifecycle.jobs import on_nodes
from provisioner.lifecycle.slurm import head_of
from provisioner.transport import ssh, ssh_failure

if TYPE_CHECKING:
    from provisioner.lifecycle.session import Cluster

SCRIPT_LIMIT = 4 << 20
"""Bytes of a batch script (slurm.conf(5), max_script_size of SchedulerParameters)."""
ASK_S = 90.0
POLL_S = 2.0
FUTURE = "from __future__ import annotations\n"
IMPORTED = "from provisioner.lifecycle.jobs.on_node import ROOT, Refused, load, start, stop\n"
MARK = "GPUPROV_PROGRAM"


def batch_script(job: dict[str, Any], group: str, count: int, names: Sequence[str], archive: Path) -> str:
    """The script of a job on `count` nodes of a partition, or on `names`. Whole nodes: docker's containers are not
    bound by Slurm. srun sends the program to every node by standard input. Raises GpuprovError for a folder that is
    too large."""
    options = [
        f"--job-name={job['id']}", f"--partition={group}", f"--nodes={count}", "--ntasks-per-node=1", "--exclusive",
        "--mem=0", f"--gres=gpu:{job['gpus']}", "--chdir=/tmp", "--output=/dev/null", "--no-requeue",
        *([f"--nodelist={','.join(names)}"] if names else []),
    ]  # fmt: skip
    task = 'exec sudo -n env GPUPROV_TASK_NODES="$0" GPUPROV_TASK_NODE="$SLURMD_NODENAME" /usr/bin/python3 -I -'
    script = "".join(
        [
            "#!/bin/bash\n",
            *(f"#SBATCH {option}\n" for option in options),
            'nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tr "\\n" " ")\n',
            f"srun --kill-on-bad-exit=0 --wait=0 sh -c {shlex.quote(task)} \"$nodes\" <<'{MARK}'\n",
            _program(job, archive),
            f"{MARK}\n",
        ]
    )
    if len(script.encode()) > SCRIPT_LIMIT:
        raise GpuprovError(
            f"the folder is {archive.stat().st_size >> 10} KiB compressed, and Slurm takes scripts of 4 MiB",
            hint="name in .gpuprovignore what the nodes do not need; data belongs on /scratch or shared storage",
        )
    return script


def _program(job: dict[str, Any], archive: Path) -> str:
    """What each node runs: on_node.py, slurm_task.py, the request."""
    sources = [on_nodes.source(name).replace(FUTURE, "") for name in ("on_node.py", "slurm_task.py")]
    request = {
        "job": job,
        "program": on_nodes.source("supervisor.py"),
        "archive": base64.b64encode(archive.read_bytes()).decode(),
    }
    text = json.dumps(json.dumps(request))
    return "\n".join([FUTURE, *sources, f"sys.exit(run(json.loads({text})))\n"]).replace(IMPORTED, "")


def submit(cluster: Cluster, script: str) -> str:
    """Slurm's number of the job. Raises GpuprovError where Slurm refuses it."""
    return _on_head(cluster, "sbatch --parsable", script).strip().partition(";")[0]


def state(cluster: Cluster, number: str) -> tuple[str, str]:
    """State and reason of a job in the queue; empty texts once Slurm has forgotten it."""
    output = _on_head(cluster, f"squeue --noheader --states=all --jobs={number} --format='%T|%r' 2>/dev/null || true")
    first, _, reason = output.strip().partition("|")
    return first, reason


def queued(cluster: Cluster) -> dict[str, tuple[str, str]]:
    """Jobs that wait: name → Slurm's number, and why it waits."""
    output = _on_head(cluster, "squeue --noheader --states=PENDING --format='%j|%i|%r'")
    rows = [line.split("|", 2) for line in output.splitlines() if line.count("|") >= 2]
    return {name: (number, reason) for name, number, reason in rows}


def cancel(cluster: Cluster, name: str) -> None:
    """Cancel the jobs of that name."""
    _on_head(cluster, f"scancel --name={shlex.quote(name)}")


def await_start(cluster: Cluster, number: str, note: Callable[[str], None]) -> bool:
    """Wait in the queue; False where Slurm has ended the job before it started. `note` gets each reason to wait."""
    displayed = ""
    while True:
        current, reason = state(cluster, number)
        if current not in ("PENDING", "CONFIGURING"):
            return current in ("RUNNING", "COMPLETING", "COMPLETED", "FAILED")
        if reason not in (displayed, "None"):
            note(f"Slurm job {number} waits: {reason}")
            displayed = reason
        time.sleep(POLL_S)


def _on_head(cluster: Cluster, command: str, text: str = "") -> str:
    """Run a command as the login account on the head node. Raises GpuprovError."""
    head = head_of(cluster)
    if head is None:
        hint = f"run `gpuprov up {cluster.typed_file}` first"
        raise GpuprovError("the head node of Slurm is not proven", where=cluster.spec.name, hint=hint)
    argv = ssh.argv(cluster.paths, head.name)
    try:
        done = bounded.run([*argv, command], stdin=text, deadline_s=ASK_S, new_session=True)
    except subprocess.TimeoutExpired:
        raise GpuprovError(f"no answer within {ASK_S:.0f} s", where=head.name) from None
    except bounded.UnboundedOutputError as error:
        raise GpuprovError(str(error), where=head.name) from None
    output = str(printable((done.stderr + done.stdout).strip()))[-500:]
    if ssh_failure.is_own(argv, done.returncode):
        raise GpuprovError(f"ssh fails: {ssh_failure.explain(argv, output)}", where=head.name)
    if done.returncode:
        raise GpuprovError(
            f"{command.split(maxsplit=1)[0]}: {output or f'exit status {done.returncode}'}", where=head.name
        )
    return str(printable(done.stdout))
