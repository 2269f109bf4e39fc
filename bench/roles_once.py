"""`python -m bench.roles_once FILE node|push`: all roles on all nodes of a sandbox fleet that is up."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from provisioner.common.events import Events
from provisioner.common.paths import ClusterPaths
from provisioner.configure import run
from provisioner.rundir import fleet
from provisioner.spec import load


def main(file: Path, method: str) -> None:
    paths = ClusterPaths(file, load(file).name, sandbox=True)
    nodes = fleet.load(paths)
    with tempfile.TemporaryDirectory(dir=paths.runs) as folder:
        push = method == "push"
        outcomes = run.configure(paths, nodes, paths.inventory, Path(folder), Events(), push=push)
        run.refuse_failures(outcomes, Path(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
