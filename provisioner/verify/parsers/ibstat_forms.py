"""Other tools' lists of RDMA ports in the words of ibstat: `ibstatus`, `ibv_devinfo` (also without -v), `rdma link`.

Traps: an mlx5 device on Azure's Ethernet is listed too; ibv_devinfo without -v has no rate, `rdma link` neither rate
nor link layer; PORT_ACTIVE, ACTIVE and "4: ACTIVE" are one state.
"""

from __future__ import annotations

import re
from dataclasses import replace

from provisioner.verify.parsers import lines, number
from provisioner.verify.parsers.rdma_port import Port

_STATUS = re.compile(r"^Infiniband device '([^']{1,64})' port ([0-9]{1,3}) status:")
_HCA = re.compile(r"^\s*hca_id:\s*(\S+)")
_PORT = re.compile(r"^\s*port:\s*([0-9]{1,3})\s*$")
_KEY = re.compile(r"^\s+([a-z_ ]+?):\s+(\S.*?)\s*$")
_LINK = re.compile(r"^link (\S+?)/([0-9]{1,3})\s+(.*)$")
WORDS = {"active": "Active", "init": "Initializing", "initializing": "Initializing", "armed": "Armed", "down": "Down",
         "linkup": "LinkUp", "link_up": "LinkUp", "polling": "Polling", "disabled": "Disabled", "sleep": "Sleep",
         "port_active": "Active", "port_down": "Down", "port_init": "Initializing", "port_armed": "Armed"}  # fmt: skip
_SPEED = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,4})?) Gbps", re.ASCII)
_WIDTH = re.compile(r"([0-9]{1,2})X", re.I | re.ASCII)


def read(text: str) -> tuple[Port, ...] | None:
    """The ports that the text lists; None where it is of none of these tools."""
    ports: list[Port] = []
    device, speed, width = "", 0.0, 0.0
    card: dict[str, str] = {}
    for line in lines(text):
        if match := _STATUS.match(line):
            ports.append(Port(match[1], int(match[2])))
        elif match := _HCA.match(line):
            device, card = match[1], {}
        elif match := _LINK.match(line):
            tokens = match[3].split()
            fields = dict(zip(tokens[::2], tokens[1::2], strict=False))
            ports.append(Port(match[1], int(match[2]), state=_state_word(fields.get("state")),
                              physical_state=_state_word(fields.get("physical_state")),
                              lid=_int(fields.get("lid", "")), sm_lid=_int(fields.get("sm_lid", ""))))  # fmt: skip
        elif device and (match := _PORT.match(line)):
            ports.append(Port(device, int(match[1]), firmware=card.get("fw_ver"), node_guid=card.get("node_guid")))
            speed = width = 0.0
        elif match := _KEY.match(line):
            key, value = match[1].strip(), match[2]
            if device and (not ports or ports[-1].device != device):
                card[key] = value
                continue
            if not ports:
                continue
            if key == "active_speed" and (hit := _SPEED.search(value)):
                speed = float(hit[1])
            elif key == "active_width" and (hit := _WIDTH.search(value)):
                width = float(hit[1])
            ports[-1] = _with(ports[-1], key, value)
            if speed and width:
                ports[-1] = replace(ports[-1], rate_gbps=_rounded(speed * width))
    return tuple(ports) or None


def _with(port: Port, key: str, value: str) -> Port:
    match key:
        case "state":
            return replace(port, state=_state_word(value))
        case "phys state" | "phys_state":
            return replace(port, physical_state=_state_word(value))
        case "rate":
            return replace(port, rate_gbps=number(value))
        case "link_layer":
            return replace(port, link_layer=value)
        case "base lid" | "port_lid":
            return replace(port, lid=_int(value))
        case "sm lid" | "sm_lid":
            return replace(port, sm_lid=_int(value))
    return port


def _int(value: str) -> int | None:
    if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", value):
        return int(value, 16)
    return int(value) if re.fullmatch(r"[0-9]{1,6}", value, re.ASCII) else None


def _state_word(value: str | None) -> str | None:
    """One of ibstat's words: of "4: ACTIVE", "PORT_ACTIVE (4)" and "ACTIVE" Active."""
    state = re.sub(r"^[0-9]+:\s*|\s*\([0-9]+\)$", "", value or "").strip()
    return WORDS.get(state.lower(), state or None)


def _rounded(rate: float) -> float:
    """Lanes times signalling: 4 lanes of 106.25 are the 400 Gbit/s that ibstat says, of 14.0 (FDR) its 56."""
    return next((nominal for nominal in (40, 56, 100, 200, 400, 800) if abs(rate - nominal) <= nominal * 0.07), rate)
