"""mlxlink.json: what the firmware of mlx5 cards says of their cables, card by card.

{"state": "ran" or "absent", "why", "cards": {device: {"rc", "timed_out", "seconds", "error", "output": the tool's own
JSON}}}.
Asked when the load has ended, of bare metal: a virtual function may not read the registers.
Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from typing import Any

from provisioner.verify.probe.runner import COLLECTORS, PATH, at_once, listed, outcome, result, run

CARDS_OF = "/sys/class/infiniband"
MOST_CARDS = 32
AT_A_TIME = 4


def mlxlink(seconds: float, _request: dict[str, Any]) -> dict[str, Any]:
    """MFT's mlxlink, or the same of mstflint."""
    tool = next((name for name in ("mlxlink", "mstlink") if shutil.which(name, path=PATH)), None)
    if tool is None:
        return result(json.dumps({"state": "absent", "why": "neither mlxlink nor mstlink is installed"}), 0)
    cards: dict[str, Any] = {}
    slots = threading.Semaphore(AT_A_TIME)

    def ask(device: str) -> None:
        address = os.path.basename(os.path.realpath(CARDS_OF + "/" + device + "/device"))  # noqa: PTH119
        with slots:
            out = run([tool, "-d", address, "-m", "-c", "--json"], seconds / 3)
        cards[device] = {**outcome(out), "output": out["text"][: 1 << 15]}

    names = [name for name in listed(CARDS_OF) if os.path.basename(card_driver(name)) == "mlx5_core"]  # noqa: PTH119
    at_once(ask, [(name,) for name in names[:MOST_CARDS]], seconds)
    return result(json.dumps({"state": "ran", "cards": dict(cards)}), 0)


def card_driver(device: str) -> str:
    return os.path.realpath(CARDS_OF + "/" + device + "/device/driver")


COLLECTORS["mlxlink.json"] = mlxlink
