"""Forms in which people keep outputs: parts, cuts, several in one text, wrapped ones. Each is made of a capture."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from provisioner.verify.facts import Facts, read
from provisioner.verify.parsers import dcgmi_diag, ibstat, nvidia_smi, nvlink
from provisioner.verify.support_bundle import read as read_pasted
from provisioner.verify.support_bundle.wrapped import unwrap
from tests.support.healthy_bundle import capture

UNIT_PART = """
==============NVSMI LOG==============

Timestamp                                 : Mon Jan  6 09:46:11 2025
Driver Version                            : 535.129.03
CUDA Version                              : 12.2
HIC Info                                  : N/A
Attached Units                            : 0
"""
"""What `nvidia-smi -q --unit` prints on a machine without S-class units (nvidia-bug-report.log of branch 535)."""


def facts_of(text: str, folder: Path, name: str = "pasted.txt") -> Facts:
    (folder / name).write_text(text)
    return read(read_pasted(folder / name).bundle)


def test_the_units_of_a_bug_report_do_not_take_the_place_of_its_gpus() -> None:
    query = capture("nvidia_smi/q-h100-8gpu-535.txt")
    assert len(nvidia_smi.parse(query + UNIT_PART).gpus) == 8
    assert nvidia_smi.parse("/usr/bin/nvidia-smi --query\n" + query + UNIT_PART).warnings == ()


def test_rows_of_a_table_without_its_head_count_no_gpus(tmp_path: Path) -> None:
    table = capture("nvidia_smi/table-v100-8gpu-460.txt")
    rows = table[table.index("|   1 ") :]
    facts = facts_of(rows, tmp_path)
    assert facts.smi is not None and len(facts.smi.gpus) == 7
    assert facts.gpus_present is None


def test_a_table_without_its_end_counts_no_gpus(tmp_path: Path) -> None:
    table = capture("nvidia_smi/table-v100-8gpu-460.txt")
    assert facts_of(table, tmp_path, "whole.txt").gpus_present == 8
    cut = table[: table.index("|   5 ")]
    assert facts_of(cut, tmp_path, "cut.txt").gpus_present is None


def test_one_gpu_that_was_asked_for_by_its_number_counts_no_gpus(tmp_path: Path) -> None:
    table = capture("nvidia_smi/table-v100-8gpu-460.txt")
    first_gpu = table[: table.index("|   1 ")] + table[table.index("| Processes:") :]
    assert facts_of(f"root@a:~# nvidia-smi -i 0\n{first_gpu}", tmp_path).gpus_present is None


@pytest.mark.parametrize("indent", ["", "    "])
def test_a_part_of_a_query_without_its_head(indent: str, tmp_path: Path) -> None:
    part = "Remapped Rows\n    Correctable Error : 0\n    Uncorrectable Error : 4\n    Pending : Yes\n"
    facts = facts_of(re.sub("^", indent, part, flags=re.M), tmp_path)
    assert facts.smi is not None and facts.smi.excerpt
    (gpu,) = facts.smi.gpus
    assert (gpu.remap_uncorrectable, gpu.remap_pending) == (4, True)


def test_a_star_says_that_a_mig_mode_is_pending(tmp_path: Path) -> None:
    table = capture("nvidia_smi/table-a40-8gpu-525-lost.txt").replace("N/A |\n+---", "Disabled* |\n+---")
    smi = nvidia_smi.parse(re.sub(r"\|( +)Disabled \|\n", r"|\1Disabled* |\n", table))
    assert "Enabled" in {gpu.mig_pending for gpu in smi.gpus}


def test_columns_come_from_the_command_where_there_is_no_header(tmp_path: Path) -> None:
    facts = facts_of(
        "$ nvidia-smi --query-gpu=index,uuid,name,memory.total --format=csv,noheader\n"
        "0, GPU-004f693d-767b-b215-b4a9-a18af0ffd643, GeForce GTX TITAN X, 12206 MiB\n",
        tmp_path,
    )
    assert facts.smi is not None
    assert [(gpu.model, gpu.memory_mib) for gpu in facts.smi.gpus] == [("GeForce GTX TITAN X", 12206)]


@pytest.mark.parametrize("elided", ["...", "<snip>", "[...]"])
def test_links_that_somebody_left_out_are_not_missing(elided: str) -> None:
    text = capture("nvlink/a100-8gpu-ok.txt")
    first, second = text.index("GPU 0"), text.index("GPU 1")
    half = text[first:second].splitlines()[:6]
    links = nvlink.parse("\n".join([*half, elided, text[second:]]))
    assert (links[0].active, links[0].inactive, links[0].note) == (None, None, "lines are left out")
    assert links[1].active == 12


def test_links_as_dcgmi_lists_them() -> None:
    gpu, switch = "    gpuId 0:\n        U U D X _ _\n", "    physicalId 8:\n        D D\n"
    by_gpu = nvlink.parse(f"|  NvLink Link Status  |\nGPUs:\n{gpu}NvSwitches:\n{switch}")
    assert {index: (links.active, links.inactive) for index, links in by_gpu.items()} == {0: (2, 2)}


def test_a_test_of_dcgm_named_diagnostic_is_no_head_line() -> None:
    table = capture("dcgmi_diag/table-r2-one-gpu-fails.txt")
    row = "| Diagnostic                | Fail - GPU: 3                                  |\n"
    assert "Diagnostic" in dcgmi_diag.parse(f"{table.rstrip()}\n{row}").failed


def test_an_error_in_the_place_of_a_result_is_a_failure() -> None:
    row = "| Memory Bandwidth          | Error: unable to allocate memory on GPU 2      |\n"
    table = capture("dcgmi_diag/table-r1-pass.txt")
    diagnosis = dcgmi_diag.parse(f"{table.rstrip()}\n{row}")
    assert diagnosis.failed == ("Memory Bandwidth",)
    assert "unable to allocate" in diagnosis.messages[0]


def test_a_null_between_the_tests_of_dcgm_condemns_nobody() -> None:
    document = json.loads(capture("dcgmi_diag/diag-r1-json-dcgm3-pass.json"))
    document["DCGM GPU Diagnostic"]["test_categories"][0]["tests"].insert(2, None)
    assert dcgmi_diag.parse(json.dumps(document)).failed == ()


def test_ports_with_their_addresses() -> None:
    text = (
        "link mlx5_0/1 subnet_prefix fe80:0000:0000:0000 lid 13 sm_lid 49 lmc 0 state ACTIVE physical_state LINK_UP\n"
    )
    (port,) = ibstat.parse(text).ports
    assert (port.device, port.up, port.lid, port.sm_lid) == ("mlx5_0", True, 13, 49)


def test_ibv_devinfo_by_its_name_tells_the_ports_too(tmp_path: Path) -> None:
    (tmp_path / "ibv_devinfo.txt").write_text(capture("ibstat/ibv-devinfo-mlx4.txt"))
    facts = read(read_pasted(tmp_path).bundle)
    assert facts.ib is not None and facts.ib.ports


def test_a_gpu_that_fell_off_the_bus_in_several_boots(tmp_path: Path) -> None:
    fell = "Jan 01 00:01:00 node kernel: NVRM: GPU at PCI:0000:91:00: GPU has fallen off the bus.\n"
    boots = [f"-- Boot {number:032x} --\nJan 01 00:00:01 node kernel: Linux version 6.8.0-45\n" for number in range(3)]
    facts = facts_of(boots[0] + fell + boots[1] + fell + boots[2] + "Jan 01 00:00:02 node kernel: eth0: up\n", tmp_path)
    assert facts.before is not None
    assert facts.before.fallen_off == ("0000:91:00",)
    assert facts.before.earlier == ((79, "0000:91:00"),)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda text: "".join(json.dumps({"log": f"{row}\n", "stream": "stdout"}) + "\n" for row in text.splitlines()),
        lambda text: json.dumps({"rc": 0, "stdout": text, "stderr": ""}),
        lambda text: json.dumps([{"host": "a", "stdout": text}]),
        lambda text: "".join(f"2024-05-01T12:00:00.123456789Z stdout F {row}\n" for row in text.splitlines()),
    ],
    ids=["docker", "ansible", "list", "cri"],
)
def test_a_wrapped_output_is_unwrapped(wrap: object, tmp_path: Path) -> None:
    table = capture("nvidia_smi/table-v100-8gpu-460.txt")
    facts = facts_of(wrap(table), tmp_path)  # type: ignore[operator]
    assert facts.smi is not None and len(facts.smi.gpus) == 8


@pytest.mark.parametrize("text", ['{"a": 1}', "[1, 2]", "[" * 5000, '{"stdout": 7}', "no JSON", '{"log": "one line"}'])
def test_what_wraps_nothing_stays_as_it_is(text: str) -> None:
    assert unwrap(text).strip() == ("one line" if "one line" in text else text)
