"""Copies of the load program that are compared: what of them arrives wrong is counted. PyTorch is a stand-in here: its
tensors are lists of 64 bits on a named device, and its copies can be broken."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from provisioner.catalog import load
from provisioner.verify.checks.load_copies import action_for
from provisioner.verify.parsers.load import Load, parse
from provisioner.verify.pytest_runner import Case
from tests.support.healthy_bundle import bundle, expected, healthy
from tests.support.healthy_load import ran, result
from tests.support.judging import judge

PROGRAM = Path(__file__).parents[3] / "provisioner/verify/load/program.py"
P4D = "p4d.24xlarge"
WORD = 2**64
Break = Callable[["Tensor", "Tensor"], list[int]]


class Tensor:
    """Words of 64 bits on a device; as bytes after view()."""

    breaks: Break | None = None

    def __init__(self, values: list[int], device: Any) -> None:
        self.values, self.device = values, device

    def __mul__(self, factor: int) -> Tensor:
        return Tensor([value * factor % WORD for value in self.values], self.device)

    def __xor__(self, mask: int) -> Tensor:
        return Tensor([value ^ mask for value in self.values], self.device)

    def __invert__(self) -> Tensor:
        return Tensor([value ^ (WORD - 1) for value in self.values], self.device)

    def __ne__(self, other: object) -> Any:
        assert isinstance(other, Tensor)
        assert self.device == other.device, "compared on the device that the copy is on"
        different = sum(a != b for a, b in zip(self.values, other.values, strict=True))
        return SimpleNamespace(sum=lambda: different)

    __hash__ = None  # type: ignore[assignment]

    def view(self, _dtype: str) -> Tensor:
        return Tensor([byte for value in self.values for byte in value.to_bytes(8, "little")], self.device)

    def numel(self) -> int:
        return len(self.values)

    def copy_(self, source: Tensor) -> None:
        moves = source.device != self.device and Tensor.breaks is not None
        self.values = Tensor.breaks(source, self) if moves and Tensor.breaks else list(source.values)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Any:
    torch: Any = ModuleType("torch")
    torch.distributed = ModuleType("torch.distributed")
    torch.int64, torch.uint8 = "int64", "uint8"
    torch.arange = lambda count, dtype, device: Tensor(list(range(count)), device)
    torch.empty = lambda count, dtype, device="cpu", pin_memory=False: Tensor([0] * count, device)
    torch.device = lambda *name: name
    torch.cuda = SimpleNamespace(device_count=lambda: 4)
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.distributed", torch.distributed)
    spec = importlib.util.spec_from_file_location("load_program_copies", PROGRAM)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(Tensor, "breaks", None)
    return module


def node(local: int = 0, *, cuda: bool = True, processes: int = 4) -> Any:
    device = ("cuda", local) if cuda else "cpu"
    return SimpleNamespace(
        local=local, processes=processes, tiny=True, cuda=cuda, device=device, barrier=lambda: None
    )  # fmt: skip


def breaking(monkeypatch: pytest.MonkeyPatch, source: Any, target: Any, broken: Break) -> None:
    """Copies from that device to that one are broken."""

    def copy(giver: Tensor, taker: Tensor) -> list[int]:
        return broken(giver, taker) if (giver.device, taker.device) == (source, target) else list(giver.values)

    monkeypatch.setattr(Tensor, "breaks", staticmethod(copy))


def test_right_copies_are_counted_as_right_in_every_ordered_pair(program: Any) -> None:
    counts = program.compare_copies(node())
    assert (counts["wrong_h2d"], counts["wrong_d2h"]) == (0, 0)
    assert counts["wrong_peers"] == [[i, j, 0] for i in range(4) for j in range(4) if i != j]
    assert "wrong_peers" not in program.compare_copies(node(1))


def test_without_a_gpu_the_same_goes_through_the_host(program: Any) -> None:
    counts = program.compare_copies(node(cuda=False, processes=2))
    assert counts == {"wrong_h2d": 0, "wrong_d2h": 0, "wrong_peers": [[0, 1, 0], [1, 0, 0]]}


def flipped(source: Tensor, _target: Tensor) -> list[int]:
    return [source.values[0] ^ 0x80, *source.values[1:]]


def dropped(source: Tensor, target: Tensor) -> list[int]:
    """Writes that the IOMMU drops: the target keeps what it had."""
    return target.values


def displaced(source: Tensor, _target: Tensor) -> list[int]:
    return source.values[512:] + source.values[:512]


@pytest.mark.parametrize(
    ("broken", "minimum", "maximum"), [(flipped, 1, 1), (dropped, 1 << 16, 1 << 16), (displaced, 1 << 14, 1 << 16)]
)
def test_a_broken_direction_is_found_and_no_other(
    program: Any, monkeypatch: pytest.MonkeyPatch, broken: Break, minimum: int, maximum: int
) -> None:
    breaking(monkeypatch, ("cuda", 2), ("cuda", 1), broken)
    counts = program.compare_copies(node())
    wrong = [(i, j, count) for i, j, count in counts["wrong_peers"] if count]
    assert [(i, j) for i, j, _ in wrong] == [(2, 1)]
    assert minimum <= wrong[0][2] <= maximum
    assert (counts["wrong_h2d"], counts["wrong_d2h"]) == (0, 0)


@pytest.mark.parametrize(
    ("source", "target", "key"), [("cpu", ("cuda", 3), "wrong_h2d"), (("cuda", 3), "cpu", "wrong_d2h")]
)
def test_copies_with_the_host_are_compared_in_both_directions(
    program: Any, monkeypatch: pytest.MonkeyPatch, source: Any, target: Any, key: str
) -> None:
    breaking(monkeypatch, source, target, dropped)
    counts = program.compare_copies(node(3))
    assert {name: count > 0 for name, count in counts.items()} == {
        "wrong_h2d": key == "wrong_h2d",
        "wrong_d2h": key == "wrong_d2h",
    }


def test_each_run_and_each_pair_has_a_pattern_of_its_own(program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the run or of the pair before would be right with one pattern for all."""
    first: list[int] = []

    def copy(giver: Tensor, taker: Tensor) -> list[int]:
        first.append(giver.values[0])
        return list(giver.values)

    monkeypatch.setattr(Tensor, "breaks", staticmethod(copy))
    program.compare_copies(node())
    program.compare_copies(node())
    assert len(first) == len(set(first)) == 2 * (2 + 12)


def test_a_driver_without_more_peer_mappings_leaves_pairs_uncompared(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(message: str) -> Break:
        def copy(giver: Tensor, taker: Tensor) -> list[int]:
            raise RuntimeError(message)

        return copy

    breaking(monkeypatch, ("cuda", 0), ("cuda", 3), refuse("CUDA error: peer mapping resources exhausted"))
    rows = program.compare_copies(node())["wrong_peers"]
    assert [row for row in rows if row[2] != 0] == [[0, 3, None]]
    breaking(monkeypatch, ("cuda", 0), ("cuda", 3), refuse("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(RuntimeError, match="illegal"):
        program.compare_copies(node())


def loaded(**values: Any) -> Load:
    document = result(load().machine(P4D))
    document["gpus"][0] |= values
    return parse(ran(document))


def status(**values: Any) -> tuple[str, str]:
    document = result(load().machine(P4D))
    for name, value in values.items():
        for gpu in document["gpus"]:
            if value is None:
                gpu.pop(name, None)
            elif name in gpu:
                gpu[name] = value
    judged = judge({"x": Case(bundle(healthy(P4D) | {"load.json": ran(document)}), expected(P4D))})["x"]
    (check,) = [check for check in judged.checks if check.id == "load.copies"]
    return check.status, check.message


def test_what_was_not_compared_is_unknown_and_an_older_program_is_skipped() -> None:
    assert status(wrong_h2d=None) == (
        "unknown", "not compared: GPU 0 and host; GPU 1 and host; GPU 2 and host; and 5 more"
    )  # fmt: skip
    pairs = [[i, j, 0] for i in range(8) for j in range(8) if i != j]
    assert status(wrong_peers=pairs[1:]) == ("unknown", "not compared: GPU 0 to GPU 1")
    assert status(wrong_peers=[[0, 1, None], *pairs[1:]])[0] == "pass"
    assert status(wrong_peers=None)[0] == "unknown"
    assert status(wrong_peers=None, wrong_h2d=None, wrong_d2h=None)[0] == "skip"


def test_one_gpu_in_all_wrong_pairs_is_replaced_and_else_the_machine_is_reconfigured() -> None:
    assert action_for(loaded(wrong_peers=[[0, 3, 7], [3, 1, 9], [1, 2, 0]])) == "replace"
    assert action_for(loaded(wrong_peers=[[0, 3, 7], [3, 1, 9]], wrong_h2d=5)) == "reconfigure"
    assert action_for(loaded(wrong_peers=[[0, 1, 7], [2, 3, 9]])) == "reconfigure"


def test_rows_that_are_none_are_left_out() -> None:
    assert loaded(wrong_peers=[[0, 1, 5], "x", [1], [None, 2, 3], [1, 0, "x"]]).wrong_peers == ((0, 1, 5), (1, 0, None))
    assert loaded(wrong_peers="x").wrong_peers is None
