"""ib-switches.json: the InfiniBand switch port at the other end of each cable.

{"ports": {"mlx5_0/1": {"nodeinfo", "nodedesc"}}}: what smpquery (infiniband-diags) prints of the node one hop away.
Asking for that one node needs no discovery of the fabric. Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import json
from typing import Any

from provisioner.verify.probe.runner import COLLECTORS, at_once, listed, result, run, texts

IB_CARDS = "/sys/class/infiniband"
MOST_IB_PORTS = 32
ONE_HOP = "0,1"
"""A directed route: out of the port that asks."""
SMP_TEXT = 4096


def ib_switches(seconds: float, _request: dict[str, Any]) -> dict[str, Any]:
    ports: dict[str, Any] = {}
    missing: list[str] = []

    def ask(device: str, port: str) -> None:
        answers = {}
        for query in ("nodeinfo", "nodedesc"):
            out = run(["smpquery", "-C", device, "-P", port, "-D", query, ONE_HOP], seconds / 3)
            if out["missing"]:
                missing.append(out["error"])
                return
            if out["rc"] == 0:
                answers[query] = out["text"][:SMP_TEXT]
        ports[device + "/" + port] = answers

    pairs = [(device, port) for device in listed(IB_CARDS) for port in listed(IB_CARDS + "/" + device + "/ports")]
    active = [pair for pair in pairs if is_ib_up(*pair)][:MOST_IB_PORTS]
    at_once(ask, active, seconds)
    if missing:
        return result(missing=True, error=missing[0])
    return result(json.dumps({"ports": dict(ports)}), 0)


def is_ib_up(device: str, port: str) -> bool:
    attributes = texts(IB_CARDS + "/" + device + "/ports/" + port, ["state", "link_layer"])
    return attributes.get("link_layer") == "InfiniBand" and "ACTIVE" in attributes.get("state", "")


COLLECTORS["ib-switches.json"] = ib_switches
