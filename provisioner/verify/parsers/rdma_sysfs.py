"""rdma.json: RDMA devices as the kernel shows them below /sys/class/infiniband, put together by the probe.

The probe copies files as they are; their formats are the kernel's (Documentation/ABI/stable/sysfs-class-infiniband,
sysfs-bus-pci). A file that is not there is absent from the document, so a value is None only where nobody says it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from provisioner.verify.parsers import Unreadable, first_line, number
from provisioner.verify.parsers.untrusted import strict_whole
from provisioner.verify.tool import Tool

_STATE = re.compile(r"^[0-9]{1,2}: ([A-Za-z]{1,30})$")
_GID = re.compile(r"^[0-9a-f]{4}(:[0-9a-f]{4}){7}$")
_PKEY = re.compile(r"^0x[0-9a-f]{4}$")
NO_GID = re.compile(r"^(fe80(:0000){3}:)?[0:]*$")
IPV4 = "0000:0000:0000:0000:0000:ffff:"
FULL_MEMBER = 0x8000
LANE_GBPS = {2.5: 2.0, 5.0: 4.0, 8.0: 7.877, 16.0: 15.754, 32.0: 31.508, 64.0: 60.5}
"""GT/s of a PCIe lane → Gbit/s that it carries one way: 8b/10b up to 5 GT/s, 128b/130b up to 32 (PCI Express base
specification), 242 of 256 bytes of a flit at 64."""


@dataclass(frozen=True, slots=True)
class Port:
    """One port. `rate_gbps` in Gbit/s; `lid` and `sm_lid` are 0 where none is assigned; `gids` are the addresses that
    are set, each with its type (IB/RoCE v1, RoCE v2) where the kernel says it; counters are since the driver was
    loaded."""

    number: int
    state: str | None = None
    physical_state: str | None = None
    rate_gbps: float | None = None
    link_layer: str | None = None
    lid: int | None = None
    sm_lid: int | None = None
    pkeys: tuple[str, ...] = ()
    gids: tuple[tuple[str, str | None], ...] = ()
    roce_v2: tuple[int, ...] = ()
    """Indices of its RoCE v2 addresses that are made of an IPv4 address."""
    counters: Mapping[str, int] = field(default_factory=dict)

    @property
    def up(self) -> bool:
        return self.state == "ACTIVE"

    @property
    def full_member(self) -> bool:
        """Whether a partition key of it is a full member's: limited members reach only full ones."""
        return bool(self.full_keys)

    @property
    def full_keys(self) -> tuple[str, ...]:
        """Its partition keys of a full member."""
        return tuple(key for key in self.pkeys if int(key, 16) & FULL_MEMBER and int(key, 16) & 0x7FFF)


@dataclass(frozen=True, slots=True)
class Device:
    """One RDMA device. PCIe: what the link runs at and carries, Gbit/s one way; `p2p` is whose GPU memory EFA's driver
    reaches ("NVIDIA", "NVIDIA peermem"), empty where it reaches none, None where the driver does not say."""

    name: str
    card: str | None = None
    firmware: str | None = None
    board: str | None = None
    pci: str | None = None
    """PCI address, as 0000:18:00.0."""
    numa: int | None = None
    pcie_gbps: float | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    p2p: str | None = None
    uverbs: bool = False
    driver: str | None = None
    """Version of the driver's module; a kernel's own has none."""
    interfaces: tuple[tuple[str, bool], ...] | None = None
    """Its network interfaces, and whether each is up; None where an older probe looked."""
    ports: tuple[Port, ...] = ()


def parse(text: str) -> tuple[Device, ...]:
    """Every device, by name."""
    try:
        document = json.loads(text)
        rows = document["devices"]
        if not isinstance(rows, dict):
            raise TypeError("devices is not an object")
        verbs_devices = {str(name) for name in document.get("uverbs", [])}
        versions = {str(k): str(v).strip()[:80] for k, v in dict(document.get("drivers", {})).items()}
        return tuple(_device(str(name), dict(row), verbs_devices, versions) for name, row in sorted(rows.items()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Unreadable(f"not what the probe writes: {first_line(text)}") from error


def _device(name: str, row: Mapping[str, Any], uverbs: set[str], drivers: Mapping[str, str]) -> Device:
    width = number(_text(row.get("device/current_link_width")))
    return Device(
        name=name,
        card=_text(row.get("hca_type")),
        firmware=_text(row.get("fw_ver")),
        board=_text(row.get("board_id")),
        pci=_text(row.get("pci")),
        numa=_integer(row.get("device/numa_node")),
        pcie_gbps=_link(number(_text(row.get("device/current_link_speed"))), width),
        pcie_width=int(width) if width else None,
        pcie_width_max=_integer(row.get("device/max_link_width")) or None,
        p2p=str(row["device/p2p"]).strip()[:80] if row.get("device/p2p") is not None else None,
        uverbs=name in uverbs,
        driver=drivers.get("mlx5_core") if (_text(row.get("hca_type")) or "MT").startswith("MT") else None,
        interfaces=tuple(
            (str(net), str(dict(interface_row).get("operstate", "")).strip() == "up")
            for net, interface_row in sorted(dict(row["net"]).items())
        )
        if "net" in row
        else None,
        ports=tuple(_port(int(n), dict(port)) for n, port in sorted(dict(row.get("ports", {})).items())),
    )


def _link(speed: float | None, width: float | None) -> float | None:
    """Gbit/s one way; None for "Unknown" (a virtual function) and speeds that are not in the table."""
    lane = LANE_GBPS.get(speed or 0.0)
    return None if lane is None or not width else lane * width


def _port(number_: int, row: Mapping[str, Any]) -> Port:
    gids = dict(row.get("gids", {}))
    kinds = dict(row.get("gid_types", {}))
    known = [(str(gid).lower(), _text(kinds.get(index))) for index, gid in sorted(gids.items())]
    keys = [str(key).lower() for key in row.get("pkeys", [])]
    counters = {str(k): v for k, text in dict(row.get("counters", {})).items() if (v := _integer(text)) is not None}
    return Port(
        number=number_,
        state=_state_name(row.get("state")),
        physical_state=_state_name(row.get("phys_state")),
        rate_gbps=number(_text(row.get("rate"))),
        link_layer=_text(row.get("link_layer")),
        lid=_hexadecimal(row.get("lid")),
        sm_lid=_hexadecimal(row.get("sm_lid")),
        pkeys=tuple(key for key in keys if _PKEY.match(key) and key != "0x0000"),
        roce_v2=tuple(
            sorted(
                int(index)
                for index, gid in gids.items()
                if str(index).isdecimal() and _text(kinds.get(index)) == "RoCE v2" and str(gid).lower().startswith(IPV4)
            )
        ),
        gids=tuple((gid, kind) for gid, kind in known if _GID.match(gid) and not NO_GID.match(gid)),
        counters=counters,
    )


def _text(value: Any) -> str | None:
    return (str(value).strip()[:80] or None) if value is not None else None


def _integer(value: Any) -> int | None:
    text = _text(value) or ""
    return int(text) if re.fullmatch(r"-?[0-9]{1,20}", text) else None


def _hexadecimal(value: Any) -> int | None:
    text = _text(value) or ""
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", text) else None


def _state_name(value: Any) -> str | None:
    match = _STATE.match(_text(value) or "")
    return match[1] if match else None


def growth(rows: Any) -> dict[str, dict[str, int]]:
    """By how much counters grew, as probe/fabric.py says it: port → counter → whole number above 0."""
    ports = ((str(port)[:60], more) for port, more in rows.items()) if isinstance(rows, dict) else ()
    return {
        port: {str(name)[:60]: n for name, value in more.items() if (n := strict_whole(value)) is not None and n > 0}
        for port, more in ports
        if isinstance(more, dict)
    }


TOOLS = (
    Tool(
        file="rdma.json",
        field="rdma",
        parse=parse,
        seconds=10,
        when=lambda expected: expected.network in ("infiniband", "roce", "efa"),
        label="/sys/class/infiniband",
        by_hand=False,
    ),
    Tool(
        file="rdma-after.json",
        field="after.rdma",
        parse=parse,
        asked="after",
        label="/sys/class/infiniband after the load",
        document={},
    ),
)
