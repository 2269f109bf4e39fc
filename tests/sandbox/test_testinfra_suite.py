"""The exported acceptance suite on a real fleet of the sandbox, run by pytest and testinfra alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from provisioner.sandbox import faults
from tests.support.acceptance_suite import COVERED
from tests.support.sandbox_cluster import SandboxCluster

pytestmark = [pytest.mark.sandbox, pytest.mark.shares("lone"), pytest.mark.begins(3)]

ALONE = (
    "import sys; sys.modules.update(provisioner=None, yaml=None); import pytest; "
    "sys.exit(pytest.main(['-p', 'testinfra.plugin', '-p', 'no:cacheprovider', *sys.argv[1:]]))"
)
"""pytest where gpuprov cannot be imported, nor anything beside pytest, testinfra and the standard library."""


@pytest.fixture(scope="module")
def suite(lone: SandboxCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ci") / "suite"
    exported = lone.run("verify", lone.file, "--export-testinfra", folder)
    assert exported.status == 0, exported.stderr
    (folder.parent / "ssh.config").write_text(lone.run("ssh-config", lone.file).stdout, encoding="utf-8")
    return folder


@pytest.fixture
def broken(lone: SandboxCluster) -> Iterator[str]:
    fault = "gpu-lost"
    assert lone.run("sandbox", "fault", lone.file, "train-0", fault).status == 0
    yield fault
    assert lone.run("sandbox", "clear", lone.file, "train-0").status == 0


def run_alone(suite: Path, host: str) -> tuple[int, str, set[str]]:
    """Exit status, output, and the tests that failed."""
    report = suite.parent / "report.xml"
    environment = {"PATH": os.environ["PATH"], "HOME": str(suite.parent), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    config = f"--ssh-config={suite.parent / 'ssh.config'}"
    done = subprocess.run(
        [sys.executable, "-P", "-c", ALONE, suite, f"--hosts=ssh://{host}", config, f"--junitxml={report}"],
        cwd=suite.parent, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = {c.get("name", "").partition("[")[0] for c in cases if c.find("failure") is not None}
    return done.returncode, done.stdout + done.stderr, failed


def test_a_healthy_fleet_passes(lone: SandboxCluster, suite: Path) -> None:
    assert lone.verify("--level", "standard").status == 0
    status, output, failed = run_alone(suite, f"{lone.name}-train-0")
    assert (status, failed) == (0, set()), output
    assert "simulated hardware" in output
    command = lone.run("verify", lone.file, "--testinfra")
    assert command.status == 0, command.stdout + command.stderr


def test_a_fault_is_found_by_both(lone: SandboxCluster, suite: Path, broken: str) -> None:
    assert lone.verify("--level", "quick").status == 1, broken
    status, output, failed = run_alone(suite, f"{lone.name}-train-0")
    assert status == 1, output
    assert "test_gpu_count" in failed
    assert "7 of 8 GPUs answer" in output
    command = lone.run("verify", lone.file, "--testinfra", "--report", suite.parent / "own")
    assert (command.status, "7 of 8 GPUs answer" in command.stdout) == (1, True), command.stderr
    assert "not healthy: train-0" in command.stderr
    assert (suite.parent / "own" / "report.xml").exists()


def test_an_unknown_host_fails_clearly(suite: Path) -> None:
    status, output, _ = run_alone(suite, "gpu-17.example.net")
    assert status == 1
    assert "expected.json does not have the host gpu-17.example.net. It has: train-0" in output


def test_the_same_fleet_gives_the_same_suite(lone: SandboxCluster, suite: Path) -> None:
    first = {file.name: file.read_bytes() for file in suite.iterdir() if file.is_file()}
    (suite / "test_own.py").write_text("")
    exported = lone.run("verify", lone.file, "--export-testinfra", suite)
    assert exported.status == 0, exported.stderr
    after = {file.name: file.read_bytes() for file in suite.iterdir() if file.is_file()}
    assert after == first | {"test_own.py": b""}


@pytest.mark.slow
def test_every_covered_fault_is_found_by_both(lone: SandboxCluster, suite: Path) -> None:
    container = lone.container("train-0")
    disagreeing = []
    covered = [fault.name for fault in faults.list_faults("p4d.24xlarge") if fault.check in COVERED]
    try:
        for name in ("ecc-off", "docker-dead", "persistence-off", "xid-79", *covered):
            faults.leave_only(container, [(name, None)])
            status, output, failed = run_alone(suite, f"{lone.name}-train-0")
            condemned = lone.verify("--level", "standard").status
            # The kernel log is for gpuprov alone.
            if status != (condemned if name != "xid-79" else 0):
                disagreeing.append(f"{name}: gpuprov {condemned}, suite {status} {sorted(failed)}\n{output}")
    finally:
        faults.clear(container)
    assert not disagreeing, "\n".join(disagreeing)
