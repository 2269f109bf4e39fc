"""Runs as root on a head node: tells what Slurm says of its nodes, and takes them out of service and back.

Only the standard library of Python 3.8 and later: its source is sent to the node, followed by a call of `main`
(transport/root_program.py). Requests: {"do": "states"}, {"do": "jobs", "nodes": [NAME]}, {"do": "drain", "nodes":
{NAME: REASON}}, {"do": "resume", "nodes": [NAME], "wait_s": SECONDS}, {"do": "queue"}, {"do": "key"}, {"do": "watch",
"share": PERCENT, "most": NUMBER}.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

OURS = "gpuprov"
"""How a reason of gpuprov begins."""
BAD = "gpuprov bad: "
"""How a comment begins that slurm_health.py sets on a node."""
BY_GPUPROV = re.compile(r"gpuprov(?::| (?:quarantine|health|up|upgrade|replace|maintain)(?::|$))")
"""Reasons that gpuprov gives; a person may begin one with its name, too."""
SLURM = "slurm"
"""The user of drains and downs that slurmctld itself orders (SlurmUser)."""
NODE = re.compile(r"^NodeName=(\S+)")
STATE = re.compile(r"\bState=(\S+)")
REASON = re.compile(r"\bReason=(.*?)(?: \[([^\s\[\]@]+)@[^\s\]]*\])?(?: Comment=(.*))?$")
COMMENT = re.compile(r" Comment=(.*)$")
"""Last on a line. A reason of slurm.conf has no user and no time."""
ACTIVE = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING"
"""States of jobs that have nodes. Without them squeue leaves suspended jobs out (squeue(1))."""
OUT = {
    "DRAIN", "NOT_RESPONDING", "FAIL", "INVALID_REG", "REBOOT_ISSUED", "REBOOT_REQUESTED", "POWERING_DOWN",
    "POWER_DOWN", "POWERED_DOWN",
}  # fmt: skip
"""Flags of a node that gets no jobs (sinfo(1), NODE STATE CODES)."""
KEY_FILE = Path("/etc/munge/munge.key")
PAUSE_S = 0.5
DEADLINE_S = 60
REASON_LENGTH = 200
"""Characters of a reason: sinfo prints it on one line."""


class Refused(Exception):
    """What a program of Slurm said against it."""


def call(*command: str) -> str:
    """What it prints. Raises Refused."""
    environment = dict(os.environ, LC_ALL="C", SLURM_TIME_FORMAT="standard")
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=DEADLINE_S,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"{command[0]}: {error}") from error
    if done.returncode:
        raise Refused(f"{command[0]}: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def parse_nodes(text: str) -> dict[str, dict[str, Any]]:
    """Node → `state` (IDLE, DRAIN, …), `reason`, `user` and `comment`, empty where there is none."""
    nodes = {}
    for line in text.splitlines():
        name, state = NODE.match(line), STATE.search(line)
        if name is None or state is None:
            continue
        reason, comment = REASON.search(line), COMMENT.search(line)
        nodes[name[1]] = {
            "state": state[1].split("+"),
            "reason": reason[1] if reason else "",
            "user": (reason[2] or "") if reason else "",
            "comment": comment[1] if comment else "",
        }
    return nodes


def states() -> dict[str, dict[str, Any]]:
    """All nodes that Slurm knows. Raises Refused."""
    return parse_nodes(call("scontrol", "show", "nodes", "--oneliner"))


def is_ours(node: dict[str, Any]) -> bool:
    """Whether gpuprov took the node out of service."""
    return bool(BY_GPUPROV.match(node["reason"])) and node["user"] in ("", "root", SLURM)


def is_foreign(node: dict[str, Any]) -> bool:
    """Whether somebody else took the node out of service, neither gpuprov nor Slurm by itself."""
    return bool(node["reason"]) and not is_ours(node) and node["user"] != SLURM


def drain(reasons: dict[str, str]) -> dict[str, Any]:
    """Nodes that somebody else drained keep their reason; those that Slurm does not know run no jobs."""
    known, failed, foreign = states(), {}, {}
    for name, reason in reasons.items():
        node = known.get(name)
        if node is None:
            continue
        if "DRAIN" in node["state"] and is_foreign(node):
            foreign[name] = f"{node['user']}: {node['reason']}"
            continue
        try:
            text = " ".join(f"{OURS} {reason}".split())[:REASON_LENGTH]
            call("scontrol", "update", f"nodename={name}", "state=drain", f"reason={text}")
        except Refused as error:
            failed[name] = str(error)
    return {"failed": failed, "foreign": foreign}


def resume(names: list[str], wait_s: float) -> dict[str, Any]:
    """Only what gpuprov, or Slurm by itself, took out of service. Waits until the nodes have answered."""
    known, failed, foreign = states(), {}, {}
    waiting, refused = [], {}
    for name in names:
        node = known.get(name)
        if node is None:
            failed[name] = "Slurm does not know the node"
            continue
        is_out = "DRAIN" in node["state"] or node["state"][0] in ("DOWN", "FAIL")
        if is_out and is_foreign(node):
            foreign[name] = f"{node['user']}: {node['reason']}"
            continue
        changes = ["state=resume"] if is_out else []
        changes += ["comment="] if node["comment"].startswith(BAD) else []  # other comments are somebody's
        if changes:
            try:
                call("scontrol", "update", f"nodename={name}", *changes)
            except Refused as error:
                # Of a node that has never answered slurmctld lifts the drain, and says "Invalid node state specified".
                refused[name] = f": {error}"
        waiting.append(name)
    until = time.monotonic() + wait_s
    while waiting:
        known = states()
        late = {name: known[name] for name in waiting if name in known and not is_in_service(known[name])}
        if not late or time.monotonic() > until:
            for name, node in late.items():
                reason = f" ({node['reason']})" if node["reason"] else ""
                state = f"{'+'.join(node['state'])}{reason} after {wait_s:g} s"
                failed[name] = f"in Slurm it is {state}{refused.get(name, '')}"
            break
        time.sleep(PAUSE_S)
    return {"failed": failed, "foreign": foreign}


def watch(share: int, limit: int) -> dict[str, Any]:
    """Drain nodes in service whose own checks say that they are bad (slurm_health.py), unless more would be out of
    service then than `share` percent of the nodes or `limit`: with so many the cause is not the nodes."""
    known = states()
    bad = {
        name: node["comment"][len(BAD) :] for name, node in known.items()
        if is_in_service(node) and node["comment"].startswith(BAD)
    }  # fmt: skip
    out = [name for name, node in known.items() if not is_in_service(node)]
    bound = min(limit, max(1, len(known) * share // 100))
    if bad and len(out) + len(bad) > bound:
        return {"breaker": f"{len(bad)} bad nodes and {len(out)} out of service, at most {bound}", "bad": sorted(bad)}
    return drain({name: f"health: {text}" for name, text in bad.items()}) | {"bad": sorted(bad)}


def is_in_service(node: dict[str, Any]) -> bool:
    """Whether jobs may start on the node: slurmd has answered, and nobody drained it."""
    return node["state"][0] in ("IDLE", "ALLOCATED", "MIXED", "COMPLETING") and not OUT & {*node["state"]}


def jobs(names: list[str]) -> dict[str, list[str]]:
    """Node → ids of jobs that have it, those that are ending included."""
    running: dict[str, list[str]] = {}
    members: dict[str, list[str]] = {}
    for line in call("squeue", "--all", "--noheader", f"--states={ACTIVE}", "--format=%i %N").splitlines():
        id, _, hosts = line.strip().partition(" ")
        if hosts and hosts not in members:
            members[hosts] = call("scontrol", "show", "hostnames", hosts).split()
        for name in members.get(hosts, ()):
            if name in names:
                running.setdefault(name, []).append(id)
    return running


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What the request asks for. Raises Refused."""
    action = request["do"]
    if shutil.which("scontrol") is None:  # cluster.yaml has a scheduler since a moment ago, and no run has installed it
        return {"nodes": {}, "jobs": {}, "queue": [], "failed": {}, "foreign": {}}
    if action == "states":
        return {"nodes": states()}
    if action == "jobs":
        return {"jobs": jobs(request["nodes"])}
    if action == "drain":
        return drain(request["nodes"])
    if action == "resume":
        return resume(request["nodes"], request["wait_s"])
    if action == "watch":
        return watch(request["share"], request["most"])
    if action == "queue":
        return {"queue": call("squeue", "--all", "--noheader", "--format=%i").split()}
    if action == "key":
        return {"key": base64.b64encode(KEY_FILE.read_bytes()).decode()}
    raise Refused(f"no such request: {action}")


def main(request: dict[str, Any]) -> None:
    """Do what is asked, and print an answer."""
    try:
        document = answer(request)
    except (Refused, OSError, ValueError) as error:
        document = {"error": str(error)}
    print("gpuprov:" + json.dumps(document))
