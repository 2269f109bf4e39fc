"""ethtool-modules.json: what the transceivers of Ethernet ports that are up say of themselves.

{"ports": {interface: {"rc", "timed_out", "seconds", "error", "text": `ethtool -m`}}}.
Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import json
import os
import threading
from typing import Any

from provisioner.verify.probe.runner import COLLECTORS, at_once, listed, outcome, result, run, texts

NET = "/sys/class/net"
MOST_PORTS = 32
PORTS_AT_A_TIME = 4
MODULE_TEXT = 1 << 14


def ethtool_modules(seconds: float, _request: dict[str, Any]) -> dict[str, Any]:
    """Reading a module's memory takes up to a second; virtual functions and copper without a memory refuse."""
    ports: dict[str, Any] = {}
    slots = threading.Semaphore(PORTS_AT_A_TIME)

    def ask(port: str) -> None:
        with slots:
            out = run(["ethtool", "-m", port], seconds / 3)
        if not out["missing"]:
            ports[port] = {**outcome(out), "text": out["text"][:MODULE_TEXT]}

    names = [name for name in listed(NET) if is_port_up(name)][:MOST_PORTS]
    at_once(ask, [(name,) for name in names], seconds)
    return result(json.dumps({"ports": dict(ports)}), 0)


def is_port_up(name: str) -> bool:
    """Whether an interface is a card's own and has a link."""
    attributes = texts(NET + "/" + name, ["operstate"])
    return os.path.exists(NET + "/" + name + "/device") and attributes.get("operstate") == "up"  # noqa: PTH110


COLLECTORS["ethtool-modules.json"] = ethtool_modules
