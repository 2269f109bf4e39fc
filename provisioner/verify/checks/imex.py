"""IMEX: whether a node of an NVLink domain shares its GPU memory with the others."""

from __future__ import annotations

from provisioner.common.text import few
from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.expectations import IMEX, Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.imex import Domain

SIDE = ("services.imex", "driver.responds", "driver.version")
OTHERWISE = "this machine's NVLinks do not leave the node"
LOCK = "only it says that IMEX runs as a unit of the system's, and has to answer"
WITHOUT_LOCK = "what its daemon says, where it answers"
WAITING = ("WAITING_FOR_PEERS", "WAITING_FOR_RECOVERY")
"""States of a daemon that other nodes keep waiting (github NVIDIA/DCGM, dcgm_fields.h, DCGM_FI_IMEX_DAEMON_STATUS)."""


def _joined(expected: Expected) -> bool:
    return expected.nvlink_across and (expected.units is None or IMEX in expected.units)


def _domain(node: Facts, expected: Expected) -> Domain:
    source = node.source("imex.json")
    if source.state == "absent":
        skip("older bundles do not have imex.json")
    if node.imex is None and expected.units is None:
        skip("no lock, and no IMEX of the system's answers: it may run in a pod")
    return node.imex if node.imex is not None else unknown(source.reason, "imex.json")


def own_line(domain: Domain, node: Facts) -> str | None:
    """The node's own entry of the domain: that with one of its addresses, or its name; None where that is none, or
    more than one."""
    host = node.host
    if host is None:
        return None
    name = (host.hostname or "").split(".")[0]
    addresses = {*(host.addresses or ())}
    entries = [
        entry
        for entry in domain.nodes
        if entry in addresses or (name and name in (entry.split(".")[0], domain.names.get(entry, "").split(".")[0]))
    ]
    return entries[0] if len(entries) == 1 else None


@check(
    "services.imex_own",
    severity="fatal",
    documented="NVIDIA IMEX guide, nvidia-imex-ctl; NCCL's message on a failure: check nvidia-imex-ctl -N. AWS PCS "
    "user guide: every node is READY and connected (C) with each other",
    action="reconfigure",
    vendor="nvidia",
    reads=("imex.json",),
    follows=SIDE,
    applies=_joined,
    otherwise=OTHERWISE,
    lock=LOCK,
    without_lock=WITHOUT_LOCK,
    says="This node's own IMEX daemon is not ready, or connected with none of the others: NCCL ends with an error "
    "between it and them. Look at `journalctl -u nvidia-imex`, its version, and /etc/nvidia-imex/nodes_config.cfg.",
)
def test_own(node: Facts, expected: Expected) -> None:
    domain = _domain(node, expected)
    line = own_line(domain, node)
    saw(
        expected="READY",
        actual={line: domain.nodes[line]} if line else {"nodes of the domain": len(domain.nodes)},
    )
    if line is None:
        reason = f"none of the {len(domain.nodes)} nodes of the domain has this node's address or name"
        unknown(reason if node.host is not None else "host.json, which has its addresses, was not read", action="none")
    state = domain.nodes[line]
    if state in WAITING:
        fail(f"{line} is {state}: other nodes keep it waiting", unverified=("that it is this node's own fault",))
    if state != "READY":
        fail(f"{line}, this node, is {state}")
    ready = [other for other, other_state in domain.nodes.items() if other_state == "READY" and other != line]
    cut = {(first, other) for first, other, _ in domain.broken}
    alone = [other for other in ready if (line, other) in cut or (other, line) in cut]
    among = [(a, b) for a in ready for b in ready if a < b and (a, b) not in cut and (b, a) not in cut]
    # With one other node alone nobody tells whose fault it is; services.imex_nodes warns then.
    if len(ready) > 1 and len(alone) == len(ready) and among:
        states = sorted(
            {link_state for first, other, link_state in domain.broken if line in (first, other) and first != other}
        )
        fail(
            f"{line}, this node, reaches none of {len(ready)} ready nodes, which reach each other: {', '.join(states)}"
        )


# Warnings: what is wrong with other nodes their own checks condemn.
@check(
    "services.imex_domain",
    severity="warn",
    action="reconfigure",
    vendor="nvidia",
    reads=("imex.json",),
    follows=(*SIDE, "services.imex_own"),
    applies=_joined,
    otherwise=OTHERWISE,
    lock=LOCK,
    without_lock=WITHOUT_LOCK,
    says="The IMEX domain is down as this node sees it, although its own daemon is ready: jobs over several nodes "
    "fail. Look at the other nodes' daemons and at /etc/nvidia-imex/nodes_config.cfg, which must be alike.",
)
def test_domain(node: Facts, expected: Expected) -> None:
    domain = _domain(node, expected)
    saw(expected="UP", actual=domain.status)
    if domain.status not in ("UP", "DEGRADED"):
        fail(f"the domain is {domain.status}")


@check(
    "services.imex_nodes",
    severity="warn",
    action="reconfigure",
    vendor="nvidia",
    reads=("imex.json",),
    follows=(*SIDE, "services.imex_own", "services.imex_domain"),
    applies=_joined,
    otherwise=OTHERWISE,
    lock=LOCK,
    without_lock=WITHOUT_LOCK,
    says="Nodes of the IMEX domain are not ready, or not connected: jobs with them fail. Look at those nodes first.",
)
def test_nodes(node: Facts, expected: Expected) -> None:
    domain = _domain(node, expected)
    wrong = [f"{host} is {state}" for host, state in domain.nodes.items() if state != "READY"]
    wrong += [f"{first} to {other}: {state}" for first, other, state in domain.broken]
    saw(expected=f"{len(domain.nodes)} nodes ready and connected", actual=wrong[:8] or "all")
    if wrong:
        fail(few(wrong, 4))
