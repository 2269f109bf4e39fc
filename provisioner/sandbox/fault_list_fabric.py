"""Faults between nodes, which show when several of them work together: rows like those of fault_list.py."""

from __future__ import annotations

from typing import Any

from provisioner.sandbox.fault_list import Change, Fault, Json

NEEDS = "an RDMA network between its nodes, and NVIDIA GPUs"


def _joined(machine: Json) -> bool:
    return bool(machine["between"]["rdma"]) and machine["vendor"] == "nvidia"


def _between(**values: Any) -> Change:
    def change(machine: Json, _gpu: int) -> None:
        machine["between"] = {**machine["between"], **values}

    return change


def _slow(machine: Json, _gpu: int) -> None:
    machine["between"] = {**machine["between"], "gbps": machine["between"]["gbps"] * 0.45}


def _cable(how: str) -> Change:
    """To the first node of the group; of the first one, to the second."""

    def change(machine: Json, _gpu: int) -> None:
        group, _, number = machine["node"].rpartition("-")
        other = f"{group}-{1 if number == '0' else 0}"
        machine["between"] = {**machine["between"], "paths": {other: how}}

    return change


def _slow_card(machine: Json, _gpu: int) -> None:
    machine["nics"][-1]["speed"] = 0.45


FAULTS: tuple[Fault, ...] = (
    Fault("ib-card-slow", "the last network card moves less than half of its rate, though its link is at full rate",
          "rdma.loopback", lambda m: bool(m["nics"]), "InfiniBand or RoCE", _slow_card),
    Fault("fabric-dead", "a network card works alone and fails once nodes exchange data", "fabric.pairs", _joined,
          NEEDS, _between(how="fails")),
    Fault("fabric-slow", "one network card drags all traffic between nodes to less than half", "fabric.pairs", _joined,
          NEEDS, _slow),
    Fault("fabric-straggler", "small messages take ten times as long with one node", "fleet.latency", _joined, NEEDS,
          _between(latency_us=310)),
    Fault("fabric-sockets", "NCCL does not find its network plugin and goes over sockets", "fabric.transport", _joined,
          NEEDS, _between(way="NET/Socket")),
    Fault("cable-dead", "the path to the group's first node (of that: to the second) is broken", "fabric.path", _joined,
          NEEDS, _cable("fails")),
    Fault("cable-slow", "the path to the group's first node (of that: to the second) is slow", "fabric.path", _joined,
          NEEDS, _cable("slow")),
)  # fmt: skip
"""Found at level stress, in groups of three nodes and more; a path is told of both its ends."""
