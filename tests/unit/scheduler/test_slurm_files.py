"""slurm.conf and the rest, from cluster.yaml and the catalogue. Real Slurm reads them in
tests/sandbox/test_slurm.py."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.rundir.fleet import Node
from provisioner.scheduler import slurm_files
from provisioner.spec import load
from provisioner.spec.models import ClusterSpec
from tests.support.healthy_bundle import stack

FILE = """\
name: team
sites: { ohio: { provider: aws, region: us-east-2 } }
scheduler: { slurm: { head: control, max_time: 12h } }
groups:
  control: { machine: m6i.large }
  login: { machine: m6i.xlarge }
  train: { machine: p4d.24xlarge, count: 3 }
  small: { machine: g5.xlarge }
"""
NODES = tuple(
    Node(name, name.rpartition("-")[0], "ohio", machine, f"i-{name}", "", "198.51.100.7", f"10.0.0.{number}")
    for number, (name, machine) in enumerate(
        [("control-0", "m6i.large"), ("login-0", "m6i.xlarge"), ("train-0", "p4d.24xlarge"),
         ("train-1", "p4d.24xlarge"), ("train-2", "p4d.24xlarge"), ("small-0", "g5.xlarge")], 1,
    )
)  # fmt: skip


def spec_of(folder: Path, text: str = FILE) -> ClusterSpec:
    (folder / "cluster.yaml").write_text(text, encoding="utf-8")
    return load(folder / "cluster.yaml")


def lines(text: str, first: str) -> list[dict[str, str]]:
    """Lines that begin with a key, as key → value."""
    rows = [line for line in text.splitlines() if line.startswith(f"{first}=")]
    return [dict(pair.split("=", 1) for pair in row.split()) for row in rows]


def test_nodes_have_their_address_and_a_tenth_less_memory_than_the_machine(tmp_path: Path) -> None:
    text = slurm_files.files(spec_of(tmp_path), NODES, simulated=False)["slurm.conf"]
    nodes = {row["NodeName"]: row for row in lines(text, "NodeName")}
    assert set(nodes) == {"login-0", "train-0", "train-1", "train-2", "small-0"}  # no job runs on the head node
    assert nodes["train-1"] == {
        "NodeName": "train-1", "NodeAddr": "10.0.0.4", "CPUs": "96", "RealMemory": str(int(1152 * 1024 * 0.9)),
        "Gres": "gpu:a100-sxm4-40gb:8",
    }  # fmt: skip
    assert "Gres" not in nodes["login-0"]
    assert "SlurmctldHost=@hostname@(10.0.0.1)" in text
    assert "config_overrides" not in text  # real nodes have what they say, or are drained by Slurm


def test_each_group_is_a_partition_and_the_first_with_gpus_the_default(tmp_path: Path) -> None:
    text = slurm_files.files(spec_of(tmp_path), NODES, simulated=False)["slurm.conf"]
    partitions = {row["PartitionName"]: row for row in lines(text, "PartitionName")}
    assert [(name, row["Default"]) for name, row in partitions.items()] == [
        ("login", "NO"), ("train", "YES"), ("small", "NO")
    ]  # fmt: skip
    train = partitions["train"]
    assert (train["Nodes"], train["MaxTime"], train["DefCpuPerGPU"]) == ("train-[0-2]", "720", "12")
    assert int(train["DefMemPerGPU"]) * 8 <= int(1152 * 1024 * 0.9)  # eight jobs of one GPU fit
    assert "DefMemPerCPU" in partitions["login"]


def test_devices_are_named_and_nothing_is_detected(tmp_path: Path) -> None:
    text = slurm_files.files(spec_of(tmp_path), NODES, simulated=False)["gres.conf"]
    assert "AutoDetect=off" in text  # the distributions build Slurm without NVML
    assert {row["NodeName"]: row["File"] for row in lines(text, "NodeName")} == {
        "train-0": "/dev/nvidia[0-7]", "train-1": "/dev/nvidia[0-7]", "train-2": "/dev/nvidia[0-7]",
        "small-0": "/dev/nvidia0",
    }  # fmt: skip


def test_without_accounting_there_is_no_slurmdbd(tmp_path: Path) -> None:
    with_accounts = slurm_files.files(spec_of(tmp_path), NODES, simulated=False)
    assert "StoragePass" not in with_accounts["slurmdbd.conf"]
    text = FILE.replace("max_time: 12h", "accounting: false")
    without = slurm_files.files(spec_of(tmp_path, text), NODES, simulated=False)
    assert set(without) == {"slurm.conf", "gres.conf", "cgroup.conf"}
    assert "AccountingStorage" not in without["slurm.conf"]
    assert "MaxTime=INFINITE" in without["slurm.conf"]


def test_the_same_nodes_are_the_same_text(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    assert slurm_files.files(spec, NODES, simulated=False) == slurm_files.files(spec, NODES, simulated=False)
    moved = [replace(node, private_address="10.0.9.9") if node.name == "train-0" else node for node in NODES]
    assert slurm_files.files(spec, moved, simulated=False) != slurm_files.files(spec, NODES, simulated=False)


def test_without_a_machine_for_the_head_node_there_are_no_files(tmp_path: Path) -> None:
    variables = slurm_files.variables(spec_of(tmp_path), NODES[1:], simulated=False)["gpuprov_slurm"]
    assert (variables["head"], variables["files"]) == ("", {})


def test_who_drains_what_the_nodes_say_follows_the_quarantine(tmp_path: Path) -> None:
    text = FILE + "quarantine: { share: 30%, most: 3 }\nmonitoring: { health_check: { every: 2m } }\n"
    variables = slurm_files.variables(spec_of(tmp_path, text), NODES, simulated=False)["gpuprov_slurm"]
    assert '\\"share\\": 30, \\"most\\": 3' in variables["watch"]
    assert variables["health"]["seconds"] == 120
    manual = spec_of(tmp_path, FILE + "quarantine: { automatic: false }\n")
    assert slurm_files.variables(manual, NODES, simulated=False)["gpuprov_slurm"]["watch"] is None


def test_a_thousand_nodes_are_a_short_line(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, FILE.replace("count: 3", "count: 1000"))
    nodes = [replace(NODES[2], name=f"train-{number}", id=f"i-{number}") for number in range(1000)]
    text = slurm_files.files(spec, [NODES[0], *nodes], simulated=False)["slurm.conf"]
    assert "Nodes=train-[0-999] " in text
    assert max(map(len, text.splitlines())) < 200


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["a-3", "a-1", "a-2"], "a-[1-3]"),
        (["a-0"], "a-[0]"),
        (["dgx01", "dgx02"], "dgx01,dgx02"),  # with zeros before the number they stay as they are
        (["7"], "7"),
        (["a1b", "a-1"], "a-[1],a1b"),
    ],
)
def test_names_are_folded(names: list[str], text: str) -> None:
    assert slurm_files.folded(names) == text


def test_every_name_of_a_machine_is_a_word_of_slurm_conf(tmp_path: Path) -> None:
    """A GPU type with a space or a comma would be another key."""
    for machine in spec_of(tmp_path).catalog.machines():
        if machine.gpu_count:
            assert re.fullmatch(r"[a-z0-9-]+", slurm_files.gpu_type(machine)), machine.name
        assert slurm_files.memory_mib(machine) > 0


def test_a_cluster_of_two_distributions_is_refused(tmp_path: Path) -> None:
    spec = spec_of(tmp_path)
    stacks = {name: stack("p4d.24xlarge").model_copy(update={"os": "debian-12"}) for name in spec.groups}
    slurm_files.refuse_stacks(spec, stacks)
    with pytest.raises(GpuprovError, match=r"group train has ubuntu-24\.04, and the head node of Slurm debian-12"):
        slurm_files.refuse_stacks(spec, stacks | {"train": stacks["train"].model_copy(update={"os": "ubuntu-24.04"})})
    old = {name: locked.model_copy(update={"os": "ubuntu-22.04"}) for name, locked in stacks.items()}
    with pytest.raises(GpuprovError, match=r"does not work on ubuntu-22\.04: its Slurm 21.08 does not know cgroup v2"):
        slurm_files.refuse_stacks(spec, old)
