"""What cannot be read of one GPU, port or disk hides no fault of another: the check fails for the one that told, and is
unknown where the others are well."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.pytest_runner import Case
from tests.support.healthy_bundle import bundle, edit, expected, healthy
from tests.support.healthy_fio import fio_json, part
from tests.unit.verify.test_gpu_checks import DGX, P4D, Texts
from tests.unit.verify.test_quick_bundles import judged

Change = Callable[[Texts], None]


def gpu(path: str, fault: str) -> tuple[Change, Change]:
    """One value: not there on GPU 0, wrong on GPU 2."""

    def change(index: int, value: str) -> Change:
        def apply(texts: Texts) -> None:
            texts["nvidia-smi.xml"] = edit(str(texts["nvidia-smi.xml"]), index, **{path: value})

        return apply

    return change(0, "N/A"), change(2, fault)


def load(key: str, fault: float) -> tuple[Change, Change]:
    def change(index: int, value: float | None) -> Change:
        def apply(texts: Texts) -> None:
            document = json.loads(str(texts["load.json"]))
            head, _, result = document["output"].rpartition(" result ")
            measured = json.loads(result)
            measured["gpus"][index][key] = value
            document["output"] = f"{head} result {json.dumps(measured)}"
            texts["load.json"] = json.dumps(document)

        return apply

    return change(0, None), change(2, fault)


def port(key: str, none: object, fault: object) -> tuple[Change, Change]:
    def change(index: int, value: object) -> Change:
        def apply(texts: Texts) -> None:
            document: dict[str, Any] = json.loads(str(texts["rdma.json"]))
            [*document["devices"].values()][index]["ports"]["1"][key] = value
            texts["rdma.json"] = json.dumps(document)

        return apply

    return change(0, none), change(2, fault)


def ib(old: str, none: str, fault: str) -> tuple[Change, Change]:
    def change(index: int, new: str) -> Change:
        def apply(texts: Texts) -> None:
            cards = re.split(r"(?m)^(?=CA ')", str(texts["ibstat.txt"]))
            assert old in cards[index + 1]
            cards[index + 1] = cards[index + 1].replace(old, new)
            texts["ibstat.txt"] = "".join(cards)

        return apply

    return change(0, none), change(2, fault)


def disks() -> tuple[Change, Change]:
    """fio gave nothing of small reads; it read slowly."""

    def change(phase: str, value: dict[str, Any]) -> Change:
        def apply(texts: Texts) -> None:
            document = json.loads(str(texts.get("fio.json") or fio_json()))
            document["phases"][phase] = value
            texts["fio.json"] = json.dumps(document)

        return apply

    return change("random", part("random", iops=None)), change("read", part("read", 1e8))


ECC = "ecc_errors__volatile__dram_uncorrectable"
CASES: dict[str, tuple[str, str, tuple[Change, Change], str]] = {
    "gpu.ecc": (P4D, "GPU 2: 3 uncorrectable", (gpu("ecc_mode__current_ecc", "")[0], gpu(ECC, "3")[1]), "ECC mode"),
    "gpu.memory": (P4D, "GPU 2 has 20480 MiB", gpu("fb_memory_usage__total", "20480 MiB"), "memory size"),
    "gpu.pcie": (P4D, "GPU 2 is at x4", gpu("pci__pci_gpu_link_info__link_widths__current_link_width", "4x"), "width"),
    "gpu.minor_numbers": (P4D, "1, 3, 3", gpu("minor_number", "3"), "GPU 0: no minor number"),
    "load.compute": (P4D, "GPU 2: 560", load("tflops_last", 560.0), "tflops_last of GPU 0"),
    "load.memory_rate": (P4D, "GPU 2: 100", load("memory_gbps", 100.0), "memory_gbps of GPU 0"),
    "load.sustained": (P4D, "GPU 2: 622", load("tflops", 6000.0), "tflops of GPU 0"),
    "load.host_copy": (P4D, "GPU 2: 1", load("h2d_gbps", 1.0), "h2d_gbps of GPU 0"),
    "load.peer_copy": (P4D, "GPU 2: 5", load("peer_gbps", 5.0), "peer_gbps of GPU 0"),
    "load.results": (P4D, "other bits on GPU 2", load("digest", -78), "GPU 0 gave no product"),
    "rdma.pkey": (DGX, "mlx5_", port("pkeys", [], ["0x7fff"]), "no partition keys for mlx5_"),
    "storage.bandwidth": (P4D, "read", disks(), "fio gave no scratch_iops"),
    "ib.rate": (DGX, "runs at 100", ib("Rate: 400", "Rate: ?", "Rate: 100"), "no rate reported"),
}
"""Check → machine, what it says of the fault, (what cannot be read, the fault), what it says of the first alone."""


@pytest.mark.parametrize("id", CASES)
def test_what_cannot_be_read_of_one_hides_no_fault_of_another(id: str) -> None:
    machine, fault_text, (unread, fault), silent = CASES[id]
    texts = healthy(machine)
    want = replace(expected(machine), scratch="/scratch", scratch_gb=8000.0)
    unread(texts)
    check = judged(Case(bundle(texts), want), "standard")[id]
    assert (check.status, silent in check.message) == ("unknown", True), check
    fault(texts)
    check = judged(Case(bundle(texts), want), "standard")[id]
    assert (check.status, fault_text in check.message) == ("fail", True), check


def test_all_faults_of_a_gpus_memory_are_named() -> None:
    texts = healthy(P4D)
    for index, values in ((1, {"ecc_mode__current_ecc": "Disabled"}), (2, {ECC: "3"}), (5, {ECC: "4"})):
        texts["nvidia-smi.xml"] = edit(str(texts["nvidia-smi.xml"]), index, **values)
    check = judged(Case(bundle(texts), expected(P4D)), "quick")["gpu.ecc"]
    assert (check.status, check.action) == ("fail", "reset")
    assert all(phrase in check.message for phrase in ("enabled on GPU 1", "GPU 2: 3", "GPU 5: 4"))


@pytest.mark.parametrize("id", ["gpu.memory", "gpu.ecc", "gpu.remap", "gpu.persistence"])
def test_a_list_of_gpus_accuses_none_of_what_it_does_not_tell(id: str) -> None:
    listed = "".join(
        f"GPU {n}: NVIDIA A100-SXM4-40GB (UUID: GPU-0000000{n}-0000-0000-0000-000000000000)\n" for n in range(8)
    )
    checks = judged(Case(Bundle({"nvidia-smi.xml": Output(listed)}), replace(expected(P4D), persistence=True)), "quick")
    assert (checks[id].status, checks[id].action) == ("unknown", "none")
    assert "known from `nvidia-smi -L` alone, which does not tell" in checks[id].message
