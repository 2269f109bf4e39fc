"""What is printed as a table: nothing that names something is cut, in a terminal or a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from provisioner.common.paths import private_dir
from provisioner.lifecycle.session import open_cluster
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from tests.support.sandbox_cluster import ROOT

pytestmark = pytest.mark.heavy

ADDRESS, MACHINE = "2001:db8:aaaa:bbbb:cccc:dddd:eeee:4711", "ecs.ebmgn7ex.32xlarge"
NAME = "preproduction-training-0"
FILE = f"""
name: wide
sites: {{a-site-with-a-long-name: {{provider: alicloud, region: cn-beijing}}}}
groups: {{preproduction-training: {{machine: {MACHINE}, count: 1}}}}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(FILE)
    cluster = open_cluster(path, sandbox=False)
    private_dir(cluster.paths.root)
    site, group = "a-site-with-a-long-name", "preproduction-training"
    fleet.save(cluster.paths, [Node(NAME, group, site, MACHINE, "i-0", "", ADDRESS, "10.0.0.7")])
    return path


def in_a_terminal(*argv: str, **env: str) -> str:
    """What the command prints in a terminal that says no width of its own."""
    leader, follower = pty.openpty()
    done = subprocess.Popen(argv, cwd=ROOT, stdout=follower, stdin=follower, env=os.environ | env)
    os.close(follower)
    output = b""
    try:
        while part := os.read(leader, 65536):
            output += part
    except OSError:  # how Linux tells a terminal's end
        pass
    os.close(leader)
    assert done.wait(timeout=60) == 0
    return output.decode()


@pytest.mark.parametrize("columns", ["", "0", "80", "30"])
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_status_never_cuts_a_name_or_an_address(columns: str, terminal: bool, file: Path) -> None:
    argv = [sys.executable, "-m", "provisioner", "status", str(file), "--offline"]
    if terminal:
        output = in_a_terminal(*argv, COLUMNS=columns)
    else:
        env = os.environ | {"COLUMNS": columns}
        output = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=True).stdout
    for cell in (NAME, MACHINE, ADDRESS):
        assert cell in output
    assert "…" not in output
    if not terminal:
        assert any(all(value in line for value in (NAME, MACHINE, ADDRESS, "a-site-with-a-long-name", "unknown"))
                   for line in output.splitlines())  # fmt: skip
