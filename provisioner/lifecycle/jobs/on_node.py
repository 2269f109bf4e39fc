"""Runs as root on a node: starts a job of `gpuprov run`, stops it, lists those of the node.

Its source is sent to the node, followed by a call of `main` (transport/root_program.py). Requests: {"do": "start",
"job": JOB, "program": TEXT of supervisor.py}, {"do": "stop", "id": ID, "reason": TEXT}, {"do": "list"}. Standard
library only, Python 3.8 or newer.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from typing import Any

ROOT = "/var/lib/gpuprov/jobs"
IMAGES = "/etc/gpuprov/images.json"
ID = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")
RETAINED = 20
"""Jobs that have ended whose logs stay on the node."""
ANSWER_S = 60
UNIT_MARGIN_S = 300
"""Beside the job's grace: docker's commands, and the end of the other nodes."""


class Refused(Exception):
    """Why the node does not do it."""


def call(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=ANSWER_S,
            check=False, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"{command[0]}: {error}") from error


def unit(job_id: str) -> str:
    return f"gpuprov-job-{job_id}.service"


def load(path: str) -> dict[str, Any]:
    """A JSON object of a file; empty where there is none."""
    try:
        with open(path, encoding="utf-8") as stream:
            document = json.load(stream)
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def active() -> set[str]:
    """Ids of the jobs whose units run."""
    done = call(
        "systemctl", "list-units", "--plain", "--no-legend", "--state=active,activating,deactivating", "gpuprov-job-*"
    )
    if done.returncode:
        raise Refused(f"systemctl: {done.stderr.strip()[-300:]}")
    return {
        line.split()[0][len("gpuprov-job-") : -len(".service")] for line in done.stdout.splitlines() if line.strip()
    }


def jobs() -> list[dict[str, Any]]:
    """Jobs of this node, the newest first."""
    running, rows = active(), []
    for name in os.listdir(ROOT) if os.path.isdir(ROOT) else []:
        job, status = load(f"{ROOT}/{name}/job.json"), load(f"{ROOT}/{name}/status.json")
        if not job:
            continue
        state = "running" if name in running else status.get("state") or "lost"
        reason = status.get("reason") or ""
        if state == "lost":
            reason = "its process on this node is gone: the node was rebooted, or it was killed"
        log = f"{ROOT}/{name}/log"
        rows.append(
            {
                "id": name,
                "name": job["name"],
                "owner": job["owner"],
                "command": job["command"],
                "nodes": [node["name"] for node in job["nodes"]],
                "state": state,
                "status": status.get("status"),
                "reason": reason,
                "began": job["began"],
                "ended": status.get("ended"),
                "pid": status.get("pid") if state == "running" else None,
                "log_bytes": os.path.getsize(log) if os.path.exists(log) else 0,
            }
        )
    return sorted(rows, key=lambda row: row["began"], reverse=True)


def remove_old(current: str) -> None:
    """Of jobs that have ended, the last ones stay, without their folders; of those that did not start, none."""
    rows = jobs()
    for name in {*os.listdir(ROOT)} - {row["id"] for row in rows} - {current}:
        shutil.rmtree(f"{ROOT}/{name}", ignore_errors=True)
    ended = [row["id"] for row in rows if row["state"] != "running"]
    for name in ended[RETAINED - 1 :]:
        shutil.rmtree(f"{ROOT}/{name}", ignore_errors=True)
    for name in ended:  # the copy of the working folder has served
        shutil.rmtree(f"{ROOT}/{name}/work", ignore_errors=True)


def start(job: dict[str, Any], program: str) -> dict[str, Any]:
    """Start the unit of a job whose working folder was sent before."""
    folder = "{}/{}".format(ROOT, job["id"])
    if not os.path.isdir(folder + "/work"):
        raise Refused(f"{folder}/work is missing")
    for row in jobs():
        if row["state"] == "running":
            raise Refused("job {} of {} runs on it".format(row["id"], row["owner"]))
    row = image_row(job["image"])
    docker = call("docker", "info", "--format", "{{.ServerVersion}}")
    if docker.returncode:
        raise Refused(f"docker does not run: {docker.stderr.strip()[-200:]}")
    options = [str(option) for option in row["docker_run"]]
    volumes = [path for path in job["volumes"] if os.path.isdir(path)]
    checkpoints = job["checkpoints"]
    if not any(checkpoints == path or checkpoints.startswith(path + "/") for path in volumes):
        volumes.append(checkpoints)
        os.makedirs(checkpoints, exist_ok=True)
    os.makedirs(folder + "/out", exist_ok=True)
    write(folder + "/job.json", json.dumps({**job, "options": options, "volumes": volumes}))
    write(folder + "/supervisor.py", program)
    done = call(
        "systemd-run", "--quiet", "--collect", "--unit=" + unit(job["id"]),
        "--description=job {} of gpuprov".format(job["id"]),
        "--property=After=docker.service", "--property=KillMode=mixed", "--property=LimitMEMLOCK=infinity",
        f"--property=TimeoutStopSec={job['grace_s'] + UNIT_MARGIN_S}",
        "--property=ExecStopPost=-docker rm --force gpuprov-job-{}".format(job["id"]),
        "/usr/bin/python3", "-I", folder + "/supervisor.py", folder,
    )  # fmt: skip
    if done.returncode:
        raise Refused(f"systemd-run: {done.stderr.strip()[-300:]}")
    remove_old(job["id"])
    pid = call("systemctl", "show", "--property=MainPID", "--value", unit(job["id"])).stdout.strip()
    return {"pid": int(pid) if pid.isdigit() else 0}


def image_row(pull: str) -> dict[str, Any]:
    try:
        with open(IMAGES, encoding="utf-8") as stream:
            rows = json.load(stream)
        matches = [row for row in rows if row["pull"] == pull and isinstance(row["docker_run"], list)]
    except FileNotFoundError:
        matches = []
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise Refused(f"{IMAGES} cannot be read ({error}): `gpuprov up` writes it") from None
    if not matches:
        raise Refused(f"{IMAGES} does not have {pull}: `gpuprov up` writes the environment of a job")
    match: dict[str, Any] = matches[0]
    return match


def write(path: str, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)


def stop(job_id: str, reason: str) -> dict[str, Any]:
    """Ask a job to stop; where it has ended already nothing happens. Returns at once."""
    if job_id not in active():
        return {"stopping": False}
    with contextlib.suppress(OSError):
        write(f"{ROOT}/{job_id}/stop", reason)
    done = call("systemctl", "stop", "--no-block", unit(job_id))
    if done.returncode:
        raise Refused(f"systemctl stop: {done.stderr.strip()[-300:]}")
    return {"stopping": True}


def main(request: dict[str, Any]) -> None:
    os.umask(0o077)
    try:
        if "id" in request and not ID.fullmatch(request["id"]):
            raise Refused("{!r} is not the id of a job".format(request["id"]))
        if request["do"] == "start":
            answer = start(request["job"], request["program"])
        elif request["do"] == "stop":
            answer = stop(request["id"], request["reason"])
        else:
            answer = {"jobs": jobs()}
    except (Refused, OSError) as error:
        answer = {"error": str(error)}
    print("gpuprov:" + json.dumps(answer))
