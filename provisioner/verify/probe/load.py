"""The load program on the node (load.json), and the tools that are asked beside it and after it.

Runs only where a level asks for it. load.json says what became of the load program (load/program.py):
{"state": "ran", "busy" or "absent", "launcher", "why", "busy": [{"pid", "name"}], "rc", "timed_out", "seconds",
"output", "error"}. Busy means that a process has the GPUs, so nothing was started; each has its "cgroup" (proc(5)) and
its "parent" too, which tell whose it is. Beside it lie the files of the request's "during" (in the middle of the
matrix products), "throughout" (again and again from then on) and "after".

Standard library only, Python 3.8 or newer. Nothing is written on the node: the program travels through a pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

from provisioner.verify.probe.job import job_options, unwritten
from provisioner.verify.probe.runner import COLLECTORS, PATH, job, listed, program_environment, result, run

LOAD_MARK = "@gpuprov-load-1 "
SAMPLES = 1 << 20
"""Characters of answers that are kept of what is asked again and again."""
ASK_S = 30.0
SUPERVISOR = re.compile(r"/var/lib/gpuprov/jobs/([a-z0-9-]+)/supervisor\.py")
"""The program of a job of `gpuprov run` (lifecycle/jobs/on_node.py)."""
"""For every tool that is asked beside the load and after it."""
IN_CONTAINER = "cat > /tmp/gpuprov-load.py && exec torchrun {} /tmp/gpuprov-load.py {}"


def load(seconds: float, request: dict[str, Any]) -> dict[str, Any]:
    """Run the load program once; `seconds` is its deadline, start of the container and all."""
    load_request = request["load"]
    holders = occupied(load_request["vendor"])
    if holders is None:
        return document({"state": "absent", "why": "cannot tell whether a job is using the GPUs"})
    if holders:
        return document({"state": "busy", "busy": holders})
    command, feed, launcher = launch(load_request)
    if command is None:
        return document({"state": "absent", "why": launcher})
    watched: dict[str, Any] = {}

    def look() -> None:
        watched.update({name: job(name, ASK_S, request) for name in load_request["during"]})

    def sample() -> None:
        for name in load_request.get("throughout", ()):
            watched[name] = appended(watched.get(name), job(name, ASK_S, request))

    outcome_of_run = follow(
        command,
        feed,
        seconds,
        look,
        float(load_request.get("settle", 2.0)),
        sample,
        float(load_request.get("every", 5.0)),
    )
    if outcome_of_run["timed_out"] and command[0] == "docker":
        run(["docker", "rm", "--force", container()], ASK_S)
    watched.update({name: job(name, ASK_S, request) for name in load_request["after"]})
    outcome_of_run.update(state="ran", launcher=launcher)
    return document(outcome_of_run, watched)


def appended(previous: dict[str, Any] | None, current: dict[str, Any]) -> dict[str, Any]:
    """An answer behind those before it; one that is none is told where there is no other."""
    if previous is None or previous["rc"] != 0:
        return current
    if current["rc"] == 0 and len(previous["text"]) < SAMPLES:
        previous["text"] += current["text"]
    return previous


def document(content: dict[str, Any], extra_files: dict[str, Any] | None = None) -> dict[str, Any]:
    """load.json as a result of the probe, with the files that lie beside it."""
    answer = result(json.dumps(content), 0, content.get("seconds", 0.0))
    answer["beside"] = extra_files or {}
    return answer


def container() -> str:
    return f"gpuprov-load-{os.getpid()}"


def occupied(vendor: str) -> list[dict[str, Any]] | None:
    """Processes that compute on the GPUs, and those by which Slurm runs a job here, which may need them next; None
    where nobody says."""
    holders = busy(vendor)
    return None if holders is None else holders + job_steps()


def job_steps(processes: str = "/proc") -> list[dict[str, Any]]:
    """slurmstepd of each job's step; that of the node itself has `infinity` in place of a job (cgroup_v2.html). And
    the supervisor of each job of `gpuprov run`."""
    steps = []
    for pid in filter(str.isdigit, listed(processes)):
        with contextlib.suppress(OSError), open(f"{processes}/{pid}/cmdline", "rb") as stream:  # noqa: PTH123
            arguments = [term for term in stream.read(4096).decode("utf-8", "replace").split("\0") if term]
            if arguments and "slurmstepd" in arguments[0] and arguments[1:] != ["infinity"]:
                steps.append(owned({"pid": int(pid), "name": "slurmstepd"}))
            elif own_job(arguments) and is_local(f"{processes}/{pid}"):
                steps.append(owned({"pid": int(pid), "name": f"job {own_job(arguments)} of gpuprov"}))
    return steps


def own_job(arguments: list[str]) -> str:
    """The id of a job of `gpuprov run`, of the arguments of its supervisor; "" for any other process."""
    match = next((SUPERVISOR.fullmatch(argument) for argument in arguments[:4] if SUPERVISOR.fullmatch(argument)), None)
    return match[1] if match else ""


def is_local(process: str) -> bool:
    """Whether a process is of this node, not of a container on it: a sandbox node is one, to the computer that has
    it. True where nobody says."""
    try:
        namespaces = [os.readlink(f"{path}/ns/pid") for path in (process, "/proc/self")]  # noqa: PTH115 (a plain script)
    except OSError:
        return True
    return namespaces[0] == namespaces[1]


def busy(vendor: str) -> list[dict[str, Any]] | None:
    """Processes that compute on the GPUs; None where nobody says, and none on a node without GPUs (`vendor` none)."""
    if vendor == "none":
        return []
    if vendor == "amd":
        if not listed("/sys/class/kfd/kfd"):
            return None
        return [owned({"pid": int(name), "name": program(name)}) for name in listed("/sys/class/kfd/kfd/proc")]
    out = run(["nvidia-smi", "--query-compute-apps=pid,process_name", "--format=csv,noheader"], ASK_S)
    if out["rc"] != 0:
        return None
    rows = [line.split(",", 1) for line in out["text"].splitlines() if line.strip() and line[0].isdigit()]
    return [owned({"pid": int(row[0]), "name": row[-1].strip()}) for row in rows if row[0].strip().isdigit()]


def owned(holder: dict[str, Any]) -> dict[str, Any]:
    """The process with its control group and its parent; without them where it is not in /proc."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open(f"/proc/{holder['pid']}/cgroup", "rb") as stream:  # noqa: PTH123 (a plain script)
            group = stream.read(4096).decode("utf-8", "replace").strip()
        with open(f"/proc/{holder['pid']}/stat", "rb") as stream:  # noqa: PTH123
            # The name stands in brackets and may have any characters: state and parent are behind the last one.
            parent = int(stream.read(1024).rpartition(b")")[2].split()[1])
        holder.update(cgroup=group, parent=parent)
    return holder


def program(pid: str) -> str:
    """Its name, without its arguments."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/comm", "rb") as stream:  # noqa: PTH123 (a plain script)
        return stream.read().decode("utf-8", "replace").strip()
    return ""


def launch(load_request: dict[str, Any]) -> tuple[list[str] | None, bytes, str]:
    """The command, what it gets on its standard input, and a name for people; no command and the reason where neither a
    locked image nor the node's own Python has PyTorch, or nothing says how jobs run in the image.

    In the image it has the environment of a job but for the network: torchrun's rendezvous listens on every address, so
    the container has its own loopback alone, and NCCL is kept from cards that it would not use on one node."""
    program_options = " ".join(f"--{name} {value}" for name, value in sorted(load_request["options"].items()))
    ranks = "--standalone --local-addr 127.0.0.1 --nproc-per-node gpu"
    text = load_request["program"].encode()
    environment = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "OMP_NUM_THREADS": "4"}
    environment.update(GLOO_SOCKET_IFNAME="lo", NCCL_SOCKET_IFNAME="lo")
    if load_request.get("image"):
        options = job_options(load_request["image"], network=False)
        if options is None:
            return None, b"", unwritten(load_request["image"])
        environment.update(NCCL_NET="Socket")
        command = ["docker", "run", "--rm", "--interactive", "--name", container(), "--pull=never"]
        command += ["--security-opt", "no-new-privileges", *options]
        command += [item for pair in environment.items() for item in ("--env", "=".join(pair))]
        command += ["--entrypoint", "sh", load_request["image"], "-c", IN_CONTAINER.format(ranks, program_options)]
        return command, text, "docker " + load_request["reference"]
    python = load_request.get("python") or "python3"
    torch_probe = run([python, "-c", "import torch; print(torch.__version__)"], 2 * ASK_S)
    if torch_probe["rc"] != 0:
        return None, b"", f"no locked image has PyTorch, and the node's own {python} has none either"
    # A file that exists in memory only: torchrun wants a path, and nothing is to be left on the node.
    handle = os.memfd_create("gpuprov-load", 0)  # type: ignore[attr-defined,unused-ignore]
    os.write(handle, text)
    command = ["env", *("=".join(pair) for pair in environment.items()), python, "-m", "torch.distributed.run"]
    command += [*ranks.split(), f"/proc/{os.getpid()}/fd/{handle}", *program_options.split()]
    return command, b"", f"{python} of the node, PyTorch " + torch_probe["text"].strip()


def follow(
    command: list[str],
    feed: bytes,
    deadline: float,
    look: Callable[[], None] | None,
    settle: float,
    sample: Callable[[], None] | None = None,
    every: float = 5.0,
) -> dict[str, Any]:
    """Run it to its end or its deadline; its marked lines, and the end of what it complained of. `look` is called in a
    thread, `settle` seconds after the matrix products have begun; then `sample`, `every` so many seconds."""
    started = time.monotonic()
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**program_environment(), "PATH": PATH}, cwd="/", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return {"rc": None, "timed_out": False, "seconds": 0.0, "output": "", "error": str(error)}
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    marked_lines: list[str] = []
    complaints: list[str] = []
    looks: list[threading.Thread] = []
    ended = threading.Event()

    def watch() -> None:
        time.sleep(settle)
        if look is not None and process.poll() is None:
            look()
        while sample is not None and not ended.is_set() and process.poll() is None:
            sample()
            ended.wait(every)

    def read() -> None:
        for raw in process.stdout:  # type: ignore[union-attr]
            line = raw[: 1 << 20].decode("utf-8", "replace").rstrip("\n")
            if not line.startswith(LOAD_MARK) or len(marked_lines) > 100:
                continue
            marked_lines.append(line)
            if line == LOAD_MARK + "phase compute" and look is not None:
                looks.append(threading.Thread(target=watch, daemon=True))
                looks[-1].start()

    def complain() -> None:
        for raw in process.stderr:  # type: ignore[union-attr]
            complaints.append(raw[:500].decode("utf-8", "replace"))
            del complaints[:-40]

    readers = [threading.Thread(target=of, daemon=True) for of in (read, complain)]
    for reader in readers:
        reader.start()
    with contextlib.suppress(OSError):
        process.stdin.write(feed)
    with contextlib.suppress(OSError):
        process.stdin.close()
    try:
        process.wait(max(1.0, deadline - (time.monotonic() - started)))
        timed_out = False
    except subprocess.TimeoutExpired:
        timed_out = True
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
    ended.set()
    seconds = time.monotonic() - started
    for thread in [*readers, *looks]:
        thread.join(ASK_S if thread in looks else 5.0)
    return {
        "rc": None if timed_out else process.returncode,
        "timed_out": timed_out,
        "seconds": round(seconds, 3),
        "output": "\n".join(marked_lines),
        "error": "".join(complaints)[-3000:],
    }


COLLECTORS["load.json"] = load
