"""Counters of network ports that grew while the node worked."""

from __future__ import annotations

from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.checks.load import LOAD, NEEDS, worked
from provisioner.verify.checks.rdma import NO_RDMA, RDMA
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts

LINK = ("link_downed", "local_link_integrity_errors", "excessive_buffer_overrun_errors")
"""Errors of the wire itself."""
RETRIES = (
    "symbol_error", "link_error_recovery", "port_rcv_errors", "port_xmit_discards", "rnr_nak_retry_err",
    "local_ack_timeout_err", "packet_seq_err", "out_of_sequence", "roce_slow_restart", "rx_icrc_encapsulated",
    "retrans_timeout_events", "impaired_remote_conn_events", "unresponsive_remote_events", "rx_drops",
)  # fmt: skip
"""What is sent again or dropped: mlx5 (docs.kernel.org, RDMA hw_counters) and EFA (amzn-drivers, efa_verbs.c)."""


def _grown(node: Facts, expected: Expected) -> dict[str, dict[str, int]]:
    """Port → counters that grew over the load."""
    worked(node, expected)
    assert node.after is not None
    if node.after.rdma is None or node.rdma is None:
        file = "rdma-after.json" if node.after.rdma is None else "rdma.json"
        unknown(node.source(file).reason, file)
    before = {(d.name, p.number): p.counters for d in node.rdma for p in d.ports}
    found: dict[str, dict[str, int]] = {}
    told = False
    for device in node.after.rdma:
        for port in device.ports:
            old = before.get((device.name, port.number), {})
            told = told or bool(old.keys() & {*LINK, *RETRIES})
            more = {name: n - old[name] for name, n in port.counters.items() if name in old and n > old[name]}
            if more:
                found[f"{device.name}/{port.number}"] = more
    if not told:
        skip("the ports give no error counters, as virtual functions do not")
    return found


@check(
    "load.rdma_link",
    severity="fatal",
    documented="github NVIDIA/NVSentinel nic-health-monitor: link_downed, local_link_integrity_errors and "
    "excessive_buffer_overrun_errors are fatal where they grow",
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
    saw(expected="no counter of a link grows", actual=wrong or "none grew")
    if wrong:
        fail("; ".join(wrong[:6]))


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
    most = expected.most.get("load.rdma_retries", 0.0)
    grown = _grown(node, expected)
    wrong = [f"{port}: {more[c]} {c}" for port, more in grown.items() for c in RETRIES if more.get(c, 0) > most]
    saw(expected=f"{most:g} at most of each", actual=wrong or "not more")
    if wrong:
        fail("; ".join(wrong[:6]), unverified=expected.unsupported("load.rdma_retries"))
