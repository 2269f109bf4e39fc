"""A value of the catalogue that no source backs condemns no node: for every machine type, each unverified key of its
row is contradicted alone by a node that is healthy otherwise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import pytest
from pydantic import BaseModel

from provisioner.catalog import load
from provisioner.catalog.models import Gpu, Machine
from provisioner.spec.models import Group
from provisioner.verify import health
from provisioner.verify.basis import watched
from provisioner.verify.check import Check, Failed, Unknown, check, fail, seen, unknown
from provisioner.verify.check_runner import NodeUnderTest, run
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import read
from provisioner.verify.peers import Peers
from provisioner.verify.pytest_runner import Case
from provisioner.verify.row_basis import FROM_ROW
from tests.support.healthy_bundle import bundle, edit, expected, healthy
from tests.support.judging import judge

ELSEWHERE = {
    "machine", "vendor", "mig", "persistence", "system", "driver", "cuda", "nccl", "dcgm_exporter", "packages", "held",
    "kernel", "brought", "images", "units", "kernel_modules", "bare_metal", "scratch", "shared", "tuned",
    "monitoring_units",
    "image", "efa_huge_mib_per_cpu", "maintenance", "repositories", "repo_keys", "sources", "simulated", "most", "xids",
    "min_busbw_gbps", "least", "published", "level", "diag", "bmc", "unknown", "unverified", "limits", "basis",
    "gpu_nvlinks", "known_bad", "bulletins",
}  # fmt: skip
"""Fields that cluster.yaml, the lock or the tables of limits give, or gpus.yaml where no machine type is named; a limit
has its own basis (test_evidence.py)."""

ROWS = [*load().listed.values(), *(load().machine(name) for name in ("g6.24xlarge", "ecs.gn8v-2x.8xlarge"))]
"""Those that somebody has looked at, and two sizes of clouds: with what their lists say, and without a network."""
EXPECTED_KEYS = {key for keys in FROM_ROW.values() for key in keys}


def test_every_field_says_where_it_comes_from() -> None:
    names = {field.name for field in fields(Expected)}
    assert names == ELSEWHERE | set(FROM_ROW)
    assert not ELSEWHERE & set(FROM_ROW)
    for key in EXPECTED_KEYS:
        model, name = (Gpu, key[4:]) if key.startswith("gpu:") else (Machine, key)
        assert has_key(model, name), key


def has_key(model: type[BaseModel], key: str) -> bool:
    first, _, second = key.partition(".")
    if first not in model.model_fields:
        return False
    inner = model.model_fields[first].annotation
    return not second or (isinstance(inner, type) and issubclass(inner, BaseModel) and second in inner.model_fields)


@pytest.mark.parametrize("row", [*ROWS, *load().gpus()], ids=lambda row: getattr(row, "name", None) or row.model)
def test_a_basis_names_keys_of_its_row(row: Machine | Gpu) -> None:
    measured, unverified = set(row.basis.measured), set(row.basis.unverified)
    assert not measured & unverified
    for key in measured | unverified:
        assert has_key(type(row), key), key
    for key in {key.split(".")[0] for key in measured} & unverified:
        pytest.fail(f"{key} is unverified and measured")


def contradicted(row: Machine, key: str) -> Iterator[Machine]:
    """The row with another value of that key, or of each key of that mapping; nothing where nothing follows from it."""
    first, _, second = key.partition(".")
    value = getattr(row, first)
    if isinstance(value, BaseModel) and not second:
        for name in type(value).model_fields:
            yield from contradicted(row, f"{first}.{name}")
        if first == "nvlink":
            none = {
                "generation": None,
                "links_per_gpu": 0,
                "gbps_per_link": 0.0,
                "nvswitch_count": 0,
                "topology": "none",
            }
            cells = {"topo_peer_cell": "SYS", "topology": None} if "topo_peer_cell" in row.basis.unverified else {}
            yield row.model_copy(update={"nvlink": value.model_copy(update=none), **cells})
        return
    if key not in EXPECTED_KEYS:
        return
    other = OTHERS[key](row)
    if second:
        other = value.model_copy(update={second: other})
    yield row.model_copy(update={first: other} | ({"topology": None} if first == "topo_peer_cell" else {}))


OTHERS: dict[str, Any] = {
    "gpu_model": lambda row: "L4" if row.gpu_model != "L4" else "T4",
    "gpu_memory_mib": lambda row: row.gpu_memory_mib // 2,
    "nvlink.generation": lambda row: 3 if row.nvlink.generation != 3 else 4,
    "nvlink.links_per_gpu": lambda row: row.nvlink.links_per_gpu // 2,
    "nvlink.gbps_per_link": lambda row: row.nvlink.gbps_per_link / 2,
    "nvlink.nvswitch_count": lambda row: 0,
    "nvlink.topology": lambda row: "mesh" if row.nvlink.topology != "mesh" else "bridge",
    "topo_peer_cell": lambda row: "NV3" if row.topo_peer_cell == "SYS" else "SYS",
    "fabric_manager_required": lambda row: False,
    "network.kind": lambda row: "ethernet",
    "network.ports": lambda row: row.network.ports // 2,
    "network.rate_gbps": lambda row: row.network.rate_gbps / 2,
    "rdma_devices": lambda row: tuple(f"other{i}" for i in range(len(row.rdma_devices))),
    "rdma_pci": lambda row: tuple(f"0000:f{i:x}:00.0" for i in range(len(row.rdma_pci))),
    "rails": lambda row: not row.rails,
    "numa_nodes": lambda row: (row.numa_nodes or 1) + 1,
    "memory_gib": lambda row: row.memory_gib / 2,
    "vcpus": lambda row: max(1, row.vcpus // 2),
    "local_nvme.count": lambda row: row.local_nvme.count // 2,
    "local_nvme.size_gb": lambda row: row.local_nvme.size_gb / 2,
    "pcie_host_link": lambda row: "gen2x16",
}


@contextmanager
def catalogued(row: Machine) -> Iterator[None]:
    """The catalogue with another row of that name."""
    tables: list[dict[str, Machine]] = [load().listed, load()._machines]  # type: ignore[list-item]
    original = load().machine(row.name)
    for rows in tables:
        if row.name in rows:
            rows[row.name] = row
    try:
        yield
    finally:
        for rows in tables:
            if row.name in rows:
                rows[row.name] = original


def node_of(row: Machine) -> dict[str, Any]:
    """What a healthy node of such a row shows; it has the packages that the lock of the real row names."""
    locked = healthy(row.name)["packages.txt"], healthy(row.name)["holds.txt"]
    with catalogued(row):
        return {**healthy(row.name), "packages.txt": locked[0], "holds.txt": locked[1]}


def condemning(row: Machine, names: dict[str, Machine]) -> list[str]:
    want = replace(expected(row.name, "stress"), level="stress")
    judged = judge({name: Case(bundle(node_of(node)), want) for name, node in names.items()})
    return [
        f"{name}: {check_result.id} {check_result.status}: {check_result.message}"
        for name, verdict in judged.items()
        for check_result in verdict.checks
        if check_result.condemns
    ]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_node_that_contradicts_an_unverified_key_is_not_condemned(row: Machine) -> None:
    nodes = {"as the row says": row}
    for key in row.basis.unverified:
        nodes |= {f"{key} {number}": other for number, other in enumerate(contradicted(row, key))}
    assert condemning(row, nodes) == []


def test_a_node_that_contradicts_a_documented_key_is_condemned() -> None:
    """What would go unnoticed if every value were taken for a guess."""
    row = load().machine("p4d.24xlarge")
    keys = ("gpu_model", "gpu_memory_mib", "nvlink.links_per_gpu", "nvlink.nvswitch_count", "topo_peer_cell", "vcpus",
            "memory_gib", "network.ports", "local_nvme.count")  # fmt: skip
    assert not set(keys) & set(row.basis.unverified)
    for key in keys:
        (other,) = contradicted(row, key)
        assert condemning(row, {key: other}), key


def test_what_a_node_shows_by_itself_condemns_it_whatever_is_doubted() -> None:
    """A GPU of which nobody says the model, in a virtual machine of which nobody says the links."""
    name = "ecs.gn8v-8x.48xlarge"
    texts, want = healthy(name), expected(name)
    assert {"gpu_model", "ecc", "nvlinks_per_gpu", "fabric_manager"} <= {
        k for k, v in want.basis.items() if v == "unverified"
    }
    smi = str(texts["nvidia-smi.xml"])
    xid = (
        "[ 4711.000000] NVRM: Xid (PCI:0000:04:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    )
    cases = {
        "gpu.ecc": texts | {"nvidia-smi.xml": edit(smi, 3, ecc_errors__volatile__dram_uncorrectable="1")},
        "gpu.remap": texts | {"nvidia-smi.xml": edit(smi, 3, remapped_rows__remapped_row_failure="Yes")},
        "gpu.xid": texts | {"dmesg.txt": f"{texts['dmesg.txt']}{xid}"},
    }
    judged = judge({failing: Case(bundle(node), want) for failing, node in cases.items()})
    for failing, verdict in judged.items():
        assert failing in {
            check_result.id
            for check_result in verdict.checks
            if check_result.condemns and check_result.status == "fail"
        }, failing


@check(
    "own.probe", severity="fatal", action="replace", says="a check of this test", applies=lambda e: e.network != "none"
)
def reads_then_fails(expected: Expected) -> None:
    if expected.nvswitches < 99:
        fail("too few")


@check("own.observed", severity="fatal", action="replace", says="a check of this test")
def sees_and_fails(expected: Expected) -> None:
    fail(f"seen beside {expected.nvswitches}", observed=True)


@check("own.unknown", severity="fatal", action="replace", says="a check of this test", applies=lambda e: e.switched)
def cannot_say(expected: Expected) -> None:
    unknown(f"no answer, {expected.nvswitches}")


def outcome_of(function: Any, unverified: tuple[str, ...]) -> tuple[str, str]:
    declared: Check = function.__check__
    plain = expected("dgx-h100")
    want = replace(plain, basis=dict.fromkeys(unverified, "unverified"))
    node = NodeUnderTest("n", read(bundle(healthy("dgx-h100"))), want, None)
    result = health.result(declared, run(function, declared, node, Peers({"n": node.facts})))
    return result.severity, result.message


@pytest.mark.parametrize(
    ("function", "unverified", "severity", "message"),
    [
        (reads_then_fails, (), "fatal", "too few"),
        (reads_then_fails, ("vcpus",), "fatal", "too few"),
        (reads_then_fails, ("nvswitches",), "warn", "too few (unverified: nvswitches)"),
        (reads_then_fails, ("network",), "warn", "too few (unverified: network)"),
        (sees_and_fails, ("nvswitches",), "fatal", "seen beside 4"),
        (cannot_say, ("nvswitches",), "fatal", "no answer, 4"),
        (cannot_say, ("switched",), "warn", "no answer, 4 (unverified: switched)"),
    ],
)
def test_what_a_check_has_read_decides(function: Any, unverified: tuple[str, ...], severity: str, message: str) -> None:
    assert outcome_of(function, unverified) == (severity, message)


def test_what_one_check_has_read_is_not_the_next_ones() -> None:
    assert outcome_of(reads_then_fails, ("nvswitches",))[0] == "warn"
    assert outcome_of(reads_then_fails, ())[0] == "fatal"


def test_a_value_that_nobody_doubts_costs_no_watching() -> None:
    sure = replace(expected("p4d.24xlarge"), basis={"vcpus": "documented"})
    assert watched(sure) is sure
    seen.begin()
    doubted = watched(replace(sure, basis={"vcpus": "unverified"}))
    assert (doubted.vcpus, doubted.gpu_count, seen.unverified) == (sure.vcpus, 8, {"vcpus"})
    with pytest.raises(Failed):
        fail("x")
    with pytest.raises(Unknown):
        unknown("x")


@pytest.mark.parametrize(
    ("machine", "listed", "condemned"),
    [
        ("p3dn.24xlarge", False, False),
        ("p3dn.24xlarge", True, True),
        ("amd-mi250-node", False, False),
        ("dgx-h100", True, True),
    ],
)
def test_scratch_of_disks_that_nobody_has_counted_and_none_shows_only_warns(
    machine: str, listed: bool, condemned: bool
) -> None:
    group = Group.model_validate({"machine": machine, "storage": {"scratch": "/scratch"}})
    texts, want = healthy(machine), expected(machine, "standard", group)
    if not listed:
        system = {
            "name": "sda",
            "type": "disk",
            "size": 64 << 30,
            "rota": False,
            "model": "Virtual Disk",
            "mountpoint": "/",
        }
        texts["lsblk.json"] = json.dumps({"blockdevices": [system]})
    host = json.loads(str(texts["host.json"]))
    host["mounts"] = [row for row in host["mounts"] if "/scratch" not in row]
    texts["host.json"] = json.dumps(host)
    (verdict,) = judge({"a": Case(bundle(texts), want)}).values()
    (scratch_check,) = (check for check in verdict.checks if check.id == "storage.scratch")
    assert (scratch_check.status != "pass", scratch_check.condemns) == (True, condemned), scratch_check.message
