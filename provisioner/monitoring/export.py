"""Everything that watches a cluster, as files: rules with their tests, targets, server configuration, dashboards, and
the same as Kubernetes objects. Several clusters may share a folder."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from provisioner.common.errors import GpuprovError
from provisioner.common.ownership import refuse_foreign_output
from provisioner.common.paths import private_dir, write_whole
from provisioner.common.text import counted, few
from provisioner.monitoring import kubernetes, rule_tests, rules, server_config
from provisioner.monitoring.dashboards.grafana import dashboards
from provisioner.monitoring.dashboards.panels import BOARDS
from provisioner.monitoring.fleet import WatchedFleet, watched_fleet
from provisioner.monitoring.kubernetes import is_scraped
from provisioner.monitoring.models import DCGM_JOB, NODE_JOB
from provisioner.monitoring.rules.network import has_known_ports
from provisioner.monitoring.targets import is_loopback, targets
from provisioner.output.monitoring import ExportOutput
from provisioner.rundir.fleet import Node
from provisioner.spec.models import ClusterSpec

HEAD = "# Written by `gpuprov monitoring export`; the next export writes it again\n"
FOR_EDITING = ("prometheus.yml", "alertmanager.yml")
"""Files to which users add what is theirs. An edited one is kept."""
SUBJECTS = ("nodes", "capacity", "host", "checks", "gpus", "xids", "network", "efa", "images", "usage", "prometheus")
"""Of groups of rules, as their names have them."""


def write(folder: Path, spec: ClusterSpec, nodes: Sequence[Node], *, sandbox: bool) -> ExportOutput:
    """Write all files below a folder, which anybody may read: no secret is in them. Raises GpuprovError where that is
    not possible."""
    fleet = watched_fleet(spec, nodes, simulated=sandbox)
    texts = files(fleet, nodes)
    try:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is a file", str(folder))
        _make_folder(folder)
        refuse_foreign_output(folder, "export")
        edited = [name for name in FOR_EDITING if _is_edited(folder / name)]
        for name in edited:
            del texts[name]
        for name in sorted({str(Path(name).parent) for name in texts}):
            _make_folder(folder / name)
            refuse_foreign_output(folder / name, "export")
        for name, text in texts.items():
            write_whole(folder / name, text, mode=0o644)
        removed = [name for name in own_files(fleet.cluster) if name not in texts and (folder / name).is_file()]
        for name in removed:
            (folder / name).unlink()
    except OSError as error:
        raise GpuprovError(
            f"cannot write the export: {error.strerror or error}", where=str(error.filename or folder),
            hint="pass a directory that you can write",
        ) from None  # fmt: skip
    return ExportOutput(
        folder=str(folder), cluster=spec.name, sandbox=sandbox,
        nodes=sum(len(rows) for job, rows in targets(fleet, nodes).items() if job == NODE_JOB),
        alerts=len(rules.alert_rules(fleet)) if fleet.groups else 0,
        files=list(texts), edited=edited, removed=removed, missing=list(missing(spec, fleet, nodes)),
    )  # fmt: skip


def _make_folder(folder: Path) -> None:
    """One that anybody may read, and that belongs to the person in whose folder it is."""
    if not folder.exists():
        private_dir(folder)
        folder.chmod(0o755)


def _is_edited(file: Path) -> bool:
    """Whether a file has another text than the one that an export gave it."""
    try:
        head, _, body = file.read_text(encoding="utf-8", errors="replace").partition("\n")
    except FileNotFoundError:
        return False
    return head != _signed(body).partition("\n")[0]


def _signed(body: str) -> str:
    """A text with its digest at its head, by which an edit is seen."""
    return f"# Written by `gpuprov monitoring export`, {hashlib.sha256(body.encode()).hexdigest()[:16]}\n{body}"


def missing(spec: ClusterSpec, fleet: WatchedFleet, nodes: Sequence[Node]) -> Iterator[str]:
    """What these files do not watch, and why: a rule that cannot fire looks like one that has nothing to say."""
    if not fleet.groups:
        yield "the cluster: it has no machine; export again after `gpuprov up`"
        return
    groups = {group.name for group in fleet.groups}
    if empty := [name for name in spec.groups if name not in groups]:
        yield f"{counted(len(empty), 'group')} without a machine: {few(empty, 5, ',')}; export again after `gpuprov up`"
    if departed := [node.name for node in nodes if node.group not in groups]:
        yield f"nodes of groups that cluster.yaml has no more: {few(departed, 5, ',')}"
    if local := [node.name for node in nodes if is_loopback(node)]:
        yield f"{few(local, 5, ',')}: its address is this computer's own, which means another machine to Prometheus"
    if unnumbered := [node.name for node in nodes if not is_loopback(node) and not is_scraped(node)]:
        yield f"{few(unnumbered, 5, ',')} on Kubernetes: Endpoints take IP addresses, and no names"
    if not spec.monitoring.installs_node_exporter:
        yield "hosts without a node_exporter of their own: cluster.yaml has no monitoring.prometheus"
    if fleet.health_minutes is None:
        yield (
            "gpuprov's checks, and what their timer alone reads (EFA counters, ages of golden images, ends of capacity "
            "blocks): cluster.yaml has neither monitoring.prometheus nor monitoring.health_check"
        )
    if not fleet.exports_dcgm:
        yield "GPUs: monitoring.dcgm_exporter is off"
    for group in fleet.groups:
        if group.block and fleet.simulated:
            yield f"the end of the capacity block of group {group.name}: a sandbox has none"
        if not group.machine.gpu_count:
            continue
        if not group.has_dcgm:
            yield f"GPU readings of group {group.name}: DCGM does not read {group.gpu.model}; its checks are watched"
        elif group.mig and group in fleet.dcgm_groups:
            yield f"use of the GPUs of group {group.name}: DCGM gives no utilization of a GPU that MIG cuts up"
        if group.rdma and not has_known_ports(group):
            yield f"single RDMA ports of group {group.name}: the catalogue does not name them; checks ib.* are watched"


def dashboard_names() -> tuple[str, ...]:
    """The dashboards, by name."""
    return tuple(board.name for board in BOARDS)


def files(fleet: WatchedFleet, nodes: Sequence[Node]) -> dict[str, str]:
    """Path below the folder → text. The same input gives the same bytes. Of a cluster without a machine there are none
    but those that all clusters share: rules would tell of missing nodes for ever."""
    boards = dashboards()
    result = {
        "prometheus.yml": _signed(_yaml(server_config.prometheus())),
        "alertmanager.yml": _signed(_yaml(server_config.alertmanager())),
    }
    result |= {f"dashboards/gpuprov-{name}.json": _json(board) for name, board in boards.items()}
    if not fleet.groups:
        return result
    objects = kubernetes.objects(fleet, nodes, boards)
    result[f"kubernetes/{fleet.cluster}.yaml"] = HEAD + "---\n".join(_yaml(row) for row in objects)
    for group in rules.rule_groups(fleet):
        result[f"rules/{group.name}.yml"] = HEAD + _yaml(rules.document(group))
        result[f"rule-tests/{group.name}.yml"] = HEAD + _yaml(rule_tests.document(group, f"../rules/{group.name}.yml"))
    result |= {f"targets/{job}-{fleet.cluster}.json": _json(rows) for job, rows in targets(fleet, nodes).items()}
    return dict(sorted(result.items()))


def own_files(cluster: str) -> list[str]:
    """Every file that an export of this cluster alone may write."""
    of_rules = [
        f"{folder}/gpuprov-{subject}-{cluster}.yml" for folder in ("rules", "rule-tests") for subject in SUBJECTS
    ]
    return [*of_rules, *(f"targets/{job}-{cluster}.json" for job in (NODE_JOB, DCGM_JOB)), f"kubernetes/{cluster}.yaml"]


class _Dumper(yaml.SafeDumper):
    """Without anchors: nobody reads `&id001` in a rule file."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _yaml(document: Any) -> str:
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1_000_000, allow_unicode=True)


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
