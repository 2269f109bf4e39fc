"""RDMA tools: ibstat and its relatives for InfiniBand and RoCE, fi_info for EFA."""

from __future__ import annotations

import sys

from . import state

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

CODES = {"Active": "PORT_ACTIVE (4)", "Down": "PORT_DOWN (1)", "Initializing": "PORT_INIT (2)"}


def _missing(tool: str, program: str) -> bool:
    """These tools stand before the real ones in PATH; without the real one they are not there either."""
    if state.exists(program):
        return False
    print(f"{tool}: command not found (simulated by gpuprov: its package is not installed)", file=sys.stderr)
    return True


def _real(tool: str) -> str:
    return f"usr/bin/{tool}" if tool.startswith("ibv_") or tool in ("ibdev2netdev", "ofed_info") else f"usr/sbin/{tool}"


def ibstat(arguments: list[str], _version: str) -> int:
    if _missing("ibstat", _real("ibstat")):
        return 127
    nics = state.hardware().get("nics", [])
    if "-l" in arguments:
        print("\n".join(nic["name"] for nic in nics))
        return 0
    names = [a for a in arguments if not a.startswith("-")]
    for nic in nics:
        if not names or nic["name"] in names:
            _ibstat(nic)
    return 0


def _ibstat(nic: dict[str, Any]) -> None:
    infiniband = nic["link_layer"] == "InfiniBand"
    up = nic["state"] == "Active"
    print(
        f"CA '{nic['name']}'\n\tCA type: {nic['adapter']['type']}\n"
        f"\tNumber of ports: 1\n\tFirmware version: {nic['adapter']['firmware']}"
    )
    print(f"\tHardware version: 0\n\tNode GUID: 0x{nic['guid']}\n\tSystem image GUID: 0x{nic['guid']}\n\tPort 1:")
    print(f"\t\tState: {nic['state']}\n\t\tPhysical state: {nic['physical_state']}\n\t\tRate: {nic['rate_gbps']:g}")
    print(
        f"\t\tBase lid: {nic['lid'] if infiniband and up else (65535 if infiniband else 0)}\n"
        f"\t\tLMC: 0\n\t\tSM lid: {1 if infiniband and up else 0}"
    )
    print(
        f"\t\tCapability mask: {'0xa651ec48' if infiniband else '0x00010000'}\n"
        f"\t\tPort GUID: 0x{nic['guid']}\n\t\tLink layer: {nic['link_layer']}"
    )


def ibstatus(_arguments: list[str], _version: str) -> int:
    if _missing("ibstatus", _real("ibstatus")):
        return 127
    for nic in state.hardware().get("nics", []):
        number = {"Active": "4: ACTIVE", "Down": "1: DOWN", "Initializing": "2: INIT"}.get(nic["state"], "0: NOP")
        physical = {"LinkUp": "5: LinkUp", "Disabled": "3: Disabled", "Polling": "2: Polling"}.get(
            nic["physical_state"], "2: Polling"
        )
        print(
            f"Infiniband device '{nic['name']}' port 1 status:\n"
            f"\tdefault gid:\t fe80:0000:0000:0000:{_quads(nic['guid'])}"
        )
        print(f"\tbase lid:\t 0x{nic['lid']:x}\n\tsm lid:\t\t 0x1\n\tstate:\t\t {number}\n\tphys state:\t {physical}")
        print(f"\trate:\t\t {nic['rate_gbps']:g} Gb/sec (4X)\n\tlink_layer:\t {nic['link_layer']}\n")
    return 0


def _quads(guid: str) -> str:
    return ":".join(guid[i : i + 4] for i in range(0, 16, 4))


def ibv_devinfo(_arguments: list[str], _version: str) -> int:
    if _missing("ibv_devinfo", _real("ibv_devinfo")):
        return 127
    nics = state.hardware().get("nics", [])
    if not nics:
        print("No IB devices found", file=sys.stderr)
        return 255
    for nic in nics:
        up = nic["state"] == "Active"
        print(
            f"hca_id:\t{nic['name']}\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t{nic['adapter']['firmware']}"
        )
        print(
            f"\tnode_guid:\t\t\t{_quads(nic['guid'])}\n\tsys_image_guid:\t\t\t{_quads(nic['guid'])}\n\tvendor_id:\t\t\t0x02c9"
        )
        print(
            f"\tvendor_part_id:\t\t\t{nic['adapter']['part']}\n\thw_ver:\t\t\t\t0x0\n\tboard_id:\t\t\tMT_0000000223\n\tphys_port_cnt:\t\t\t1"
        )
        print(
            f"\t\tport:\t1\n\t\t\tstate:\t\t\t{CODES.get(nic['state'], 'PORT_DOWN (1)')}\n"
            f"\t\t\tmax_mtu:\t\t4096 (5)\n\t\t\tactive_mtu:\t\t{nic.get('mtu', '4096 (5)')}"
        )
        print(
            f"\t\t\tsm_lid:\t\t\t{1 if up else 0}\n\t\t\tport_lid:\t\t{nic['lid'] if up else 65535}\n"
            f"\t\t\tport_lmc:\t\t0x00\n\t\t\tlink_layer:\t\t{nic['link_layer']}\n"
        )
    return 0


def ibdev2netdev(_arguments: list[str], _version: str) -> int:
    for i, nic in enumerate(state.hardware().get("nics", [])):
        print(f"{nic['name']} port 1 ==> ib{i} ({'Up' if nic['state'] == 'Active' else 'Down'})")
    return 0


def ofed_info(_arguments: list[str], version: str) -> int:
    print(f"OFED-internal-{version}: (simulated by gpuprov)")
    return 0


def fi_info(arguments: list[str], _version: str) -> int:
    """`fi_info -p efa`: three entries a device (EFA-direct, reliable, datagram), or -61 where there is none."""
    provider = arguments[arguments.index("-p") + 1] if "-p" in arguments[:-1] else "efa"
    devices = state.hardware().get("efa", []) if "efa" in state.modules() else []
    if provider != "efa" or not devices:
        print("fi_getinfo: -61 (No data available)", file=sys.stderr)
        return 61
    for device in devices:
        for fabric, suffix, kind in (
            ("efa-direct", "rdm", "FI_EP_RDM"),
            ("efa", "rdm", "FI_EP_RDM"),
            ("efa", "dgrm", "FI_EP_DGRAM"),
        ):
            print(f"provider: efa\n    fabric: {fabric}\n    domain: {device['name']}-{suffix}\n    version: 206.0")
            print(f"    type: {kind}\n    protocol: FI_PROTO_EFA")
    return 0
