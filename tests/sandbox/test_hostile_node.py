"""A node whose Python lies: what it answers Ansible is neither a variable of the roles nor a file of this machine.

That no variable at all is what a node says is in tests/unit/security/test_hostile_facts.py; here the whole way is real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.verify import archive
from tests.support import inside
from tests.support.playbook import play
from tests.support.sandbox_cluster import SandboxCluster
from tests.unit.security.test_hostile_facts import HOSTILE, names

pytestmark = [pytest.mark.sandbox, pytest.mark.shares("lone"), pytest.mark.begins(3)]

SECRET = "what only this machine has"
PROGRAM = "/usr/local/lib/gpuprov-health.pyz"


def node(lone: SandboxCluster, command: str, stdin: str = "") -> str:
    done = inside.run(lone.container("train-0"), "sh", "-euc", command, stdin=stdin, timeout=60)
    done.check_returncode()
    return done.stdout


@pytest.fixture
def lying(lone: SandboxCluster, tmp_path: Path) -> Iterator[SandboxCluster]:
    """The node, with a Python that gives every variable of every role the path of a file of this machine."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    real = node(lone, "readlink -f /usr/bin/python3").strip()
    node(lone, "cat > /tmp/lies.json", json.dumps(dict.fromkeys(sorted(names()), str(secret))))
    node(lone, f"rm -f {PROGRAM}; rm /usr/bin/python3; cat > /usr/bin/python3; chmod 755 /usr/bin/python3",
         HOSTILE.format(python=real, lies="/tmp/lies.json"))  # fmt: skip
    try:
        yield lone
    finally:
        node(lone, f"ln -sf {real} /usr/bin/python3; rm -f /tmp/lies.json {PROGRAM}")
        node(lone, "systemctl disable --now gpuprov-health.timer; rm -f /etc/systemd/system/gpuprov-health.*")


def test_a_node_gets_no_file_of_this_machine(lying: SandboxCluster) -> None:
    health = {"every": "10m", "textfile": "/var/lib/x/gpuprov.prom", "expected": {"units": []}, "archive": ""}
    played = play(lying, tags="health", variables={"gpuprov_health": health})
    played.changed()
    assert node(lying, f"sha256sum {PROGRAM}").split()[0] == archive.digest()
