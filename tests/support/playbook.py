"""playbooks/site.yml on the sandbox's nodes, as gpuprov runs it, with other variables where a test wants them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provisioner.common.paths import ClusterPaths
from provisioner.configure.run import environment, extra_variables
from tests.support.sandbox_cluster import ROOT, SandboxCluster


@dataclass
class Played:
    """`counts`: node → {"ok", "changed", "failed", …} of Ansible's own summary; `output`: all that it printed."""

    counts: dict[str, dict[str, int]]
    output: str

    def changed(self) -> dict[str, int]:
        """Node → how many tasks changed something; asserts that none failed."""
        assert not any(c["failed"] or c["unreachable"] for c in self.counts.values()), self.output[-4000:]
        return {node: c["changed"] for node, c in self.counts.items()}

    def failure(self, node: str) -> str:
        """What the task said that failed on that node; asserts that one did."""
        assert self.counts[node]["failed"] == 1, self.output[-4000:]
        lines = [line for line in self.output.splitlines() if line.startswith(f"fatal: [{node}]")]
        return "\n".join(lines)


def play(
    sandbox_cluster: SandboxCluster,
    *,
    limit: str = "all",
    tags: str = "",
    variables: dict[str, Any] | None = None,
    check: bool = False,
    retries: int | None = None,
) -> Played:
    """Run it on the nodes of `limit`, with the roles of these tags; `variables` stand above the inventory's; `check`:
    in check mode; `retries`: of a lost connection, where not gpuprov's own number."""
    root = sandbox_cluster.root
    command = [
        str(Path(sys.executable).parent / "ansible-playbook"),
        "-i",
        str(root / "inventory.yml"),
        "--limit",
        limit,
    ]
    command += ["--tags", tags] if tags else []
    command += ["--check", "--diff"] if check else []
    command += ["--extra-vars", json.dumps({**extra_variables(), **(variables or {})})]
    retry_environment = {} if retries is None else {"ANSIBLE_SSH_RETRIES": str(retries)}
    done = subprocess.run(
        [*command, str(ROOT / "ansible/playbooks/site.yml")],
        env={
            **os.environ,
            **environment(ClusterPaths(sandbox_cluster.file, sandbox_cluster.name, sandbox=True)),
            **retry_environment,
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    counts: dict[str, dict[str, int]] = {}
    for line in done.stdout.splitlines():
        if " : ok=" in line:
            name, _, counters = line.partition(":")
            counts[name.strip()] = {key: int(value) for key, value in (pair.split("=") for pair in counters.split())}
    assert counts, done.stdout + done.stderr
    return Played(counts, done.stdout + done.stderr)
