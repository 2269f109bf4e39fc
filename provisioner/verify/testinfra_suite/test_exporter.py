"""The DCGM exporter: it answers, and has readings of every GPU."""

from __future__ import annotations

import re
import shlex

import pytest
from gpu_node import Node

URL = "http://127.0.0.1:9400/metrics"
SCRAPE = f"""
from urllib.request import ProxyHandler, build_opener
print(build_opener(ProxyHandler({{}})).open({URL!r}, timeout=10).read().decode())
"""
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
