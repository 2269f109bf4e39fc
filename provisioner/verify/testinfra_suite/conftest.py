"""Hosts and what is expected of them: `pytest --hosts=ssh://NODE,… --ssh-config=FILE`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gpu_node import Node

EXPECTED: dict[str, Any] = json.loads(Path(__file__).with_name("expected.json").read_text(encoding="utf-8"))
NODES: dict[str, Node] = {}
"""By host: what a node has answered once is not asked again by the next file of tests."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--as-node", metavar="NODE", help="Take the host for this node of expected.json, even if its name differs."
    )


def pytest_report_header() -> str:
    simulated = ", simulated hardware" if EXPECTED["simulated"] else ""
    return f"fleet: {EXPECTED['cluster']}, {len(EXPECTED['nodes'])} nodes in expected.json{simulated}"


@pytest.fixture(scope="module")
def node(host: Any, request: pytest.FixtureRequest) -> Node:
    """The host under test, with what expected.json has of it."""
    hostname = request.config.getoption("--as-node") or host.backend.get_hostname()
    if hostname not in NODES:
        name = node_name(hostname)
        NODES[hostname] = Node(host, name, EXPECTED["expectations"][EXPECTED["nodes"][name]])
    return NODES[hostname]


def node_name(hostname: str) -> str:
    """The node of a host: train-0, or vision-train-0 as `gpuprov ssh-config` calls it. Fails for any other name."""
    for name in (hostname, hostname.removeprefix(f"{EXPECTED['cluster']}-")):
        if name in EXPECTED["nodes"]:
            return name
    known = ", ".join(list(EXPECTED["nodes"])[:8])
    pytest.fail(f"expected.json does not have the host {hostname}. It has: {known}", pytrace=False)
