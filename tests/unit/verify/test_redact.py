"""What a bundle tells of a machine and its owner is replaced, and every check still says what it said."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.pytest_runner import Case
from provisioner.verify.redact import redact
from tests.support.healthy_bundle import ALL, CAPTURES, bundle, expected, nth
from tests.support.judging import judge

TELLS = {
    "host.json": '{"hostname": "gpu-ada-17", "boot_id": "0d8b2f6e-9a1c-4c55-8d0e-3b1c2a7f9e10"}',
    "nvidia-smi.xml": "<gpu><uuid>GPU-5f1e0b0a-6f0e-4b1f-9a55-0123456789ab</uuid><serial>1652923003067</serial>"
    "<vbios_version>96.00.61.00.01</vbios_version><driver_version>580.105.08</driver_version></gpu>",
    "lsblk.txt": 'NAME="nvme0n1" SERIAL="S64GNE0T123456" MODEL="SAMSUNG MZQL2"',
    "dmesg.txt": "[1.0] systemd[1]: Hostname set to <gpu-ada-17>.\n[2.0] mlx5_core 0000:17:00.0: firmware 28.39.1002\n"
    "[3.0] eth0: 10.11.12.13 fd12:3456:789a::7 aa:bb:cc:dd:ee:0f by gpu-ada-17 uuid"
    " GPU-5f1e0b0a-6f0e-4b1f-9a55-0123456789ab\n"
    "[4.0] bound to i-0abc1234def567890 of arn:aws:iam::123456789012:role/x in /home/ada/run\n"
    "[5.0] DCGM 4.2.3.1, EFA 2.15.3.1, NCCL 2.27.7",
    "ibstat.txt": "Node GUID: 0x506b4b0300cbc3a8\nfe80:0000:0000:0000:506b:4b03:00cb:c3a8",
}
SECRETS = (
    "gpu-ada-17", "0d8b2f6e", "5f1e0b0a", "1652923003067", "S64GNE0T123456", "10.11.12.13", "fd12:3456", "aa:bb:cc",
    "0abc1234def567890", "123456789012", "/home/ada", "506b4b03", "506b:4b03",
)  # fmt: skip
STAYS = ("96.00.61.00.01", "580.105.08", "0000:17:00.0", "28.39.1002", "SAMSUNG MZQL2", "4.2.3.1", "2.15.3.1", "2.27.7")


def test_what_tells_whose_machine_it_is_is_replaced_and_nothing_else() -> None:
    files = {name: Output(text, error="from gpu-ada-17") for name, text in TELLS.items()}
    redacted, counted = redact(Bundle(files, error="10.11.12.13 did not answer"))
    texts = "\n".join([*(output.text + output.error for output in redacted.files.values()), redacted.error])
    assert [text for text in SECRETS if text in texts] == []
    assert [text for text in STAYS if text not in texts] == []
    assert counted["host name"] == 1 and counted["serial number"] == 2 and counted["UUID"] == 2
    # what is the same stays the same: the GPU of the kernel log is that of nvidia-smi
    (uuid,) = set(re.findall(r"GPU-[0-9a-f-]+", texts))
    assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid)
    assert redact(redacted)[0].files.keys() == redacted.files.keys()


@pytest.mark.parametrize("machine", ALL)
def test_every_check_says_what_it_said(machine: str) -> None:
    expectations = {name: expected(machine, "standard") for name in ("a", "b")}
    originals = {name: bundle(nth(machine, number)) for number, name in enumerate(expectations)}
    after = {name: redact(original)[0] for name, original in originals.items()}
    verdicts = [
        judge({name: Case(node_bundle, expectations[name]) for name, node_bundle in some.items()})
        for some in (originals, after)
    ]
    statuses = [
        {name: [(c.id, c.status) for c in verdict.checks] for name, verdict in some.items()} for some in verdicts
    ]
    assert statuses[0] == statuses[1]


def test_real_captures_keep_what_checks_read() -> None:
    for file in sorted(CAPTURES.rglob("*")):
        if not file.is_file() or file.suffix not in (".xml", ".txt", ".json", ".prom", ".log"):
            continue
        text = file.read_text(encoding="utf-8", errors="replace")
        cleaned = redact(Bundle({file.name: Output(text)}))[0].files[file.name].text
        assert len(cleaned.splitlines()) == len(text.splitlines()), file
        for kind in (r"\b\d+ MiB\b", r"\bNV\d+\b", r"\b\d+ C\b", r"\bXid\b.*?\d+,", r"\d+\.\d+ GB/s"):
            assert re.findall(kind, cleaned) == re.findall(kind, text), (file, kind)


def test_it_is_written_and_read_like_any_bundle(tmp_path: Path) -> None:
    redact(Bundle({name: Output(text) for name, text in TELLS.items()}))[0].write(tmp_path / "b")
    assert "gpu-ada" not in "".join(path.read_text() for path in (tmp_path / "b").iterdir())


def cleaned(**files: str) -> str:
    outputs = {name.replace("__", "-").replace("_", "."): Output(text) for name, text in files.items()}
    return "\n".join(output.text for output in redact(Bundle(outputs))[0].files.values())


KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIJ0123456789abcdefghijklmnop"
HOST = {"hostname": "gpu-ada-17.corp.example.com", "files": {}}
HOST_JSON = json.dumps(HOST)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (json.dumps({"routes": "x\n10.1.2.3 y"}), "10.1.2.3"),  # behind an end of line, as JSON writes it
        (json.dumps({"text": "x\ngpu-ada-17 y"}), "ada"),
        (json.dumps({"text": "x\n5f1e0b0a-6f0e-4b1f-9a55-0123456789ab"}), "5f1e0b0a"),
        ("systemd on gpu-ada-17 and gpu-ada-17-ib0", "ada"),  # the name without its domain
        ('DCGM_FI_DEV_GPU_TEMP{gpu="0",Hostname="lovelace-4",DCGM_FI_DRIVER_VERSION="580.105.08"} 29', "lovelace"),
        ('DCGM_FI_DEV_GPU_TEMP{gpu="0",modelName="NVIDIA A30",hostname="lovelace-4"} 29', "lovelace"),
        ("bound to ip-172-31-16-106.ec2.internal", "172-31"),
        (json.dumps([{"HostName": "lovelace-4"}]), "lovelace"),
        (json.dumps({"status": 200, "name": "vm-ada-3", "text": '{"Resources": ["vm-ada-3"]}'}), "vm-ada-3"),
        (json.dumps({"files": {"etc/resolv.conf": "search ada.example.net\nnameserver 52.1.2.3\n"}}), "52.1.2.3"),
        (json.dumps({"files": {"etc/resolv.conf": "search ada.example.net\nnameserver 52.1.2.3\n"}}), "ada.example"),
        ("IN=eth0 SRC=52.9.8.7 DST=10.0.0.1", "52.9.8.7"),
        ("http://52.9.8.7:3128/", "52.9.8.7"),
        ("/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_vol0deef6a374e22c4d9", "deef6a374e"),
        ('"address": "80:00:00:29:fe:80:00:00:00:00:00:00:50:6b:4b:03:00:cb:c3:a8"', "cb:c3:a8"),
        ('"wwn": "eui.0025385b21404e3a"', "25385b21"),
        ('"Unique ID": "0x4edfb117a17a07d"', "edfb117a"),
        ("\tAsset Tag: 0F154830", "0F154830"),
        ("/home/ada.lovelace/run", "lovelace"),
        (f"sk-ssh-ed25519@openssh.com {KEY} ada@laptop", "laptop"),
        (f"ssh-rsa  {KEY}\tada@laptop", KEY),
    ],
)
def test_what_tells_is_found_wherever_it_stands(text: str, secret: str) -> None:
    assert secret not in cleaned(host_json=HOST_JSON, dmesg_txt=text)


@pytest.mark.parametrize(
    "text",
    [
        "Serial Number: 00000000\nGPU 00000000:53:00.0",  # no number, and PCI addresses begin so
        "NVRM: Row Remapper: New row (0x00000012bac1c3e0) marked, data 0x0000000000002081",
        "<clusterUuid>00000000-0000-0000-0000-000000000000</clusterUuid>",
        "DCGM 4.2.3.1, upgrade from 2.15.3.1 to 2.16.0.1",
        "git d60459902a, snapd2024abcd",
        "a std::add, 12:34:56, PCI:0000:19:00, 0000:17:00.0",
    ],
)
def test_what_is_nobodys_stays(text: str) -> None:
    assert cleaned(dmesg_txt=text) == text


@pytest.mark.parametrize("name", ["ubuntu", "nvidia", "42"])
def test_a_host_name_that_is_a_word_of_tools_changes_none_of_them(name: str) -> None:
    assert f"ID={name}" in cleaned(host_json=json.dumps({"hostname": name}), os__release_txt=f"ID={name}")


def test_a_short_serial_number_changes_no_count_and_no_other_serial_number() -> None:
    text = "Serial Number: 15360\n15360 MiB\nSerial Number: 00000002\nSerial Number: AWS648CF8359A6402E69\n"
    redacted = cleaned(dmidecode_txt=text)
    assert "15360 MiB" in redacted and "Number: 15360" not in redacted
    assert len({len(line) for line in redacted.splitlines()} & {len(line) for line in text.splitlines()}) == 4


def test_a_host_key_leaves_the_document_readable() -> None:
    key = f"ssh-ed25519 {KEY} root@gpu-ada-17\n"
    text = json.dumps({**HOST, "files": {"etc/ssh/ssh_host_ed25519_key.pub": key, "run/cloud-init/result.json": "{}"}})
    redacted = cleaned(host_json=text)
    assert json.loads(redacted)["files"]["run/cloud-init/result.json"] == "{}"
    assert KEY not in redacted and "ada" not in redacted


@pytest.mark.parametrize("text", ["aa:" * 100_000, "abcd:" * 60_000, "ecdsa-" * 50_000, ":" * 300_000])
def test_a_hostile_text_takes_no_longer_than_another(text: str) -> None:
    started = time.process_time()
    cleaned(dmesg_txt=text)
    assert time.process_time() - started < 10
    many = "".join(f"serial: ab{number:07d}\n" for number in range(20_000))
    cleaned(dmesg_txt=many)
    assert time.process_time() - started < 20


def test_more_host_names_than_a_node_has_are_refused() -> None:
    with pytest.raises(GpuprovError, match="host names"):
        cleaned(dmesg_txt="".join(f"Hostname set to <a{number}>\n" for number in range(100)))
