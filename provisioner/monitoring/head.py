"""What the Prometheus of a head node gets: configuration, rules, and the nodes of its site as targets.

All of it is JSON, which is YAML, too: it is made anew by each `up`, and JSON is written in a tenth of the time.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from provisioner.common.paths import ClusterPaths, private_dir, write_whole
from provisioner.monitoring import rules, server_config
from provisioner.monitoring.fleet import WatchedFleet, watched_fleet
from provisioner.monitoring.targets import targets
from provisioner.rundir.fleet import Node
from provisioner.spec import receivers
from provisioner.spec.models import ClusterSpec

FOLDER = "monitoring"
"""Of the run directory (rundir/files.py)."""


def variables(spec: ClusterSpec, nodes: Sequence[Node], paths: ClusterPaths, *, simulated: bool) -> dict[str, Any]:
    """`gpuprov_prometheus` for the roles: group of a head node → what it runs. Nothing is written. Raises GpuprovError
    where the file of receivers is not what it has to be."""
    prometheus = spec.monitoring.prometheus
    assert prometheus is not None
    file = paths.spec.absolute().parent / prometheus.receivers if prometheus.receivers else None
    if file is not None:
        receivers.read(file)
    settings = {
        "retention": prometheus.retention,
        "receivers": str(file) if file else None,
        "receivers_sha256": hashlib.sha256(file.read_bytes()).hexdigest() if file else None,
    }
    return {
        "gpuprov_prometheus": {
            group: {
                "archive": str(_archive_file(paths, group)),
                "sha256": hashlib.sha256(archive(spec, nodes, group, simulated=simulated)).hexdigest(),
                **settings,
            }
            for group in spec.monitoring.heads
        }
    }


def write(spec: ClusterSpec, nodes: Sequence[Node], paths: ClusterPaths, *, simulated: bool) -> None:
    """Write the archives that `variables` names."""
    for group in spec.monitoring.heads:
        file = _archive_file(paths, group)
        private_dir(file.parent)
        write_whole(file, archive(spec, nodes, group, simulated=simulated))


def archive(spec: ClusterSpec, nodes: Sequence[Node], group: str, *, simulated: bool) -> bytes:
    """The files as a tar; the same input gives the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, document in sorted(files(spec, nodes, group, simulated=simulated).items()):
            content = (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def files(spec: ClusterSpec, nodes: Sequence[Node], group: str, *, simulated: bool) -> Mapping[str, Any]:
    """Path below the folder of Prometheus → document, for the head node of that group: it watches its own site, whose
    private addresses it reaches."""
    site = spec.site_of(group)
    local_nodes = [node for node in nodes if node.site == site]
    fleet = watched_fleet(spec, local_nodes, simulated=simulated)
    return {
        "prometheus.yml": server_config.prometheus(),
        "alertmanager.yml": server_config.alertmanager(),
        **dict(_rule_files(fleet)),
        **{f"targets/{job}-{fleet.cluster}.json": rows for job, rows in targets(fleet, local_nodes).items()},
    }


def _rule_files(fleet: WatchedFleet) -> Iterator[tuple[str, Any]]:
    if fleet.groups:
        for rule_group in rules.rule_groups(fleet):
            yield f"rules/{rule_group.name}.yml", rules.document(rule_group)


def _archive_file(paths: ClusterPaths, group: str) -> Path:
    return paths.root / FOLDER / f"{group}.tar"
