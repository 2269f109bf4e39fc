"""The DCGM exporter: it answers, and has readings of every GPU."""

from __future__ import annotations

import re
import shlex

import pytest
from gpu_node import Node

PORT = 9400
SCRAPE = f"""
import socket, struct
from urllib.request import ProxyHandler, build_opener
rows = [row.split() for row in open("/proc/net/tcp").read().splitlines()[1:]]
sockets = [row[1].split(":") for row in rows if row[3] == "0A"]
raw = [struct.pack("=I", int(address, 16)) for address, port in sockets if int(port, 16) == {PORT}]
host = socket.inet_ntoa(raw[0]) if raw and any(raw[0]) else "127.0.0.1"
print(build_opener(ProxyHandler({{}})).open(f"http://{{host}}:{PORT}/metrics", timeout=10).read().decode())
"""
"""Asks the address where it listens, which may be the node's private one alone."""
SAMPLE = re.compile(r'^(DCGM_\w+)\{.*?\bgpu="(\d+)".*\}\s+(\S+)', re.M)
BLANKS = {9223372036854775792.0, 140737488355328.0, 2147483632.0}
"""DCGM writes these in the place of a value that it does not have."""


def test_exporter_has_readings_of_every_gpu(node: Node) -> None:
    if not node.expected["dcgm_exporter"]:
        pytest.skip("the lock has no DCGM exporter")
    samples = SAMPLE.findall(node.output(f"python3 -c {shlex.quote(SCRAPE)}"))
    gpus = {gpu for name, gpu, value in samples if name != "DCGM_FI_DEV_XID_ERRORS" and float(value) not in BLANKS}
    count = len(node.gpus())
    node.require(len(gpus) >= count, f"the exporter has readings of {len(gpus)} of {count} GPUs")
