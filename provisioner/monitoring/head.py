"""What a head node gets: Prometheus' configuration, rules, and the nodes of its site as targets; Grafana's dashboards.

All of it is JSON, which is YAML, too: it is made anew by each `up`, and JSON is written in a tenth of the time.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from provisioner.common.paths import ClusterPaths, private_dir, write_whole
from provisioner.monitoring import grafana_config, rules, server_config
from provisioner.monitoring.fleet import WatchedFleet, watched_fleet
from provisioner.monitoring.targets import targets
from provisioner.rundir.fleet import Node
from provisioner.spec import receivers
from provisioner.spec.models import ClusterSpec

FOLDER = "monitoring"
"""Of the run directory (rundir/files.py)."""


class HeadArchive(NamedTuple):
    """The files of one head node as a tar, and where it lies on this computer."""

    file: Path
    content: bytes


def archives(
    spec: ClusterSpec, nodes: Sequence[Node], paths: ClusterPaths, *, simulated: bool
) -> dict[str, HeadArchive]:
    """Group of a head node → its archive. Nothing is written."""
    return {
        group: HeadArchive(
            paths.root / FOLDER / f"{group}.tar", _archive(files(spec, nodes, group, simulated=simulated))
        )
        for group in spec.monitoring.heads
    }


def variables(spec: ClusterSpec, paths: ClusterPaths, head_archives: Mapping[str, HeadArchive]) -> dict[str, Any]:
    """`gpuprov_prometheus` for the roles: group of a head node → what it runs. Nothing is written. Raises GpuprovError
    where the file of receivers is not what it has to be."""
    prometheus = spec.monitoring.prometheus
    assert prometheus is not None
    file = paths.spec.absolute().parent / prometheus.receivers if prometheus.receivers else None
    if file is not None:
        receivers.read(file)
    settings = {
        "retention": prometheus.retention,
        "retention_size": prometheus.retention_size,
        "receivers": str(file) if file else None,
        "receivers_sha256": hashlib.sha256(file.read_bytes()).hexdigest() if file else None,
    }
    return {
        "gpuprov_prometheus": {
            group: {
                "archive": str(head_archive.file),
                "sha256": hashlib.sha256(head_archive.content).hexdigest(),
                **settings,
            }
            for group, head_archive in head_archives.items()
        }
    }


def write(head_archives: Mapping[str, HeadArchive]) -> None:
    """Write the archives that `variables` names."""
    for head_archive in head_archives.values():
        private_dir(head_archive.file.parent)
        write_whole(head_archive.file, head_archive.content)


def _archive(documents: Mapping[str, Any]) -> bytes:
    """Documents as files of a tar; the same input gives the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, document in sorted(documents.items()):
            content = (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def files(spec: ClusterSpec, nodes: Sequence[Node], group: str, *, simulated: bool) -> Mapping[str, Any]:
    """Program and path below its folder → document, for the head node of that group: it watches its own site, whose
    private addresses it reaches."""
    site = spec.site_of(group)
    local_nodes = [node for node in nodes if node.site == site]
    fleet = watched_fleet(spec, local_nodes, simulated=simulated)
    documents = {
        "prometheus.yml": server_config.prometheus(),
        "alertmanager.yml": server_config.alertmanager(),
        **dict(_rule_files(fleet)),
        **{f"targets/{job}-{fleet.cluster}.json": rows for job, rows in targets(fleet, local_nodes).items()},
    }
    result = {f"prometheus/{name}": document for name, document in documents.items()}
    if spec.monitoring.has_grafana(group):
        result |= {f"grafana/{name}": document for name, document in grafana_config.files().items()}
    return result


def _rule_files(fleet: WatchedFleet) -> Iterator[tuple[str, Any]]:
    if fleet.groups:
        for rule_group in rules.rule_groups(fleet):
            yield f"rules/{rule_group.name}.yml", rules.document(rule_group)
