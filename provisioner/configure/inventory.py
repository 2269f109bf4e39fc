"""The Ansible inventory: a group per group of cluster.yaml, its part of the lock as variables. No secret is in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from provisioner import catalog
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths, write_whole
from provisioner.common.text import bracketed
from provisioner.plan import roles
from provisioner.plan.models import Plan, PlannedGroup
from provisioner.plan.roles import prometheus
from provisioner.rundir.fleet import Node
from provisioner.spec.site import CloudSite
from provisioner.stack.models import on_node
from provisioner.stack.texts import TEMPLATES
from provisioner.transport import ssh_config
from provisioner.verify import archive
from provisioner.verify.expectations import expect
from provisioner.verify.parsers.stamp import RoleStamp


def write(
    paths: ClusterPaths,
    nodes: list[Node],
    plan: Plan,
    variables: dict[str, Any],
    stamps: Mapping[str, Mapping[str, RoleStamp]],
    obsolete: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Write inventory.yml and give its path.

    `variables`: the providers', for all groups. `stamps`: group → role → what the playbook records on the node once the
    role has run. `obsolete`: group → packages of earlier locks that this one has not; the roles remove them.
    """
    local, groups = ssh_config.local(paths), {}
    for planned in plan.groups:
        groups[planned.name] = {
            "hosts": {n.name: _of_node(n, n.name in local, plan) for n in nodes if n.group == planned.name},
            "vars": {
                **group_variables(planned.name, plan),
                "gpuprov_stamps": {role: stamp.to_json() for role, stamp in stamps[planned.name].items()},
                "gpuprov_obsolete": list((obsolete or {}).get(planned.name, ())),
            },
        }
    refuse_templates({"children": groups, "vars": variables})
    inventory = {"all": {"children": _untrusted(groups), "vars": _untrusted(variables)}}
    # JSON is YAML, and Ansible reads it an order of magnitude faster than YAML's long form.
    write_whole(paths.inventory, json.dumps(inventory, indent=1) + "\n")
    return paths.inventory


def _of_node(node: Node, local: bool, plan: Plan) -> dict[str, str]:
    """Variables of one host. This very machine is reached without ssh. Exporters listen on the address that a cloud has
    given the machine, IPv6 in brackets as before a port. A machine of one's own may be known by a name, or by an
    address that is not its own."""
    is_of_cloud = isinstance(plan.spec.sites.get(node.site), CloudSite)
    variables = {
        "gpuprov_node": node.name,
        "gpuprov_private_address": node.private_address,
        "gpuprov_listen_address": bracketed(node.private_address) if is_of_cloud else "",
    }
    variables |= {"gpuprov_user": node.user} if node.user else {}
    return variables | ({"ansible_connection": "local"} if local else {})


def group_variables(name: str, plan: Plan) -> dict[str, Any]:
    """What the roles know of a group's machines: facts of the catalogue and of the lock, never of the node. Each role
    adds its own (provisioner/plan/roles)."""
    group = plan.group(name)
    common: dict[str, Any] = {
        "gpuprov_group": name,
        "gpuprov_site": group.site,
        # Why a version was chosen is for people: a better sentence is no reason to configure a node again.
        "gpuprov_stack": on_node(group.stack),
        "gpuprov_gpu_vendor": group.gpu.vendor,
        "gpuprov_gpu_arch": group.gpu.arch,
        "gpuprov_gpu_count": group.machine.gpu_count,
        "gpuprov_network_kind": group.machine.network.kind,
        "gpuprov_network_ports": group.machine.network.ports,
        "gpuprov_network_pci": list(group.machine.rdma_pci),
        "gpuprov_user": plan.spec.user(group.site),
    }
    for role in roles.registry().values():
        common |= role.variables(group, plan)
    if common["gpuprov_health"] is not None:
        common["gpuprov_health"] |= _checks(group, plan)
    return common


def _checks(group: PlannedGroup, plan: Plan) -> dict[str, Any]:
    """What the checks on a node expect of it, and their sha256: other checks are a reason to run role health."""
    expected = expect(
        group.machine, group.gpu, group.stack, group.spec, catalog.load(), level="quick", simulated=plan.simulated
    )
    return {"expected": expected.to_json(), "archive": archive.digest()}


def of_one_node(document: Mapping[str, Any], name: str, folder: str) -> tuple[dict[str, Any], dict[str, Path]]:
    """The inventory of one node alone, for a run on the node itself, and the files of this computer that it names: name
    below `folder`, where they lie there, → file here. Variables of other nodes, groups and sites are left out; of those
    that share memory over NVLink with it the node knows the addresses."""
    children = document["all"]["children"]
    group = next(group for group, child in children.items() if name in child["hosts"])
    own_vars, variables = children[group]["vars"], dict(document["all"]["vars"])
    hosts = {name: children[group]["hosts"][name]}
    if own_vars.get("gpuprov_imex"):
        neighbours = children[group]["hosts"].items()
        hosts |= {other: {ADDRESS: of[ADDRESS]} for other, of in neighbours if other != name}
    for variable, key in PARTS.items():
        if variable in variables:
            part = group if key == "gpuprov_group" else plain(own_vars[key])
            variables[variable] = {at: value for at, value in variables[variable].items() if at == part}
    if own_vars.get("gpuprov_slurm_part") != {_UNTRUSTED: "controller"} and "gpuprov_slurm" in variables:
        is_node = own_vars.get("gpuprov_slurm_part") == {_UNTRUSTED: "node"}
        variables["gpuprov_slurm"] = {k: variables["gpuprov_slurm"][k] for k in OF_SLURM_NODES} if is_node else {}
    files: dict[str, Path] = {}
    if group in variables.get("gpuprov_prometheus", {}):
        head = dict(variables["gpuprov_prometheus"][group])
        for key in [key for key in prometheus.PATHS if head[key] is not None]:
            files[key] = Path(plain(head[key]))
            head[key] = _untrusted(f"{folder}/{key}")
        variables["gpuprov_prometheus"] = {group: head}
    return {"all": {"children": {group: {"hosts": hosts, "vars": own_vars}}, "vars": variables}}, files


ADDRESS = "gpuprov_private_address"
PARTS = {
    "gpuprov_prometheus": "gpuprov_group", "gpuprov_block_ends": "gpuprov_group", "gpuprov_mounts": "gpuprov_site",
}  # fmt: skip
"""Variables of all groups that have a part for each group or site → the node's own variable that chooses it."""
OF_SLURM_NODES = ("head", "health")
"""What of `gpuprov_slurm` a node needs that runs jobs; the rest is of the head node."""

_UNTRUSTED = "__ansible_unsafe"
"""The key under which Ansible's JSON has a text that is no template, as !unsafe has it in YAML."""


def _untrusted(value: Any) -> Any:
    """The value with each text in it marked so that Ansible evaluates none."""
    if isinstance(value, str):
        return {_UNTRUSTED: value}
    if isinstance(value, dict):
        return {key: _untrusted(inner) for key, inner in value.items()}
    return [_untrusted(inner) for inner in value] if isinstance(value, list | tuple) else value


def plain(value: Any) -> Any:
    """The values that `write` was given, from what it has written."""
    if isinstance(value, dict):
        return value[_UNTRUSTED] if value.keys() == {_UNTRUSTED} else {k: plain(inner) for k, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def refuse_templates(value: Any, path: str = "") -> None:
    """Raise GpuprovError where a text for the roles opens a template, or a key is one of Ansible's own: nothing that
    gpuprov gives them has one."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if str(key).startswith("__ansible"):
                _refuse_template(f"{path}.{key}", str(key))
            refuse_templates(str(key), path)
            refuse_templates(inner, f"{path}.{key}".lstrip("."))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            refuse_templates(inner, f"{path}[{index}]")
    elif isinstance(value, str) and any(opening in value for opening in TEMPLATES):
        _refuse_template(path, value)


def _refuse_template(path: str, text: str) -> NoReturn:
    raise GpuprovError(
        f"{path} contains a template expression ({text[:80]!r}); gpuprov never writes one",
        hint="find out who wrote it: cluster.lock, .gpuprov/*/locks, or the bucket of the shared state",
    )
