"""ib_write_bw: two simulated cards tell each other over TCP how fast they are, and the client prints the slower one."""

from __future__ import annotations

import socket
import sys

from . import state

TYPE_CHECKING = False  # typing would be a tenth of what a tool takes to start
if TYPE_CHECKING:
    from typing import Any

EFFICIENCY = 0.985
"""Of the wire: what 8 MiB at a time reach (197 of 200 Gbit/s)."""
VALUED = ("-d", "-i", "-p", "-s", "-n")
ROUND_S = 30.0
LINE = "-" * 87


def ib_write_bw(arguments: list[str], _version: str) -> int:
    options = {name: arguments[arguments.index(name) + 1] for name in VALUED if name in arguments[:-1]}
    positionals = [a for a in arguments if not a.startswith("-") and a not in options.values()]
    card = next((nic for nic in state.hardware().get("nics", []) if nic["name"] == options.get("-d")), None)
    if card is None or card["state"] != "Active":
        error_text = "IB device {} not found" if card is None else "Port number 1 state is {}"
        print(" " + error_text.format(options.get("-d") if card is None else card["state"]), file=sys.stderr)
        print(" Unable to find the Infiniband/RoCE device", file=sys.stderr)
        return 1
    rate = card["rate_gbps"] * EFFICIENCY * card.get("speed", 1)
    port = int(options.get("-p", 18515))
    try:
        other = _called(positionals[0], port, rate) if positionals else _served(port, rate)
    except OSError:
        # linux-rdma/perftest#228
        print(f"Couldn't connect to {positionals[0] if positionals else 'a client'}:{port}", file=sys.stderr)
        print(
            "Unable to open file descriptor for socket connection Unable to init the socket connection", file=sys.stderr
        )
        return 1
    _table(card, options, min(rate, other))
    return 0


def _served(port: int, rate: float) -> float:
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("", port))
        listening.listen(1)
        listening.settimeout(ROUND_S)
        connection = listening.accept()[0]
    return _exchange_rate(connection, rate)


def _called(address: str, port: int, rate: float) -> float:
    return _exchange_rate(socket.create_connection((address, port), ROUND_S), rate)


def _exchange_rate(connection: socket.socket, rate: float) -> float:
    with connection:
        connection.sendall(f"{rate}\n".encode())
        with connection.makefile() as stream:
            line = stream.readline()
    if not line:
        raise ConnectionError("the other side closed the connection")
    return float(line)


def _table(card: dict[str, Any], options: dict[str, str], rate: float) -> None:
    size, count = int(options.get("-s", 65536)), int(options.get("-n", 5000))
    print(f"{LINE}\n                    RDMA_Write BW Test")
    print(f" Dual-port       : OFF\t\tDevice         : {card['name']}\n Number of qps   : 1\t\tTransport type : IB")
    print(f" Connection type : RC\t\tUsing SRQ      : OFF\n Mtu             : 4096[B]\n Link type       : "
          f"{'IB' if card['link_layer'] == 'InfiniBand' else 'Ethernet'}\n{LINE}")  # fmt: skip
    print(" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]")
    print(f" {size:<10} {count:<16} {rate * 1.0002:<18.2f} {rate:.2f} \t\t   {rate / 8 * 1e3 / size:.6f}\n{LINE}")
