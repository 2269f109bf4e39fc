"""Run the roles on the nodes that need them: on each node itself (configure/streams.py), or pushed by ansible-runner in
a child process (configure/worker.py). The events of both come on our stream."""

from __future__ import annotations

import itertools
import json
import locale
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from provisioner.common import paths, yaml_text
from provisioner.common.errors import ConfigureError
from provisioner.common.events import Events
from provisioner.common.paths import ClusterPaths
from provisioner.common.text import counted
from provisioner.configure import playbook
from provisioner.configure.drift import EVERYTHING, Half, Pass
from provisioner.rundir.fleet import Node
from provisioner.transport import ssh, ssh_config, ssh_failure, ssh_sockets
from provisioner.transport.process import AGAIN, follow
from provisioner.verify import archive

FORKS = 32
"""Nodes that a push works on at once: each has a process of Ansible's here."""
KEPT_EVENTS = 200
"""Nodes of a run whose artifacts have a file for every task on each of them, some 150 files a node; of a larger run
they have the failures, and Ansible's output."""
OTHER: dict[Half, str] = {"install": "configure", "configure": "install"}
"""Half of the roles → the tag of the other one."""
WORKER_STATUSES = (0, 2, 4)
"""How a child ends that has not crashed (configure/worker.py)."""
STOP_GRACE_S = 20.0
"""How long an interrupted Ansible may take to end its connections."""


@dataclass(slots=True)
class Outcome:
    """What happened on one node. `failed` holds "task: message" of what broke it."""

    ok: int = 0
    changed: int = 0
    failed: list[str] = field(default_factory=list)


def configure(
    cluster: ClusterPaths,
    nodes: Sequence[Node],
    inventory: Path,
    run_dir: Path,
    events: Events,
    run: Pass = EVERYTHING,
    *,
    push: bool = False,
) -> dict[str, Outcome]:
    """Run playbooks/site.yml on these nodes, or that part of it: each node runs it itself, and what cannot do that, or
    all where `push` is set, is configured from here. Gives what happened on each, also where that was a failure. Raises
    ConfigureError where Ansible itself did not run."""
    outcomes = {node.name: Outcome() for node in nodes}
    progress = _Progress(outcomes, playbook_tasks(), events, cluster)
    unable = dict.fromkeys(outcomes, "cluster.yaml has configure.push") if push else {}
    for name in ssh_config.local(cluster) & outcomes.keys() - unable.keys():
        unable[name] = "it is the machine that gpuprov runs on"
    remote = [node for node in nodes if node.name not in unable]
    if remote:
        _tell_choice(remote, {}, events)
        unable |= _run_on_nodes(cluster, remote, inventory, run_dir, run, progress)
    pushed = [node for node in nodes if node.name in unable]
    if pushed:
        _tell_choice(pushed, unable, events)
        outcomes |= {node.name: Outcome() for node in pushed}
        progress.outcomes = outcomes
        _push(cluster, pushed, inventory, run_dir, run, progress)
    return outcomes


def _tell_choice(nodes: Sequence[Node], unable: Mapping[str, str], events: Events) -> None:
    """Report for each group who runs Ansible, and why. `unable`: node → why it is pushed."""
    counts = Counter((node.group, unable.get(node.name, "")) for node in nodes)
    for (group, reason), count in counts.items():
        method = (
            f"push to {counted(count, 'node')}: {reason}" if reason else f"Ansible runs on {counted(count, 'node')}"
        )
        data = {"group": group, "nodes": count, "method": "push" if reason else "node", "reason": reason}
        events("configure", "log", f"{group}: {method}", data=data)


def _run_on_nodes(
    cluster: ClusterPaths, nodes: Sequence[Node], inventory: Path, run_dir: Path, run: Pass, progress: _Progress
) -> dict[str, str]:
    """Have each node run the roles. Gives node → why it cannot."""
    folder = _folder(run_dir)
    request = {
        "nodes": {node.name: ssh.argv(cluster, node.name) for node in nodes},
        "inventory": str(inventory),
        "folder": str(folder),
        "keep_events": len(nodes) <= KEPT_EVENTS,
        "kwargs": {"envvars": SETTINGS, **_part(run)},
    }
    unable: dict[str, str] = {}
    done: set[str] = set()

    def read(line: str) -> None:
        record = json.loads(line)
        if record["event"] == "unable":
            unable[record["host"]] = record["message"]
        elif record["event"] == "done":
            done.add(record["host"])
        else:
            progress.read(record)

    _follow("provisioner.configure.streams", request, read, folder, progress, {node.name for node in nodes})
    for name in [node.name for node in nodes if node.name not in done | unable.keys()]:
        if not progress.outcomes[name].failed:
            progress.read({"event": "failed", "host": name, "task": "Run Ansible on the node", "message": "no result"})
    return unable


def _push(
    cluster: ClusterPaths, nodes: Sequence[Node], inventory: Path, run_dir: Path, run: Pass, progress: _Progress
) -> None:
    """Run the roles from here: one Ansible for all these nodes."""
    folder, plain_paths = _folder(run_dir), ssh_sockets.plain_way(cluster)

    def plain(path: Path) -> str:
        return str(plain_paths / path.relative_to(cluster.root)) if path.is_relative_to(cluster.root) else str(path)

    limit = folder / "limit"  # a list of thousands of names is longer than one argument may be
    paths.write_whole(limit, "".join(f"{node.name}\n" for node in nodes))
    request = {
        "private_data_dir": plain(folder),
        "project_dir": str(paths.data("ansible") / "playbooks"),
        "playbook": "site.yml",
        "inventory": plain(inventory),
        "limit": f"@{plain(limit)}",
        "forks": min(FORKS, len(nodes)),
        "keep_events": len(nodes) <= KEPT_EVENTS,
        "envvars": environment(cluster),
        "extravars": extra_variables(),
        **_part(run),
    }
    names = {node.name for node in nodes}
    _follow(
        "provisioner.configure.worker", request, lambda line: progress.read(json.loads(line)), folder, progress, names
    )


def _part(run: Pass) -> dict[str, str]:
    """What of the playbook runs, as ansible-runner takes it."""
    tags = {"tags": ",".join(sorted(run.roles))} if run.roles else {}
    return tags | ({"skip_tags": OTHER[run.half]} if run.half else {})


def _follow(
    module: str,
    request: Mapping[str, Any],
    read: Callable[[str], None],
    folder: Path,
    progress: _Progress,
    names: Collection[str],
) -> None:
    """Run a child with its request, and read its lines. Raises ConfigureError where it fails and none of the nodes
    did."""
    events = progress.events
    ended = follow(
        [sys.executable, "-m", module],
        read,
        cwd=folder,
        env=_with_our_programs(),
        stdin_text=json.dumps(request),
        grace_s=STOP_GRACE_S,
        stopping=lambda: events("configure", "warning", "stopping Ansible", data={"here": AGAIN}),
    )
    crashed = ended.status not in WORKER_STATUSES
    if crashed or (ended.status and not any(progress.outcomes[name].failed for name in names)):
        complaints = "".join(ended.complaints).strip()
        complaints = complaints or "".join(
            path.read_text(errors="replace", encoding="utf-8") for path in folder.glob("artifacts/*/stdout")
        )
        raise ConfigureError(
            f"Ansible did not start: {_cause(complaints) or f'status {ended.status}'}",
            where="configure",
            hint=f"fix the cause and run the command again; Ansible's log: {folder}/artifacts",
        )


def _cause(complaints: str) -> str:
    """The end of what Ansible said; of a traceback the last line, which has the cause (a disk that is full)."""
    lines = complaints.strip().splitlines()
    return lines[-1].strip() if "Traceback (most recent call last)" in complaints else complaints.strip()[-800:]


def refuse_failures(outcomes: Mapping[str, Outcome], run_dir: Path) -> None:
    """Raise ConfigureError naming each node that failed, its task and why; the same cause is said once."""
    nodes_by_failure: dict[str, list[str]] = {}
    for name, outcome in outcomes.items():
        for failure in outcome.failed:
            nodes_by_failure.setdefault(failure, []).append(name)
    if nodes_by_failure:
        raise ConfigureError(
            "\n  ".join(f"{', '.join(names)}: {failure}" for failure, names in nodes_by_failure.items()),
            where="configure",
            hint=f"fix the cause and run `gpuprov up` again; Ansible's log: {run_dir}/ansible*/artifacts",
        )


def _folder(run_dir: Path) -> Path:
    """A folder of its own for each call of one run: ansible, ansible-2, ansible-3 …"""
    for number in itertools.count(1):
        folder = run_dir / ("ansible" if number == 1 else f"ansible-{number}")
        if not folder.exists():
            return paths.private_dir(folder)
    raise AssertionError


def _with_our_programs() -> dict[str, str]:
    """The environment with the folder of our own Python first on PATH: ansible-playbook lies there in a virtual
    environment that nobody has activated. Ansible refuses a locale that is not UTF-8, and is given one that is."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    utf8 = locale.getencoding().lower() in ("utf-8", "utf8")
    return {**os.environ, "PATH": programs} | ({} if utf8 else {"LC_ALL": "C.UTF-8"})


@dataclass(frozen=True, slots=True)
class Tasks:
    """The playbook as a progress bar needs it: how many tasks it has for one node, and the name of the last one, which
    runs whatever the tags. With tags fewer of them run."""

    count: int
    last: str


def playbook_tasks() -> Tasks:
    """What playbooks/site.yml has for one node."""
    site_playbook, root = playbook.load(), paths.data("ansible") / "roles"
    files = [root / role / "tasks" / f"{part}.yml" for role in site_playbook.roles for part in ("install", "configure")]
    total = sum(len(yaml_text.load(file.read_text(encoding="utf-8"))) for file in files if file.exists())
    return Tasks(total + len(site_playbook.tasks), site_playbook.tasks[-1])


SETTINGS = {
    "ANSIBLE_PIPELINING": "True",
    "ANSIBLE_INTERPRETER_PYTHON": "/usr/bin/python3",
    "ANSIBLE_GATHERING": "explicit",
    # Roles read what a node says about itself as ansible_facts.…; as variables it would stand above the inventory
    # and the roles' own defaults, and a node could have any file of this machine copied to it.
    "ANSIBLE_INJECT_FACT_VARS": "False",
    "ANSIBLE_RETRY_FILES_ENABLED": "False",
    "ANSIBLE_DEPRECATION_WARNINGS": "False",
    "ANSIBLE_NOCOLOR": "True",
}
"""Ansible's settings, wherever it runs."""


def environment(cluster: ClusterPaths) -> dict[str, str]:
    """Ansible's settings for a push: our ssh configuration (pinned host keys, shared connections), our roles."""
    root, plain_paths = paths.data("ansible"), ssh_sockets.plain_way(cluster)
    return {
        **SETTINGS,
        "ANSIBLE_ROLES_PATH": str(root / "roles"),
        "ANSIBLE_LIBRARY": str(root / "plugins" / "modules"),
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_SSH_ARGS": f"-F {shlex.quote(str(ssh_sockets.run_config(cluster)))}",
        "ANSIBLE_SSH_RETRIES": "2",
        "ANSIBLE_TIMEOUT": "30",
        "ANSIBLE_CONFIG": str(root / "ansible.cfg"),
        "ANSIBLE_LOCAL_TEMP": str(plain_paths / "tmp"),
    }


def extra_variables() -> dict[str, str]:
    """What roles get from this machine. Nothing stands above Ansible's extra variables: no inventory, no node."""
    return {"health_archive": str(archive.write_archive())}


@dataclass(slots=True)
class _Progress:
    """What the lines of workers say, as outcomes and events."""

    outcomes: dict[str, Outcome]
    tasks: Tasks
    events: Events
    cluster: ClusterPaths

    def read(self, record: Mapping[str, Any]) -> None:
        """One line: {"event", "host", "task", "changed", "message"}."""
        outcome, events = self.outcomes.get(record.get("host") or ""), self.events
        task = record.get("task", "")
        kind = record["event"]
        if kind in ("error", "note"):
            events("configure", "warning", record.get("message", ""), node=record.get("host") if outcome else None)
        if outcome is None:
            return
        if kind in ("ok", "skipped"):
            outcome.ok += 1
            outcome.changed += bool(record.get("changed"))
        if kind in ("failed", "unreachable"):
            reason = record.get("message", "")
            if kind == "unreachable" and reason.endswith(":"):  # Ansible quotes an ssh that has printed nothing
                reason += f" {ssh_failure.explain(ssh.argv(self.cluster, record['host']), '')}"
            outcome.failed.append(f"{task}: {reason}")
            data = {"task": task, "reason": reason}
            events("configure", "failed", f"{task}: {reason}", node=record["host"], unit="task", data=data)
        elif kind == "start" or record.get("changed") or task == self.tasks.last:
            is_end = kind != "start" and task == self.tasks.last
            through = self.tasks.count if is_end else min(outcome.ok, self.tasks.count)
            data = {"changed": True} if record.get("changed") else {}
            counts = {"done": through, "total": self.tasks.count, "unit": "task"}
            events("configure", "progress", task, node=record["host"], data=data, **counts)
        elif kind == "retry":
            events("configure", "warning", f"{task}: retried: {record.get('message', '')}", node=record["host"])
