"""Long-lived sandboxes shared by the tests of this folder: made once, removed at the end.

Every cluster has its own folder and a name that no example has, so that a developer's own sandboxes stay untouched.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.sandbox import containers, network
from tests.support.sandbox_cluster import EXAMPLES, ROOT, Done, SandboxCluster
from tests.support.terminal import answered

pytestmark = pytest.mark.sandbox

CALLBACKS = ROOT / "tests" / "support" / "ansible_callbacks"
ELSEWHERE = ("aws-p4d", "own-machines", "rtx4090", "slurm", "three-sites", "two-clouds")
"""Examples whose fleets other tests have: fixture `p4d` here, `desk` of test_upgrade.py, test_sites.py,
test_own_machine_types.py, test_two_clouds.py."""


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """After Ctrl-C a process of pytest-xdist has 15 seconds, too few to remove fleets: what is left goes here."""
    if hasattr(session.config, "workerinput"):
        return
    base = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    with contextlib.suppress(GpuprovError):  # no podman, no root: no sandbox was made
        containers.sweep(base)
        for workspace in sorted({*network.owners().values()}):
            if Path(workspace).is_relative_to(base):
                network.release_octet(Path(workspace))


@pytest.fixture(scope="session", autouse=True)
def packed_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One folder of packed modules (tests/support/ansible_callbacks) for all processes of this run."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUPROV_TEST_MODULES", str(folder / "ansible-modules"))
        patch.setenv("ANSIBLE_CALLBACK_PLUGINS", str(CALLBACKS))
        yield


@pytest.fixture(scope="session")
def p4d(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxCluster]:
    """Four p4d nodes of the file that `make demo` takes, made and removed at a terminal, as a person does it, in a
    folder whose name every shell, ssh, Ansible and Terraform would like to read in its own way."""
    folder = tmp_path_factory.mktemp("p4d") / 'it\'s a "test" ünï $x'
    folder.mkdir()
    sandbox_cluster = SandboxCluster.of_example("aws-p4d", folder)
    try:
        status, sandbox_cluster.typed = answered(
            sandbox_cluster,
            "up",
            sandbox_cluster.file,
            "--sandbox",
            question="Create 4 p4d.24xlarge in the sandbox (5 resources)?",
        )
        sandbox_cluster.first = Done(status, _newest_report(sandbox_cluster), sandbox_cluster.typed)
        yield sandbox_cluster
    finally:
        question = f"Remove train-0, train-1, train-2, train-3 of {sandbox_cluster.name} (sandbox)?"
        status, screen = answered(sandbox_cluster, "down", sandbox_cluster.file, question=question)
        assert (status, "resources removed, nothing is left" in screen) == (0, True), screen


@pytest.fixture(scope="session")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxCluster]:
    """One p4d node, up and healthy, for tests that do things to it that a fleet need not suffer."""
    yield from _up("aws-p4d", tmp_path_factory.mktemp("lone"), count=1)


@pytest.fixture(
    scope="session",
    params=[name for name in EXAMPLES if name not in ELSEWHERE],
)
def example(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxCluster]:
    """One after the other, the fleets of the other examples, up and healthy."""
    yield from _up(request.param, tmp_path_factory.mktemp(request.param))


def _newest_report(sandbox_cluster: SandboxCluster) -> str:
    newest = max(sandbox_cluster.root.glob("runs/*/report.json"), default=None)
    return newest.read_text() if newest else ""


def _up(name: str, folder: Path, count: int | None = None) -> Iterator[SandboxCluster]:
    sandbox_cluster = SandboxCluster.of_example(name, folder, count=count)
    try:
        sandbox_cluster.first = sandbox_cluster.up()
        yield sandbox_cluster
    finally:
        sandbox_cluster.run("down", sandbox_cluster.file, "--sandbox", "--yes")
