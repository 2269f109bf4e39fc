"""The facts that `gpuprov verify` reads of a node, asked one by one with pytest-testinfra: sixteen reads for each node.

Run by bench/verifying.py with --hosts of the ssh backend or of the ansible backend. Expected values are left to the
simplest assertion, so that the time is that of reading.
"""

from __future__ import annotations

import json
import os

EXPECTED = json.loads(os.environ["BENCH_EXPECTED"])
"""{"gpus": n, "model": name, "packages": {name: version}, "image": what docker runs}"""


def test_gpus_and_memory(host):
    output = host.check_output("sudo nvidia-smi --query-gpu=index,name,memory.total --format=csv,noheader")
    lines = output.splitlines()
    assert len(lines) == EXPECTED["gpus"]
    assert all(EXPECTED["model"] in line for line in lines)


def test_everything_nvidia_smi_knows(host):
    assert "<ecc_mode>" in host.check_output("sudo nvidia-smi -q -x")


def test_topology(host):
    assert "GPU0" in host.check_output("sudo nvidia-smi topo -m")


def test_nvlinks(host):
    assert "GPU 0" in host.run("sudo nvidia-smi nvlink -s").stdout


def test_kernel_log_has_no_xid(host):
    assert "NVRM: Xid" not in host.check_output("sudo dmesg")


def test_pci_devices(host):
    assert "NVIDIA" in host.check_output("sudo lspci -D")


def test_disks(host):
    assert json.loads(host.check_output("sudo lsblk --json --bytes"))["blockdevices"] is not None


def test_packages(host):
    output = host.check_output("dpkg-query -W -f '${binary:Package}\t${Version}\n'")
    versions = dict(line.split("\t") for line in output.splitlines())
    for name, version in EXPECTED["packages"].items():
        assert versions[name] == version


def test_nccl_version(host):
    assert host.package("libnccl2").version == EXPECTED["packages"]["libnccl2"]


def test_holds(host):
    holds = host.check_output("apt-mark showhold").split()
    assert set(EXPECTED["packages"]) <= set(holds)


def test_persistence(host):
    assert host.service("nvidia-persistenced").is_running


def test_dcgm(host):
    assert host.service("nvidia-dcgm").is_running


def test_no_unit_has_failed(host):
    assert host.check_output("systemctl list-units --state=failed --no-legend --plain") == ""


def test_exporter_is_scraped(host):
    assert "DCGM_FI_DEV_GPU_TEMP" in host.check_output("curl -s --max-time 10 http://127.0.0.1:9400/metrics")


def test_framework_in_the_image(host):
    program = "import json, torch; print(json.dumps({'torch': torch.__version__}))"
    output = host.check_output("sudo docker run --rm %s python3 -c %s", EXPECTED["image"], program)
    assert json.loads(output.splitlines()[-1])["torch"]


def test_kernel(host):
    assert host.check_output("uname -r")
