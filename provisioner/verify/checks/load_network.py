"""Network ports seen twice: counters that grew while the node worked, states that two tools do not agree on."""

from __future__ import annotations

from provisioner.common.text import counted
from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.checks.ethernet import ENOUGH
from provisioner.verify.checks.load import LOAD, NEEDS, worked
from provisioner.verify.checks.rdma import EXPLAINED, NO_RDMA, RDMA
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts

LINK = ("link_downed", "local_link_integrity_errors", "excessive_buffer_overrun_errors")
"""Errors of the wire itself."""
SYMBOLS = "symbol_error"
RETRIES = (
    SYMBOLS, "link_error_recovery", "port_rcv_errors", "port_xmit_discards", "rnr_nak_retry_err",
    "local_ack_timeout_err", "packet_seq_err", "out_of_sequence", "roce_slow_restart", "rx_icrc_encapsulated",
    "retrans_timeout_events", "impaired_remote_conn_events", "unresponsive_remote_events", "rx_drops",
)  # fmt: skip
"""What is sent again or dropped: mlx5 (docs.kernel.org, RDMA hw_counters) and EFA (amzn-drivers, efa_verbs.c)."""


def _grown(node: Facts, expected: Expected) -> dict[str, dict[str, int]]:
    """Port → counters that grew over the load, and over what several nodes did together."""
    worked(node, expected)
    assert node.after is not None
    if node.after.rdma is None or node.rdma is None:
        file = "rdma-after.json" if node.after.rdma is None else "rdma.json"
        unknown(node.source(file).reason, file)
    previous = {(d.name, p.number): p.counters for d in node.rdma for p in d.ports}
    growth: dict[str, dict[str, int]] = {}
    has_counters = False
    for device in node.after.rdma:
        for port in device.ports:
            old = previous.get((device.name, port.number), {})
            has_counters = has_counters or bool(old.keys() & {*LINK, *RETRIES})
            more = {name: n - old[name] for name, n in port.counters.items() if name in old and n > old[name]}
            if more:
                growth[f"{device.name}/{port.number}"] = more
    # A node by itself puts nothing on the wire; with others it does.
    for name, fabric_growth in (node.fabric.grown if node.fabric is not None else {}).items():
        port_growth, has_counters = growth.setdefault(name, {}), True
        port_growth.update({counter: port_growth.get(counter, 0) + n for counter, n in fabric_growth.items()})
    if not has_counters:
        skip("the ports give no error counters, as virtual functions do not")
    return growth


@check(
    "load.rdma_link",
    severity="fatal",
    documented="github NVIDIA/NVSentinel nic-health-monitor: link_downed, local_link_integrity_errors and "
    "excessive_buffer_overrun_errors are fatal where they grow, symbol_error from 120 an hour on (IBTA: 1e-12)",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "ib.ports", "efa.devices"),
    applies=lambda e: e.network in RDMA,
    otherwise=NO_RDMA,
    says="A network port lost its link, or data on the wire, while the node worked. Replace cable and transceiver.",
)
def test_link(node: Facts, expected: Expected) -> None:
    grown = _grown(node, expected)
    wrong = [f"{port}: {more[c]} {c}" for port, more in grown.items() for c in LINK if more.get(c)]
    # As many as may come in an hour, in the minutes of a load.
    maximum = expected.most["rdma.symbol_error"]
    wrong += [f"{port}: {more[SYMBOLS]} {SYMBOLS}" for port, more in grown.items() if more.get(SYMBOLS, 0) > maximum]
    saw(expected="no counter of a link grows", actual=wrong or "none grew")
    if wrong:
        fail("; ".join(wrong[:6]), observed=True)


@check(
    "load.rdma_retries",
    severity="warn",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "ib.ports", "efa.devices", "load.rdma_link"),
    applies=lambda e: e.network in RDMA,
    otherwise=NO_RDMA,
    says="A network port sent again, or dropped, much while the node worked: congestion, a bad cable, a slow partner.",
)
def test_retries(node: Facts, expected: Expected) -> None:
    maximum = expected.most.get("load.rdma_retries", 0.0)
    grown = _grown(node, expected)
    wrong = [f"{port}: {more[c]} {c}" for port, more in grown.items() for c in RETRIES if more.get(c, 0) > maximum]
    saw(expected=f"{maximum:g} at most of each", actual=wrong or "not more")
    if wrong:
        fail("; ".join(wrong[:6]), unverified=expected.unsupported("load.rdma_retries"))


@check(
    "load.net_errors",
    severity="warn",
    action="vendor",
    level="standard",
    needs=NEEDS,
    follows=(LOAD, "net.errors"),
    says="An Ethernet card counted errors while the node worked, in more than one of a hundred packets: since boot "
    "they are too few to show. Look at cable, transceiver and switch port.",
)
def test_net_errors(node: Facts, expected: Expected) -> None:
    worked(node, expected)
    assert node.after is not None
    previous = {interface.name: interface.counts for interface in (node.host.interfaces if node.host else None) or ()}
    if node.source("interfaces-after.json").state == "absent":
        skip("an older probe, which did not look at them again")
    if node.after.interfaces is None:
        unknown(node.source("interfaces-after.json").reason, "interfaces-after.json")
    wrong, maximum = [], expected.most["net.error_share"]
    for interface in node.after.interfaces:
        more = {
            name: n - previous[interface.name].get(name, n)
            for name, n in interface.counts.items()
            if interface.name in previous
        }
        for direction in ("rx", "tx"):
            packets, errors = more.get(f"{direction}_packets", 0), more.get(f"{direction}_errors", 0)
            if packets >= ENOUGH and errors > maximum * packets:
                wrong.append(
                    f"{interface.name}: {counted(errors, 'error')} in {packets} {direction} packets under load"
                )
    saw(expected=f"{maximum:.0%} at most", actual=wrong or "not more")
    if wrong:
        fail("; ".join(wrong))


@check(
    "rdma.ports",
    severity="warn",
    action="reconfigure",
    needs=("rdma.json", "ibstat.txt"),
    follows=EXPLAINED,
    applies=lambda e: e.network in ("infiniband", "roce"),
    otherwise="this machine has neither InfiniBand nor RoCE",
    says="The kernel and ibstat do not agree on a port: it went down or came up while it was looked at. Look again.",
)
def test_ports_agree(node: Facts) -> None:
    assert node.rdma is not None and node.ib is not None
    kernel = {(d.name, p.number): p for d in node.rdma for p in d.ports}
    both = [(kernel[p.device, p.port], p) for p in node.ib.ports if (p.device, p.port) in kernel]
    differ = [
        f"{ib.device}/{ib.port} is {kernel_port.state or '?'} for the kernel, {ib.state} for ibstat"
        for kernel_port, ib in both
        if kernel_port.state is not None and ib.state is not None and kernel_port.up != (ib.state == "Active")
    ]
    saw(expected="the same of each port", actual=differ or f"{len(both)} ports alike")
    if differ:
        fail("; ".join(differ[:4]))
    if not both:
        unknown("ibstat and the kernel list no port with the same name")
