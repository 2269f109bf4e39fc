"""roce-qos.json: how RoCE traffic of each card is marked and queued.

{"cards": {device: {"net": interface, "traffic_class": the file, "qos": `mlnx_qos -i`}}, "nccl": lines of
/etc/nccl.conf}.
Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from provisioner.verify.probe.runner import ASK, COLLECTORS, at_once, lines_of, listed, result, run, texts

ROCE_CARDS = "/sys/class/infiniband"
MOST_ROCE_CARDS = 32
QOS_TEXT = 1 << 13
NCCL_IB = ("NCCL_IB_TC=", "NCCL_IB_SL=", "NCCL_IB_FIFO_TC=")


def roce_qos(seconds: float, _request: dict[str, Any]) -> dict[str, Any]:
    """mlnx_qos (MLNX_OFED, DOCA) reads the registers of a card; traffic_class is a file of the same drivers alone."""
    cards: dict[str, Any] = {}

    def ask(device: str) -> None:
        base = ROCE_CARDS + "/" + device
        card = {"net": next(iter(listed(base + "/device/net")), "")}
        card.update(texts(base + "/tc/1", ["traffic_class"]))
        if card["net"]:
            out = run(["mlnx_qos", "-i", card["net"]], seconds / 2)
            card.update({"qos": out["text"][:QOS_TEXT]} if out["rc"] == 0 else {})
        cards[device] = card

    at_once(ask, [(name,) for name in listed(ROCE_CARDS)[:MOST_ROCE_CARDS]], min(seconds, ASK))
    nccl: list[str] = []
    with contextlib.suppress(OSError):
        nccl = [line.strip()[:200] for line in lines_of("/etc/nccl.conf") if line.strip().startswith(NCCL_IB)]
    return result(json.dumps({"cards": dict(cards), "nccl": nccl}), 0)


COLLECTORS["roce-qos.json"] = roce_qos
