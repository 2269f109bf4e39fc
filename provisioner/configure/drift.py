"""Which nodes are not what the lock says, and why: one short script per node, in one round trip.

The answer comes from what is really installed and running, compared with the lock; the stamp that the playbook leaves
only says for which inputs (roles, variables) it ran. A node without a difference costs no Ansible.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from provisioner import paths, ssh
from provisioner.fleet import PARALLEL, Node, group_variables
from provisioner.paths import ClusterPaths
from provisioner.plan import Plan, PlannedGroup

DEADLINE_S = 60.0

SCRIPT = r"""
LC_ALL=C; export LC_ALL
echo '== stamp'; cat /etc/gpuprov/node.json 2>/dev/null
echo '== packages'; dpkg-query -W -f '${Package} ${Version} ${db:Status-Abbrev}\n' 2>/dev/null
echo '== holds'; apt-mark showhold 2>/dev/null
echo '== services'; for unit in $UNITS; do echo "$unit $(systemctl is-active "$unit" 2>/dev/null)"; done
echo '== images'; for image in $IMAGES; do
  echo "$image $(timeout 20 docker image inspect --format '{{ join .RepoDigests " " }}' "$image" 2>/dev/null)"
done
echo '== end'
"""


def fingerprint(plan: Plan, group: str, role_variables: dict[str, Any]) -> str:
    """What a node of this group is configured from: the roles' text, the group's variables, the provider's."""
    digest = hashlib.sha256(json.dumps([group_variables(group, plan), role_variables], sort_keys=True).encode())
    root = paths.data("ansible")
    for file in sorted(root.rglob("*")):
        if file.is_file() and file.suffix in (".yml", ".py", ".j2"):
            digest.update(str(file.relative_to(root)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def stamps(plan: Plan, role_variables: dict[str, Any]) -> dict[str, str]:
    """Group → fingerprint."""
    return {group.name: fingerprint(plan, group.name, role_variables) for group in plan.groups}


def units(group: PlannedGroup, *, exporter: bool) -> list[str]:
    """The services that run on such a node when the roles have done their work."""
    wanted = ["docker"]
    if group.gpu.vendor == "nvidia":
        wanted += ["nvidia-dcgm"]
        wanted += ["nvidia-persistenced"] if group.spec.gpu.persistence else []
        wanted += ["nvidia-fabricmanager"] if group.machine.fabric_manager_required else []
        wanted += ["nvidia-dcgm-exporter"] if exporter else []
    return wanted


def find(
    cluster: ClusterPaths, nodes: Sequence[Node], plan: Plan, role_variables: dict[str, Any]
) -> dict[str, list[str]]:
    """Node name → what differs from the lock, one sentence each; empty for a node that is what the lock says.

    A node that can't be asked differs: it is configured, or fails there with its reason.
    """
    wanted = stamps(plan, role_variables)

    def one(node: Node) -> list[str]:
        group = plan.group(node.group)
        try:
            answer = _ask(cluster, node, group, exporter=plan.spec.monitoring.dcgm_exporter)
        except (OSError, subprocess.TimeoutExpired) as error:
            return [f"it could not be asked: {error}"]
        return differences(answer, group, wanted[group.name], exporter=plan.spec.monitoring.dcgm_exporter)

    with ThreadPoolExecutor(max_workers=PARALLEL) as pool:
        return dict(zip((n.name for n in nodes), pool.map(one, nodes), strict=True))


def _ask(cluster: ClusterPaths, node: Node, group: PlannedGroup, *, exporter: bool) -> str:
    # References and unit names are of a narrow alphabet (spec/models.py), so quoting them once is enough.
    images = " ".join(image.reference for image in group.stack.images)
    script = f"UNITS='{' '.join(units(group, exporter=exporter))}'\nIMAGES='{images}'\n{SCRIPT}"
    done = subprocess.run(
        [*ssh.argv(cluster, node.name), "sudo -n sh -s"],
        input=script,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.returncode:
        raise OSError(done.stderr.strip()[-300:] or f"ssh exited with status {done.returncode}")
    return done.stdout


def differences(answer: str, group: PlannedGroup, stamp: str, *, exporter: bool) -> list[str]:
    """Compare a node's answer with the lock. A part that is absent from the answer is a difference."""
    parts = _sections(answer)
    if "end" not in parts:
        return ["its answer broke off"]
    found = []
    try:
        configured = json.loads("\n".join(parts["stamp"]) or "{}").get("fingerprint")
    except ValueError:
        configured = None
    if configured != stamp:
        found.append("configured for other roles or variables" if configured else "not configured yet")
    installed = {name: (version, state) for name, version, state in _rows(parts["packages"], 3)}
    holds = set(parts["holds"])
    for package in group.stack.packages:
        version, state = installed.get(package.name, ("", ""))
        if version != package.version or state[1:2] != "i":
            found.append(f"{package.name} is {version or 'not installed'}, locked {package.version}")
        elif package.name not in holds:
            found.append(f"{package.name} is not held")
    services = dict(_rows(parts["services"], 2))
    for unit in units(group, exporter=exporter):
        if services.get(unit) != "active":
            found.append(f"{unit} is {services.get(unit) or 'unknown'}")
    images = {line.split(" ")[0]: line for line in parts["images"]}
    for image in group.stack.images:
        if image.digest not in images.get(image.reference, ""):
            found.append(f"{image.reference} is not the locked image")
    return found


def _sections(answer: str) -> dict[str, list[str]]:
    sections: dict[str, list[str]] = {}
    current: list[str] = []
    for line in answer.splitlines():
        if line.startswith("== "):
            current = sections.setdefault(line[3:], [])
        elif line:
            current.append(line)
    return sections


def _rows(lines: list[str], width: int) -> list[list[str]]:
    return [row for row in (line.split() for line in lines) if len(row) == width]
