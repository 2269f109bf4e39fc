"""What is printed as a table: nothing that names something is cut, in a terminal or a pipe."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from provisioner.common.paths import private_dir
from provisioner.lifecycle.session import open_cluster
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from tests.support import warm
from tests.support.terminal import Terminal, gpuprov

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


def in_a_terminal(*argv: object, **env: str) -> str:
    """What the command prints in a terminal that says no width of its own."""
    with Terminal(argv, columns=0, lines=0, env={**env, "LINES": None}, imported=True) as terminal:
        assert terminal.end() == 0
        return terminal.raw.decode()


@pytest.mark.parametrize("columns", ["", "0", "80", "30"])
@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_status_never_cuts_a_name_or_an_address(columns: str, terminal: bool, file: Path) -> None:
    if terminal:
        output = in_a_terminal(*gpuprov("status", file, "--offline"), COLUMNS=columns)
    else:
        done = warm.run("provisioner", "status", file, "--offline", env={**os.environ, "COLUMNS": columns})
        assert done.returncode == 0, done.stderr
        output = done.stdout
    for cell in (NAME, MACHINE, ADDRESS):
        assert cell in output
    assert "…" not in output
    if not terminal:
        assert any(all(value in line for value in (NAME, MACHINE, ADDRESS, "a-site-with-a-long-name", "unknown"))
                   for line in output.splitlines())  # fmt: skip
