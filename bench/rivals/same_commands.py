"""The commands of gpuprov's probe at level quick, as people type them: for a bare parallel ssh and for testinfra.

Every file that the probe opens by its name is a `cat` here; what it finds by walking through folders (network cards,
RDMA ports, processors, mounts) is left out, which is kinder to the rivals.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from collections.abc import Sequence

import pytest


def commands(document: str) -> list[str]:
    """The shell commands of a JSON list of argument vectors."""
    return [shlex.join(argv) for argv in json.loads(document)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "command" in metafunc.fixturenames:
        metafunc.parametrize("command", commands(os.environ["BENCH_COMMANDS"]))


def test_command(host, command: str) -> None:  # type: ignore[no-untyped-def]
    """testinfra, one by one; what a command says is not looked at, as the bare ssh does not."""
    assert host.run(f"sudo -n {command}").rc is not None


def parallel(config: str, names: Sequence[str], document: str) -> int:
    """One ssh for each node at once, on each all commands at once; bytes that came back."""
    script = "\n".join(f"{command} 2>&1 &" for command in commands(document)) + "\nwait\n"

    async def run_on_node(name: str) -> int:
        child = await asyncio.create_subprocess_exec(
            "ssh", "-F", config, name, "sudo -n sh",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, _ = await asyncio.wait_for(child.communicate(script.encode()), 120)
        return len(output)

    async def everyone() -> list[int]:
        return await asyncio.gather(*map(run_on_node, names))

    return sum(asyncio.run(everyone()))


if __name__ == "__main__":
    import sys

    print(parallel(sys.argv[1], sys.argv[2].split(","), os.environ["BENCH_COMMANDS"]))
