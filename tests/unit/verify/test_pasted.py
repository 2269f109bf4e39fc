"""What people paste of a machine whose type they do not name: each text with the checks that have to name its fault.
No other check may condemn it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from provisioner.cli.main import main

FOLDER = Path(__file__).parent / "pasted"
PASTED = sorted(FOLDER.glob("*.yaml"))
MIXED = [
    ("smi-h100", "xid149"), ("xid149", "smi-h100"), ("smi-h100", "ibstatus-down"), ("aer-corr", "gpuburn-xid79"),
    ("gpuburn-xid79", "edac-dunkel"), ("nccl-426", "fm-nothing"), ("remap-pending", "xid13-109"),
    ("nvlink-inactive", "gpud-xid119"), ("topo-h100", "lockup-panic"), ("mcelog-uncorrected", "amd-vce"),
    ("smi-rows", "mcelog-uncorrected"), ("ibstat-spare", "sxid-fatal12028"),
]  # fmt: skip
"""Two tools' outputs in one file, without a prompt between them."""


@pytest.mark.parametrize("case", PASTED, ids=lambda path: path.stem)
def test_a_pasted_text_names_its_fault_and_condemns_nothing_else(
    case: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = yaml.safe_load(case.read_text())
    assert expected["source"]
    assert failures(case.with_suffix(".txt").read_bytes(), tmp_path, capsys) == expected["fails"]


def test_the_failed_test_of_dcgm_gives_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not the remark of one that passed."""
    with pytest.raises(SystemExit):
        main(["verify", "--bundle", str(FOLDER / "dcgm-cuinit-802.txt")])
    assert "failed: GPU Memory (GPU 0 Error using CUDA API cuInit" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("first", "second"), MIXED)
def test_the_faults_of_both_are_named(
    first: str, second: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [(FOLDER / f"{name}.txt").read_bytes().rstrip(b"\n") for name in (first, second)]
    expected = {}
    for name in (first, second):
        expected |= yaml.safe_load((FOLDER / f"{name}.yaml").read_text())["fails"]
    assert failures(b"\n".join(texts) + b"\n", tmp_path, capsys) == expected


def test_a_program_that_writes_a_kernels_words_into_the_journal_condemns_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forged = (
        b"Sep 19 16:18:02 n1 kernel: [68183.615790] usb 1-1: new device\n"
        b"Sep 19 16:18:03 n1 logger[12]: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
        b"Sep 19 16:18:03 n1 mcelog-test[12]: Uncorrected error\n"
        b"[68183.700000] n1 logger[12]: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
    )
    assert failures(forged, tmp_path, capsys) == {}


def failures(text: bytes, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Checks that fail, with their severity."""
    pasted = folder / "pasted.txt"
    pasted.write_bytes(text)
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--bundle", str(pasted), "--json"])
    assert ended.value.code == 1
    (node,) = json.loads(capsys.readouterr().out)["nodes"]
    assert node["ok"] is False
    return {
        id: check["severity"]
        for check in node["checks"]
        if check["status"] in ("fail", "note")
        for id in check.get("parts", [check["id"]])
    }
