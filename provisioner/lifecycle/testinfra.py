"""The acceptance suite of a fleet: export it, or run it with gpuprov's own ssh configuration."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from provisioner.common.errors import Exit, GpuprovError
from provisioner.common.paths import write_whole
from provisioner.lifecycle import diff
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.subjects import expected_of
from provisioner.lifecycle.upgrade import journal as upgrade_journal
from provisioner.plan.models import build_plan
from provisioner.transport import keeper, ssh_config, ssh_sockets
from provisioner.verify import testinfra_export
from provisioner.verify.results import is_enough

if TYPE_CHECKING:
    from provisioner.verify.expectations import Expected

BATCH = 16
"""Nodes for which one pytest process is enough: it takes seconds for each, one after the other."""
PARALLEL = 16
"""Processes at most."""
VERDICTS = (0, 1)
"""Exit statuses of pytest with which its tests have run."""


class SuiteError(GpuprovError):
    """pytest did not run the tests: nothing is known of the nodes."""

    exit_code = Exit.CHECK_FAILED
    code = "tests_not_run"


@dataclass(frozen=True, slots=True)
class SuiteVerdict:
    """What the suite reports of a fleet. `failed` has the nodes with a test that failed, `absent` those that
    cluster.yaml names and that do not exist."""

    healthy: bool
    failed: tuple[str, ...]
    absent: tuple[str, ...]


def suite_document(cluster: Cluster, only: Collection[str] = ()) -> dict[str, Any]:
    """The content of expected.json: all nodes of cluster.yaml, or those of `only`. A machine that runs an older lock is
    expected to have that one. No node is contacted. Raises GpuprovError without a lock, and for unknown names."""
    lock, groups = cluster.lock, cluster.spec.node_groups()
    for name in only:
        if name not in groups:
            cluster.node(name)  # raises with the nearest names
            raise GpuprovError(f"node {name} is not in cluster.yaml any more", where=str(cluster.file))
    plan = build_plan(cluster.spec, lock)
    present = [node for node in cluster.nodes() if node.name in groups]
    releases = upgrade_journal.assigned(cluster, present, lock)
    nodes: dict[str, tuple[str, Expected]] = {}
    for name, group in groups.items():
        if not only or name in only:
            release_plan = releases[name].plan if name in releases else plan
            nodes[name] = group, expected_of(cluster, group, release_plan)
    return testinfra_export.document(cluster.spec.name, nodes, simulated=lock.simulated)


def run_suite(cluster: Cluster, only: Collection[str] = (), *, report: Path | None = None) -> SuiteVerdict:
    """Run the suite on the machines that exist, or those of `only`. pytest's output goes to standard output. `report`:
    the JUnit file to write. Raises GpuprovError where pytest does not run the tests."""
    for name in only:
        cluster.node(name)
    content, compared = suite_document(cluster, only), diff.compare(cluster)
    names = [node.name for node in compared.present if not only or node.name in only]
    absent = () if only else tuple(compared.absent)
    with tempfile.TemporaryDirectory(prefix=keeper.scratch("testinfra")) as scratch:
        folder = Path(scratch)
        testinfra_export.write(folder / "suite", content)
        junit = _run(folder, _batches(cluster, names))
    healthy = _passed_nodes(junit)
    if report is not None:
        write_whole(report, ElementTree.tostring(junit, encoding="unicode", xml_declaration=True))
    share = "100%" if only else cluster.spec.verify.min_healthy
    return SuiteVerdict(
        is_enough(len(healthy.intersection(names)), len(names) + len(absent), share),
        tuple(name for name in names if name not in healthy),
        absent,
    )


def _batches(cluster: Cluster, names: Sequence[str]) -> list[list[str]]:
    """The options of each pytest process: the hosts, and how it reaches them."""
    remote = [name for name in names if name not in ssh_config.local(cluster.paths)]
    count = min(PARALLEL, -(-len(remote) // BATCH))
    config = f"--ssh-config={ssh_sockets.run_config(cluster.paths)}"
    batches = [[f"--hosts={','.join(f'ssh://{name}' for name in remote[i::count])}", config] for i in range(count)]
    return batches + [["--hosts=local://", f"--as-node={name}"] for name in names if name not in remote]


def _run(folder: Path, batches: Sequence[Sequence[str]]) -> ElementTree.Element:
    """Run pytest for each batch at once, and print what each of them prints, one after the other; their JUnit suites.
    `folder` has the suite."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PYTHON", "COV_"))}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [sys.executable, "-P", "-m", "pytest", "-p", "testinfra.plugin", "-p", "no:cacheprovider", "suite"]
    junit = ElementTree.Element("testsuites")
    with contextlib.ExitStack() as stack:
        runs: list[tuple[Path, subprocess.Popen[bytes]]] = []
        for number, options in enumerate(batches):
            output = stack.enter_context((folder / f"{number}.txt").open("wb")) if len(batches) > 1 else None
            argv = [*command, f"--junitxml={number}.xml", *options]
            process = subprocess.Popen(argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output)
            stack.callback(_end, process)
            runs.append((folder / f"{number}.xml", process))
        for xml, process in runs:
            status = process.wait()
            if len(batches) > 1:
                sys.stdout.write(xml.with_suffix(".txt").read_text(encoding="utf-8", errors="replace"))
                sys.stdout.flush()
            if status not in VERDICTS:
                raise SuiteError(f"the suite was not run: pytest ended with status {status}")
            for suite in ElementTree.parse(xml).getroot():  # noqa: S314 - pytest has just written it
                _name_local(suite, batches[runs.index((xml, process))])
                junit.append(suite)
    return junit


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def _name_local(suite: ElementTree.Element, options: Sequence[str]) -> None:
    """Give the tests of this very machine the node's name, in place of "local"."""
    for option in options:
        if option.startswith("--as-node="):
            for case in suite.iter("testcase"):
                case.set("name", case.get("name", "").replace("[local]", f"[ssh://{option.partition('=')[2]}]"))


def _passed_nodes(junit: ElementTree.Element) -> set[str]:
    """The nodes with tests, none of which failed."""
    cases: dict[str, list[ElementTree.Element]] = {}
    for case in junit.iter("testcase"):
        if match := re.search(r"\[ssh://(.+)\]$", case.get("name", "")):
            cases.setdefault(match[1], []).append(case)
    return {
        name
        for name, tests in cases.items()
        if all(test.find("failure") is None and test.find("error") is None for test in tests)
    }
