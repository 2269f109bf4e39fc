"""`gpuprov verify --export-testinfra` and `--testinfra`: the acceptance suite as plain pytest and testinfra."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import typer

from provisioner.common.errors import Exit, GpuprovError
from provisioner.common.text import counted, few

REPORT = "report.xml"


def refuse_options(file: Path | None, export: Path | None, other_options: Mapping[str, object]) -> None:
    """Raise GpuprovError for options that say nothing to the suite. `other_options`: option → its value."""
    option = "--export-testinfra" if export is not None else "--testinfra"
    if file is None:
        raise GpuprovError(f"{option} needs a fleet: pass its cluster.yaml")
    for name, value in other_options.items():
        if value:
            raise GpuprovError(f"{option} and {name} cannot be combined", hint=f"leave out {name}")


def export_suite(file: Path, folder: Path, sandbox: bool | None, nodes: Collection[str]) -> None:
    """Write the suite of a fleet into a folder. No node is contacted."""
    from provisioner.cli.output_folder import refuse_unwritable
    from provisioner.lifecycle.session import open_cluster
    from provisioner.lifecycle.testinfra import suite_document
    from provisioner.verify import testinfra_export

    testinfra_export.refuse_other_folder(folder)
    content = suite_document(open_cluster(file, sandbox=sandbox), nodes)
    refuse_unwritable(folder, "suite")
    testinfra_export.write(folder, content)
    print(f"suite of {counted(len(content['nodes']), 'node')} in {folder}; README.md there says how to run it")


def run_suite(file: Path, sandbox: bool | None, nodes: Collection[str], report: Path | None) -> None:
    """Run the suite on a fleet and exit as `gpuprov verify` does."""
    from provisioner.cli.output_folder import refuse_unwritable
    from provisioner.lifecycle.session import open_cluster
    from provisioner.lifecycle.testinfra import run_suite as run

    if report is not None:
        refuse_unwritable(report)
    junit = report / REPORT if report is not None else None
    cluster = open_cluster(file, sandbox=sandbox)
    verdict = run(cluster, nodes, report=junit)
    if verdict.failed:
        print(f"not healthy: {few(verdict.failed, 8, ',')}", file=sys.stderr)
    if verdict.absent:
        print(
            f"missing: {few(verdict.absent, 8, ',')}; `gpuprov up {cluster.typed_file}` creates them", file=sys.stderr
        )
    raise typer.Exit(Exit.OK if verdict.healthy else Exit.CHECK_FAILED)
