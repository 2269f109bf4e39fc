"""Everything that watches a cluster, as files: rules with their tests, targets, server configuration, dashboards, and
the same as Kubernetes objects. Several clusters may share a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from provisioner.common.errors import GpuprovError
from provisioner.common.ownership import refuse_foreign_output
from provisioner.common.paths import write_whole
from provisioner.monitoring import kubernetes, rule_tests, rules, server_config
from provisioner.monitoring.dashboards.grafana import dashboards
from provisioner.monitoring.dashboards.panels import BOARDS
from provisioner.monitoring.fleet import WatchedFleet, watched_fleet
from provisioner.monitoring.targets import targets
from provisioner.output.monitoring import ExportOutput
from provisioner.rundir.fleet import Node
from provisioner.spec.models import ClusterSpec

HEAD = "# Written by `gpuprov monitoring export`; the next export writes it again\n"


def write(folder: Path, spec: ClusterSpec, nodes: Sequence[Node], *, sandbox: bool) -> ExportOutput:
    """Write all files below a folder, which anybody may read: no secret is in them. Raises GpuprovError where that is
    not possible."""
    fleet = watched_fleet(spec, simulated=sandbox)
    texts = files(fleet, nodes)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        refuse_foreign_output(folder, "monitoring files")
        present = [path.relative_to(folder).as_posix() for path in folder.glob("*/*") if path.is_file()]
        for name, text in texts.items():
            (folder / name).parent.mkdir(exist_ok=True)
            write_whole(folder / name, text, mode=0o644)
        removed = stale_files(present, fleet, texts)
        for name in removed:
            (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise GpuprovError(
            f"cannot write the monitoring files: {error.strerror or error}", where=str(error.filename or folder),
            hint="pass a directory that you can write",
        ) from None  # fmt: skip
    return ExportOutput(
        folder=str(folder), cluster=spec.name, sandbox=sandbox, nodes=len(nodes),
        alerts=len(rules.alert_rules(fleet)), files=list(texts), removed=removed, missing=list(missing(fleet, nodes)),
    )  # fmt: skip


def missing(fleet: WatchedFleet, nodes: Sequence[Node]) -> Iterator[str]:
    """What these files do not watch, and why: a rule that cannot fire looks like one that has nothing to say."""
    if not nodes:
        yield "no node: the cluster has no machine yet; export again after `gpuprov up`"
    if fleet.health_minutes is None:
        yield "gpuprov's checks: cluster.yaml has no monitoring.health_check"
    if not fleet.exports_dcgm:
        yield "GPUs: monitoring.dcgm_exporter is off"
    for group in fleet.groups:
        if not group.has_dcgm:
            yield f"GPU readings of group {group.name}: DCGM does not read {group.gpu.model}; its checks are watched"
        elif group.mig and fleet.exports_dcgm:
            yield f"use of the GPUs of group {group.name}: DCGM gives no utilization of a GPU that MIG cuts up"
        if group.machine.network.kind == "efa":
            yield f"EFA counters of group {group.name}: node_exporter does not read them; checks efa.* are watched"


def dashboard_names() -> tuple[str, ...]:
    """The dashboards, by name."""
    return tuple(board.name for board in BOARDS)


def files(fleet: WatchedFleet, nodes: Sequence[Node]) -> dict[str, str]:
    """Path below the folder → text. The same input gives the same bytes."""
    boards, jobs = dashboards(), targets(fleet, nodes)
    objects = kubernetes.objects(fleet, nodes, boards)
    result = {
        "prometheus.yml": _yaml(server_config.prometheus()),
        "alertmanager.yml": _yaml(server_config.alertmanager()),
        f"kubernetes/{fleet.cluster}.yaml": "---\n".join(_yaml(row) for row in objects),
    }
    for group in rules.rule_groups(fleet):
        result[f"rules/{group.name}.yml"] = _yaml(rules.document(group))
        result[f"rule-tests/{group.name}.yml"] = _yaml(rule_tests.document(group, f"../rules/{group.name}.yml"))
    result |= {f"targets/{job}-{fleet.cluster}.json": _json(rows) for job, rows in jobs.items()}
    result |= {f"dashboards/gpuprov-{name}.json": _json(board) for name, board in boards.items()}
    return dict(sorted(result.items()))


def stale_files(present: Iterable[str], fleet: WatchedFleet, written: Mapping[str, str]) -> list[str]:
    """Files of an earlier export of this cluster that this one does not write: Prometheus would still read them."""
    endings = (f"-{fleet.cluster}.yml", f"-{fleet.cluster}.json")
    folders = ("rules/gpuprov-", "rule-tests/gpuprov-", "targets/gpuprov-")
    return sorted(
        name for name in present if name not in written and name.startswith(folders) and name.endswith(endings)
    )


class _Dumper(yaml.SafeDumper):
    """Without anchors: nobody reads `&id001` in a rule file."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _yaml(document: Any) -> str:
    return HEAD + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=1_000_000, allow_unicode=True)


def _json(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
