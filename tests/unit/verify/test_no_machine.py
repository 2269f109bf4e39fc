"""Outputs of a machine whose type nobody named: faults are named, no healthy machine is condemned, none is proven."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from provisioner.catalog import load
from provisioner.cli.main import main
from provisioner.verify import check_runner
from provisioner.verify.basis import watched
from provisioner.verify.bundle import Bundle
from provisioner.verify.check import NEEDS_MACHINE, Check, Failed, Skipped, Unknown
from provisioner.verify.expectations import expect_no_machine
from provisioner.verify.facts import read

CAPTURES = Path(__file__).parent / "captures"
FAULTS = {
    "dmesg/gpu-fallen-off-bus-single-line-docs.txt": "gpu.xid",
    "dmesg/gpu-fallen-off-three-lines.txt": "gpu.xid",
    "dmesg/h100-xid119-gsp-timeout.txt": "gpu.xid",
    "dmesg/h100-xid79-with-nvswitch-sxid20034.txt": "gpu.xid",
    "dmesg/gb200-xid149-154-nvlink5.txt": "gpu.xid",
    "dmesg/fsp-timed-out-h100.txt": "log.rm_init",
    "dmesg/reset-required-without-xid.txt": "log.gsp_timeout",
    "dcgmi_diag/table-r2-one-gpu-fails.txt": "dcgm.diag",
    "mdstat/raid5-degraded.txt": "storage.raid",
    "nccl_tests/mock-out-of-bounds-failed.txt": "nccl.bandwidth",
    "nccl_tests/h100-cuda-system-not-yet-initialized.txt": "nccl.bandwidth",
    "nvidia_smi/csv-h100-requires-reset.csv": "gpu.reset_required",
    "nvidia_smi/csv-rtx3080-one-lost.csv": "gpu.count",
    "nvidia_smi/table-a40-8gpu-525-lost.txt": "gpu.count",
    "nvidia_smi/table-v100-8gpu-460.txt": "gpu.inforom",
    "nvidia_smi/gb200-gpu-lost-580-mock.xml": "gpu.count",
    "nvidia_smi/gb200-ecc-remap-failure-580-mock.xml": "gpu.remap",
    "nvidia_smi/gb200-fabric-route-unhealthy-580-mock.xml": "gpu.fabric_health",
}  # fmt: skip
HEALTHY = (
    "nvidia_smi/a100-sxm-40gb-1gpu-570.xml",
    "nvidia_smi/b200-8gpu-580.xml",
    "nvidia_smi/gtx1660ti-418-no-doctype.xml",
    "nvidia_smi/h100-8gpu-570-pcie-gen4-vm.xml",
    "nvidia_smi/rtx4090-535-v12.xml",
    "nvlink/a100-8gpu-ok.txt",
    "nvlink/v100-7gpu-inactive.txt",
    "ibstat/h100-ib-3-eth-down.txt",
    "topo/p100-3gpu-mp.txt",
    "nccl_tests/a100-8gpu-1node.txt",
    "nccl_tests/roce-k8s-slow.txt",
    "systemd/h100-log.txt",
    "lsblk/table-proxmox.txt",
    "rocm_smi/mi100-4gpu-rocm602.json",
)


def judged(capture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any], str]:
    """Exit status, node and stderr of `gpuprov verify --bundle`, of outputs that do not say which machine it is."""
    kind, _, name = capture.partition("/")
    pasted = tmp_path / name
    pasted.write_bytes((CAPTURES / kind / name).read_bytes())
    with pytest.raises(SystemExit) as ended:
        main(["verify", "--bundle", str(pasted), "--json"])
    out, err = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    node: dict[str, Any] = json.loads(out)["nodes"][0]
    return code, node, err


@pytest.mark.parametrize("capture", FAULTS)
def test_a_fault_is_named(capture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, node, _ = judged(capture, tmp_path, capsys)
    assert code == 1
    failed = {check["id"] for check in node["checks"] if check["status"] == "fail"}
    assert FAULTS[capture] in failed


@pytest.mark.parametrize("capture", HEALTHY)
def test_no_healthy_machine_is_condemned_and_none_is_proven(
    capture: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, node, output = judged(capture, tmp_path, capsys)
    assert (code, node["ok"]) == (1, False)
    fatal = [(c["id"], c["message"]) for c in node["checks"] if c["status"] == "fail" and c["severity"] == "fatal"]
    assert fatal == []
    if not node["machine"]:
        assert "judged is what needs none" in output
        assert any(c["message"] == NEEDS_MACHINE for c in node["checks"])


@pytest.mark.parametrize(
    ("lines", "status", "message"),
    [
        (None, "pass", ""),
        (12, "unknown", "11 links of GPU 0 are listed, it has 18"),
        (2, "unknown", "1 links of GPU 0"),
    ],
)
def test_the_links_of_a_gpu_are_known_by_its_name(
    lines: int | None, status: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What lists fewer was cut: no fault, and no proof."""
    pasted = tmp_path / "nvlink.txt"
    text = (CAPTURES / "nvlink/h100-1gpu-18links.txt").read_text()
    pasted.write_text("\n".join(text.splitlines()[:lines]) + "\n")
    with pytest.raises(SystemExit):
        main(["verify", "--bundle", str(pasted), "--json"])
    out, err = capsys.readouterr()
    (links,) = (check for check in json.loads(out)["nodes"][0]["checks"] if check["id"] == "nvlink.links")
    assert links["status"] == status
    assert message in links["message"]
    assert "GPU: H100-SXM5-80GB, by its name" in err


@pytest.mark.parametrize("field", ["memory_mib", "topology", "least", "mig", "machine"])
def test_what_follows_from_a_machine_is_not_given_to_a_check(field: str) -> None:
    expected = watched(expect_no_machine("nvidia", load()))
    with pytest.raises(Skipped, match="--machine TYPE"):
        getattr(expected, field)
    with pytest.raises(Unknown, match="--machine TYPE"):
        _ = expected.gpu_count
    assert expected.most and expected.xids


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        (None, "skip"),
        (Failed("nvidia-fabricmanager.service is not active"), "skip"),
        (Failed("a fatal SXid", observed=True), "fail"),
        (Unknown("nothing was read"), "skip"),
    ],
)
def test_where_a_machine_decides_whether_a_check_applies_only_what_the_node_shows_counts(
    ends: Exception | None, status: str
) -> None:
    def checked() -> None:
        if ends is not None:
            raise ends

    expected = expect_no_machine("nvidia", load())
    declared = Check("a.check", "fatal", "reset", "what it says", applies=lambda e: e.fabric_manager, otherwise="none")
    node = check_runner.NodeUnderTest("node", read(Bundle()), expected, None)
    assert check_runner.run(checked, declared, node, None).status == status  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("links", "gpus", "status"),
    [
        ("rtx2080s-all-inactive-610.txt", "q-rtx2080s-610.txt", "skip"),
        ("a100-1gpu-all-inactive-azure.txt", "a100-sxm-40gb-1gpu-570.xml", "skip"),
        ("rtx2080s-all-inactive-610.txt", None, "fail"),
        ("v100-7gpu-inactive.txt", None, "fail"),
    ],
)
def test_links_of_the_only_gpu_lead_nowhere(
    links: str, gpus: str | None, status: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GPU alone in its machine has no link up, and no fault: with a second one it might be one."""
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "nvlink.txt").write_text((CAPTURES / "nvlink" / links).read_text())
    if gpus is not None:
        (folder / "nvidia-smi.xml").write_text((CAPTURES / "nvidia_smi" / gpus).read_text())
    with pytest.raises(SystemExit):
        main(["verify", "--bundle", str(folder), "--json"])
    checks = {check["id"]: check for check in json.loads(capsys.readouterr().out)["nodes"][0]["checks"]}
    assert checks["nvlink.links"]["status"] == status
