"""MIG of the simulated nvidia-smi: when the mode takes effect, what fits, what a reboot keeps, how it is shown."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

from provisioner import catalog
from provisioner.catalog import mig
from provisioner.sandbox.node import smi_mig, state
from tests.support.sandbox_node import MakeNode, Node, capture


def modes(node: Node) -> list[str]:
    output = node.says(
        "nvidia-smi", "--query-gpu=mig.mode.current,mig.mode.pending", "--format=csv,noheader", "-i", "0"
    )
    return output.strip().split(", ")


def reboot(node: Node) -> None:
    """What a reboot does to the node's files: /run is empty, and the boot program runs."""
    (node.root / state.MIG).unlink(missing_ok=True)
    smi_mig.at_boot(state.hardware())


@pytest.mark.parametrize(
    ("model", "profile", "count"),
    [("A100-SXM4-40GB", "1g.5gb", 7), ("A100-SXM4-40GB", "1g.10gb", 4), ("A100-SXM4-80GB", "1g.10gb", 7),
     ("H100-SXM5-80GB", "3g.40gb", 2), ("H200-SXM5-141GB", "2g.35gb", 3), ("H200-SXM5-141GB", "4g.71gb", 1),
     ("RTX-PRO-6000-Blackwell-Server", "1g.24gb", 4), ("B200-SXM6-180GB", "7g.180gb", 1)],
)  # fmt: skip
def test_instances_that_fit(model: str, profile: str, count: int) -> None:
    assert mig.instances(catalog.load().gpu(model), profile) == count


def test_no_instances_without_a_profile_and_none_of_an_unknown_one() -> None:
    gpu = catalog.load().gpu("A100-SXM4-40GB")
    assert mig.instances(gpu, None) == 0
    with pytest.raises(KeyError, match=r"has no MIG profile 1g\.18gb"):
        mig.instances(gpu, "1g.18gb")
    with pytest.raises(KeyError, match="has no MIG profiles"):
        mig.full_gpu(catalog.load().gpu("V100-SXM2-16GB"))


def test_as_many_instances_as_fit_and_not_one_more(make_node: MakeNode) -> None:
    node = make_node("p4d.24xlarge")
    node.says("nvidia-smi", "-i", "0", "-mig", "1")
    output = node.says("nvidia-smi", "mig", "-i", "0", "-cgi", ",".join(["1g.5gb"] * 7), "-C")
    assert (
        output.count("Successfully created GPU instance") == output.count("Successfully created compute instance") == 7
    )
    code, output, _ = node.run("nvidia-smi", "mig", "-i", "0", "-cgi", "19", "-C")
    assert code != 0
    assert "Insufficient Resources" in output
    assert "0/7" in node.says("nvidia-smi", "mig", "-lgip", "-i", "0")


def test_listing_has_the_lines_of_the_real_one(make_node: MakeNode) -> None:
    node = make_node("dgx-h100", "590.48.01")
    node.says("nvidia-smi", "-mig", "1", version="590.48.01")
    node.says("nvidia-smi", "mig", "-i", "0", "-cgi", "3g.40gb,2g.20gb,1g.10gb,1g.10gb", "-C", version="590.48.01")

    def lines(text: str) -> list[str]:
        return [re.sub(r"(GPU|MIG)-[0-9a-f-]{36}", r"\1-…", line) for line in text.splitlines()][:5]

    assert lines(node.says("nvidia-smi", "-L", version="590.48.01")) == lines(capture("nvidia-smi-L-h100-mig.txt"))
    table = node.says("nvidia-smi", version="590.48.01")
    real = capture("nvidia-smi-h100-mig-590.txt")
    head = real[real.index("| MIG devices:") : real.index("|==================+==")]
    assert head in table
    assert len(set(map(len, table[table.index("| MIG devices:") :].splitlines())) - {0}) == 1


def test_xml_has_the_elements_of_the_real_one(make_node: MakeNode) -> None:
    node = make_node("Standard_ND96amsr_A100_v4", "535.161.08")
    node.says("nvidia-smi", "-mig", "1", version="535.161.08")
    node.says("nvidia-smi", "mig", "-cgi", "1g.20gb,1g.20gb,1g.20gb,1g.20gb", "-C", version="535.161.08")

    def devices(text: str) -> list[list[tuple[str, str]]]:
        gpu = ElementTree.fromstring(text).find("gpu")
        assert gpu is not None
        return [
            [(item.tag, (item.text or "").strip()) for item in device.iter()]
            for device in gpu.findall("mig_devices/mig_device")
        ]

    ours = devices(node.says("nvidia-smi", "-q", "-x", version="535.161.08"))
    real = devices(capture("a100-mig-535.xml"))
    assert [[tag for tag, _ in device] for device in ours] == [[tag for tag, _ in device] for device in real]
    same = {"index", "gpu_instance_id", "compute_instance_id", "multiprocessor_count", "decoder_count", "total"}
    assert [[pair for pair in d if pair[0] in same][:6] for d in ours] == [
        [pair for pair in d if pair[0] in same][:6] for d in real
    ]


def test_ampere_keeps_the_mode_over_a_reboot_and_no_instances(make_node: MakeNode) -> None:
    node = make_node("p4d.24xlarge")
    node.says("nvidia-smi", "-mig", "1")
    node.says("nvidia-smi", "mig", "-cgi", "3g.20gb,3g.20gb", "-C")
    reboot(node)
    assert modes(node) == ["Enabled", "Enabled"]
    assert "MIG 3g.20gb" not in node.says("nvidia-smi", "-L")


def test_hopper_forgets_the_mode_at_a_reboot(make_node: MakeNode) -> None:
    node = make_node("dgx-h100")
    node.says("nvidia-smi", "-mig", "1")
    assert modes(node) == ["Enabled", "Enabled"]
    reboot(node)
    assert modes(node) == ["Disabled", "Disabled"]


def test_a_gpu_in_use_keeps_its_mode_until_it_is_reset(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node("p4d.24xlarge")
    monkeypatch.setattr(smi_mig.state, "hostengine_runs", lambda: True)
    assert "pending enable state" in node.says("nvidia-smi", "-i", "0", "-mig", "1")
    assert modes(node) == ["Disabled", "Enabled"]
    code, output, _ = node.run("nvidia-smi", "--gpu-reset", "-i", "0")
    assert code != 0
    assert "could not be reset" in output
    monkeypatch.setattr(smi_mig.state, "hostengine_runs", lambda: False)
    node.says("nvidia-smi", "--gpu-reset", "-i", "0")
    assert modes(node) == ["Enabled", "Enabled"]


def test_a_job_is_listed_and_keeps_its_instance(make_node: MakeNode) -> None:
    node = make_node("p4d.24xlarge")
    node.says("nvidia-smi", "-mig", "1")
    node.says("nvidia-smi", "mig", "-cgi", "7g.40gb", "-C")
    (node.root / "proc/77").mkdir(parents=True)
    (node.root / smi_mig.USERS).write_text(json.dumps([{"gpu": 2, "pid": 77, "name": "python3"}]))
    query = ("--query-compute-apps=pid,name,gpu_uuid", "--format=csv,noheader")
    assert node.says("nvidia-smi", *query).startswith("77, python3, GPU-")
    assert node.run("nvidia-smi", "mig", "-dci", "-i", "2")[0] != 0
    assert node.run("nvidia-smi", "mig", "-dci", "-i", "1")[0] == 0
    assert node.run("nvidia-smi", "mig", "-dgi", "-i", "1")[0] == 0
    assert "No GPU instances found" in node.run("nvidia-smi", "mig", "-lgi", "-i", "1")[1]
    assert "MIG 7g.40gb" in node.says("nvidia-smi", "mig", "-lgi", "-i", "2")


def test_nothing_of_mig_where_it_is_off(make_node: MakeNode) -> None:
    node = make_node("p4d.24xlarge")
    assert node.run("nvidia-smi", "mig", "-lgi") == (6, "No MIG-enabled devices found.\n", "")
    assert "MIG devices" not in node.says("nvidia-smi")
