"""IMEX: whether the nodes of an NVLink domain reach each other's GPU memory."""

from __future__ import annotations

from provisioner.text import few
from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.expectations import IMEX, Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.imex import Domain

SIDE = ("services.imex", "driver.responds", "driver.version")
OTHERWISE = "this machine's NVLinks do not leave the node"


def _joined(expected: Expected) -> bool:
    return expected.nvlink_across and (expected.units is None or IMEX in expected.units)


def _domain(node: Facts, expected: Expected) -> Domain:
    source = node.source("imex.json")
    if source.state == "absent":
        skip("older bundles do not have imex.json")
    if node.imex is None and expected.units is None:
        skip("no lock, and no IMEX of the system's answers: it may run in a pod")
    return node.imex if node.imex is not None else unknown(source.reason, "imex.json")


@check(
    "services.imex_domain",
    severity="fatal",
    documented="NVIDIA IMEX guide, nvidia-imex-ctl; NCCL's own word where it fails: check nvidia-imex-ctl -N",
    action="reconfigure",
    vendor="nvidia",
    reads=("imex.json",),
    follows=SIDE,
    applies=_joined,
    otherwise=OTHERWISE,
    lock="only it says that IMEX runs as a unit of the system's, and has to answer",
    without_lock="what its daemon says, where it answers",
    says="The IMEX domain is down as this node sees it: NCCL ends with an error between its nodes. Look at the "
    "daemons' versions and at /etc/nvidia-imex/nodes_config.cfg, which must be alike.",
)
def test_domain(node: Facts, expected: Expected) -> None:
    domain = _domain(node, expected)
    saw(expected="UP", actual=domain.status)
    if domain.status not in ("UP", "DEGRADED"):
        fail(f"the domain is {domain.status}")


# A warning: it is another node that is missing, and that node's own checks condemn it.
@check(
    "services.imex_nodes",
    severity="warn",
    action="reconfigure",
    vendor="nvidia",
    reads=("imex.json",),
    follows=(*SIDE, "services.imex_domain"),
    applies=_joined,
    otherwise=OTHERWISE,
    lock="only it says that IMEX runs as a unit of the system's, and has to answer",
    without_lock="what its daemon says, where it answers",
    says="Nodes of the IMEX domain are not ready, or not connected: jobs with them fail. Look at those nodes first.",
)
def test_nodes(node: Facts, expected: Expected) -> None:
    domain = _domain(node, expected)
    wrong = [f"{host} is {state}" for host, state in domain.nodes.items() if state != "READY"]
    wrong += [f"{one} to {other}: {state}" for one, other, state in domain.broken]
    saw(expected=f"{len(domain.nodes)} nodes ready and connected", actual=wrong[:8] or "all")
    if wrong:
        fail(few(wrong, 4))
