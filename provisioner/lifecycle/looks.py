"""What counters of each node stood at when it was looked at before: kept in the run directory, by machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from provisioner.common import stored
from provisioner.common.paths import private_dir, write_whole
from provisioner.lifecycle.session import Cluster
from provisioner.rundir.fleet import Node
from provisioner.verify.bundle import Output
from provisioner.verify.parsers.last_look import FILE
from provisioner.verify.results import Report


def last_look_files(cluster: Cluster, nodes: Sequence[Node]) -> dict[str, dict[str, Output]]:
    """Node → last-look.json for its bundle. What is missing or damaged, or is another machine's, is no earlier look."""
    files = {}
    for node in nodes:
        try:
            document = stored.load(_file(cluster, node.name))
            if document["machine"] == node.id:
                files[node.name] = {FILE: Output(json.dumps(document["looks"]), rc=0)}
        except (OSError, ValueError, LookupError, TypeError):
            continue
    return files


def keep(cluster: Cluster, report: Report, nodes: Sequence[Node]) -> None:
    """For the next look."""
    machines = {node.name: node.id for node in nodes}
    for row in report.nodes:
        if row.looks is not None and row.name in machines:
            text = json.dumps({"machine": machines[row.name], "looks": row.looks})
            private_dir(_file(cluster, row.name).parent)
            write_whole(_file(cluster, row.name), text + "\n")


def _file(cluster: Cluster, node: str) -> Path:
    return cluster.paths.root / "looks" / f"{node}.json"
