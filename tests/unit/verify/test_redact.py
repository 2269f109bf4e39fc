"""What a bundle tells of a machine and its owner is replaced, and every check still says what it said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

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
    found, counted = redact(Bundle(files, error="10.11.12.13 did not answer"))
    texts = "\n".join([*(output.text + output.error for output in found.files.values()), found.error])
    assert [one for one in SECRETS if one in texts] == []
    assert [one for one in STAYS if one not in texts] == []
    assert counted["host name"] == 1 and counted["serial number"] == 2 and counted["UUID"] == 2
    # what is the same stays the same: the GPU of the kernel log is that of nvidia-smi
    (uuid,) = set(re.findall(r"GPU-[0-9a-f-]+", texts))
    assert re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid)
    assert redact(found)[0].files.keys() == found.files.keys()


@pytest.mark.parametrize("machine", ALL)
def test_every_check_says_what_it_said(machine: str) -> None:
    wanted = {name: expected(machine, "standard") for name in ("a", "b")}
    before = {name: bundle(nth(machine, number)) for number, name in enumerate(wanted)}
    after = {name: redact(one)[0] for name, one in before.items()}
    verdicts = [judge({name: Case(one, wanted[name]) for name, one in some.items()}) for some in (before, after)]
    told = [{name: [(c.id, c.status) for c in one.checks] for name, one in some.items()} for some in verdicts]
    assert told[0] == told[1]


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
