"""ib_write_bw (perftest): each RDMA card with itself (nic-loopback.json), with another one of its node, and those of
two nodes with each other, rail by rail (parts of fabric.json, which asks for them).

nic-loopback.json: {"state": "ran", "busy" or "absent", "why", "busy": [{"pid", "name"}], "cards": [{"device", "port",
"to", "rc", "timed_out", "seconds", "output", "error"}]}; "to" is the card that was written to. The request's "load"
holds "rails": {"layer", "rate_gbps"} of the ports that are worked: those that are up, of that link layer and at least
so fast; and "pci", the PCI addresses of those for training: where cards stand at half of them or more, no other is
worked.

Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
import time
from collections.abc import Callable
from typing import Any

from provisioner.verify.probe.load import occupied
from provisioner.verify.probe.runner import COLLECTORS, PATH, listed, outcome, pci_address, result, run, texts

WRITE_BW = "ib_write_bw"
MESSAGE, MESSAGES = 8 << 20, 2000
"""8 MiB, as the limits were measured (limits.yaml), and 17 GB of them: 0.3 s at 400 Gbit/s."""
TCP_PORT = 18515
"""perftest's own."""
PAIR_S = 15.0
"""For one client; perftest needs a second to begin, and a path that is dead ends after some."""
RAILS_S = 60.0
"""For all rails of two nodes, after which the servers are ended."""
WAIT_S = 20.0
"""For the other node's servers to be there."""
VERBS = "/sys/class/infiniband"


def training_cards(rail_request: dict[str, Any]) -> list[tuple[str, str]]:
    """(device, port) of each port that carries training traffic, mlx5_2 before mlx5_10."""
    devices, pci = listed(VERBS), rail_request.get("pci", [])
    known = [device for device in devices if pci_address(f"{VERBS}/{device}") in pci]
    if pci and 2 * len(known) >= len(pci):
        devices = known
    cards = []
    for device in sorted(devices, key=lambda name: (re.sub(r"\d+$", "", name), len(name), name)):
        for port in listed(f"{VERBS}/{device}/ports"):
            port_texts = texts(f"{VERBS}/{device}/ports/{port}", ("state", "rate", "link_layer"))
            rate = re.match(r"[0-9.]+", port_texts.get("rate", ""))
            fast = rate is not None and float(rate[0]) >= float(rail_request["rate_gbps"])
            if (
                port_texts.get("state", "").endswith(": ACTIVE")
                and port_texts.get("link_layer") == rail_request["layer"]
                and fast
            ):
                cards.append((device, port))
    return cards


def write_bw(card: tuple[str, str], tcp: int, address: str | None = None) -> list[str]:
    """The server's command; with an address the client's."""
    line = [WRITE_BW, "-d", card[0], "-i", card[1], "-p", str(tcp), "-s", str(MESSAGE), "-n", str(MESSAGES)]
    return [*line, "-F", "--report_gbits", *([address] if address else [])]


def connected(card: tuple[str, str], tcp: int, address: str, until: float) -> dict[str, Any]:
    """What the client reached; until then it tries again while no server is there."""
    while True:
        out = run(write_bw(card, tcp, address), PAIR_S)
        refused = out["rc"] not in (0, None) and "ouldn't connect" in out["text"] + out["error"]
        if not refused or time.monotonic() > until:
            break
        time.sleep(0.2)
    return {"device": card[0], "port": card[1], **outcome(out), "output": out["text"][-3000:]}


def loopback(seconds: float, request: dict[str, Any]) -> dict[str, Any]:
    """Each card with itself, one after the other, `seconds` for all."""
    return worked(seconds, request, lambda cards: [(card, card) for card in cards])


def own_cards(seconds: float, request: dict[str, Any]) -> dict[str, Any]:
    """Each card with the one before it on the node, the first with the last: what goes from one card to another leaves
    the node and comes back through cable and switch, which what a card sends to itself need not do."""
    return worked(seconds, request, lambda cards: [(card, cards[i - 1]) for i, card in enumerate(cards) if cards[1:]])


def worked(
    seconds: float, request: dict[str, Any], pairs: Callable[[list[tuple[str, str]]], list[Any]]
) -> dict[str, Any]:
    """ib_write_bw from the first card of each pair to its second, one pair after the other."""
    load_request = request["load"]
    holders = occupied(load_request["vendor"])
    if holders is None:
        return result(json.dumps({"state": "absent", "why": "cannot tell whether a job is using the GPUs"}), 0)
    if holders:
        return result(json.dumps({"state": "busy", "busy": holders}), 0)
    if shutil.which(WRITE_BW, path=PATH) is None:
        return result(json.dumps({"state": "absent", "why": WRITE_BW + " is not installed"}), 0)
    rows: list[dict[str, Any]] = []
    until = time.monotonic() + seconds
    for index, (sender, receiver) in enumerate(pairs(training_cards(load_request["rails"]))):
        remaining_s = until - time.monotonic()
        if remaining_s < 2:
            break
        server = threading.Thread(
            target=run, args=(write_bw(receiver, TCP_PORT + index), min(PAIR_S, remaining_s)), daemon=True
        )
        server.start()
        row = connected(sender, TCP_PORT + index, "127.0.0.1", time.monotonic() + min(5.0, remaining_s))
        rows.append(dict(row, to=receiver[0]))
    return result(json.dumps({"state": "ran", "cards": rows}), 0)


def rails(load_request: dict[str, Any]) -> list[dict[str, Any]] | None:
    """This node's part of two: the first serves all its cards, the second writes to them, one after the other, and has
    the rows. None where this node has nothing to say."""
    part, cards = load_request["together"], training_cards(load_request["rails"])
    if part["nodes"] != 2 or shutil.which(WRITE_BW, path=PATH) is None:
        return None
    if part["node"] == 0:
        servers = [
            threading.Thread(target=run, args=(write_bw(card, part["port"] + 1 + index), RAILS_S), daemon=True)
            for index, card in enumerate(cards)
        ]
        for server in servers:
            server.start()
        for server in servers:
            server.join(RAILS_S)
        return None
    begun = time.monotonic()
    rows: list[dict[str, Any]] = []
    for index, card in enumerate(cards):
        if time.monotonic() - begun < RAILS_S - PAIR_S:
            rows.append(connected(card, part["port"] + 1 + index, part["address"], begun + WAIT_S))
    return rows


COLLECTORS["nic-loopback.json"] = loopback
