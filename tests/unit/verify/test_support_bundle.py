"""Bundles made of what people keep: nvidia-bug-report.log, sosreports, journals, tars and folders of loose files."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import os
import re
import tarfile
import textwrap
import zipfile
import zlib
from pathlib import Path

import pytest

from provisioner.catalog import load
from provisioner.common.errors import GpuprovError
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.expectations import Expected, expect
from provisioner.verify.facts import read as read_facts
from provisioner.verify.health import judge
from provisioner.verify.parsers import nvidia_smi, rocm_smi
from provisioner.verify.results import CheckResult
from provisioner.verify.support_bundle import budget, journals, read
from provisioner.verify.support_bundle.machine import identify
from tests.support.healthy_bundle import capture, healthy

RULE = "____________________________________________"
BOOT = "[    0.000000] Linux version 5.15.0-1052-azure (buildd@lcy02) #60-Ubuntu SMP\n"
XID = "[ 4711.123456] NVRM: Xid (PCI:0000:4c:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"


def bug_report(**sections: str) -> str:
    """The report's frame as branches 470 to 590 write it; a name with "_" for the blank is the section's title."""
    head = (
        "Start of NVIDIA bug report log file.  Please include this file\nnvidia-bug-report.sh Version: 31831145\n\n"
        "Date: Thu Oct 27 08:50:11 PM UTC 2026\nuname: Linux node7 5.15.0-1052-azure #60-Ubuntu SMP x86_64 GNU/Linux\n"
        "command line flags: \n"
    )
    text = f"\n{RULE}\n\n{head}\n"
    for title, content in sections.items():
        text += f"{RULE}\n\n{title.replace('__', '/').replace('_', ' ')}\n\n{content}\n"
    return text


def judged(bundle: Bundle, machine: str) -> dict[str, CheckResult]:
    catalog = load()
    row = catalog.machine(machine)
    expected: Expected = expect(row, catalog.gpu(row.gpu_model), None, None, catalog, level="quick")
    return {check.id: check for check in judge(read_facts(bundle), expected).checks}


def test_a_bug_report_is_cut_and_each_part_is_told_by_its_content(tmp_path: Path) -> None:
    report = bug_report(**{
        "*** __proc__driver__nvidia__.__version\n*** ls: -r--r--r-- 1 root": "NVRM version: NVIDIA UNIX x86_64 Kernel "
        "Module  535.161.08  Wed Jul 1 2026\n",
        "__usr__bin__nvidia-smi --query": capture("nvidia_smi/q-h100-8gpu-535.txt"),
        "__usr__bin__nvidia-smi nvlink --status": capture("nvlink/h100-1gpu-18links.txt"),
        "__bin__dmesg": BOOT + XID,
        "__usr__bin__vulkaninfo": "Vulkan Instance Version: 1.3\n",
    })  # fmt: skip
    file = tmp_path / "nvidia-bug-report.log.gz"
    file.write_bytes(gzip.compress(report.encode()))
    supplied = read(file)
    assert {name for _, name in supplied.placed} == {
        "nvidia-version.txt", "nvidia-smi.xml", "nvlink.txt", "dmesg.txt", "kernel.txt"
    }  # fmt: skip
    facts = read_facts(supplied.bundle)
    assert facts.gpus_present == 8 and facts.module is not None and facts.module.version == "535.161.08"
    # Azure's kernel tells whose machine it is.
    assert identify(facts, supplied.told, load())[0].name == "Standard_ND96isr_H100_v5"
    checks = judged(supplied.bundle, "Standard_ND96isr_H100_v5")
    assert checks["gpu.xid"].status == "fail" and "79" in checks["gpu.xid"].message
    assert checks["ib.ports"].status == "unknown", "what is not in the report is never fine"


def test_a_log_alone_is_never_healthy(tmp_path: Path) -> None:
    file = tmp_path / "messages.txt"
    file.write_text(BOOT + "[    9.000000] nvidia: loading out-of-tree module taints kernel.\n" * 30)
    supplied = read(file)
    checks = judged(supplied.bundle, "dgx-h100")
    assert supplied.placed == (("messages.txt", "dmesg.txt"),)
    assert checks["gpu.xid"].status == "pass"
    assert {checks[name].status for name in ("gpu.count", "gpu.ecc", "driver.responds")} == {"unknown"}


def test_a_kernel_log_under_gpuprovs_own_name_need_not_be_whole(tmp_path: Path) -> None:
    (tmp_path / "dmesg.txt").write_text("[23456.789020] NVRM: Xid (PCI:0000:43:00): 63, pid=1, Row Remapper\n")
    checks = judged(read(tmp_path).bundle, "dgx-h100")
    assert "does not reach back to the boot" in checks["gpu.xid"].message
    assert [id for id, check in checks.items() if check.status == "pass"] == []


def test_a_part_of_a_log_shows_faults_and_no_health(tmp_path: Path) -> None:
    session = tmp_path / "session.txt"
    session.write_text(
        "root@node1:~# nvidia-smi\nUnable to determine the device handle for GPU0000:A1:00.0: Unknown Error\n\n"
        "root@node1:~# dmesg -T | grep NVRM\n[Thu Apr  4 18:03:56 2024] NVRM: loading NVIDIA UNIX x86_64 Kernel "
        "Module  535.161.07  Sat Feb 17 22:55:48 UTC 2024\n"
    )
    supplied = read(session)
    checks = judged(supplied.bundle, "dgx-a100-80gb")
    assert checks["gpu.xid"].status == "unknown" and "does not reach back to the boot" in checks["gpu.xid"].message
    assert checks["gpu.count"].status == "fail"
    assert "1 of 8 GPUs cannot be opened, and the others are unknown" in checks["gpu.count"].message


def test_a_list_of_gpus_passes_what_it_tells_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "smi.txt"
    file.write_text(capture("nvidia_smi/table-v100-8gpu-460.txt"))
    checks = judged(read(file).bundle, "Standard_ND40rs_v2")
    assert {checks[name].status for name in ("gpu.count", "gpu.model", "gpu.memory")} == {"pass"}
    assert checks["gpu.inforom"].status == "fail"
    assert checks["gpu.ecc"].status == "unknown" and "nvidia-smi -q" in checks["gpu.ecc"].message
    assert checks["gpu.reset_required"].status == "unknown"


def test_an_excerpt_shows_its_fault_and_accuses_of_nothing_that_is_not_there(tmp_path: Path) -> None:
    file = tmp_path / "q.txt"
    file.write_text(capture("nvidia_smi/q-a100-excerpt-510.txt"))
    checks = judged(read(file).bundle, "dgx-a100-80gb")
    assert checks["gpu.remap"].status == "fail"
    assert checks["gpu.count"].status == "unknown"


def test_of_several_outputs_of_one_kind_the_one_that_tells_most_is_taken(tmp_path: Path) -> None:
    query_text = capture("nvidia_smi/q-h100-8gpu-535.txt")
    uuids = re.findall(r"GPU UUID +: (\S+)", query_text)
    (tmp_path / "1.txt").write_text("".join(f"GPU {n}: NVIDIA H100 (UUID: {uuid})\n" for n, uuid in enumerate(uuids)))
    (tmp_path / "2.txt").write_text(query_text)
    (tmp_path / "3.txt").write_text(query_text)
    (tmp_path / "4.txt").write_text("dear all, the node is slow\n")
    supplied = read(tmp_path)
    assert dict(supplied.placed) == {"2.txt": "nvidia-smi.xml"}
    assert [reason for name, reason in sorted(supplied.unplaced) if name != "4.txt"] == [
        "2.txt is taken for nvidia-smi.xml", "2.txt is the same"
    ]  # fmt: skip
    assert {name for name, _ in supplied.unplaced} == {"1.txt", "3.txt", "4.txt"}


def tar_of(files: dict[str, bytes], mode: str = "w:xz", links: tuple[str, ...] = ()) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for name in links:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(info)
    return buffer.getvalue()


def test_a_sosreport_is_read_by_content_and_links_are_not_followed(tmp_path: Path) -> None:
    files = {
        "sosreport-n7/sos_commands/kernel/dmesg": (BOOT + XID).encode(),
        "sosreport-n7/sos_commands/pci/lspci_-nnvv": healthy("dgx-h100")["lspci.txt"].encode(),
        "sosreport-n7/sos_commands/host/uname": b"Linux n7 5.15.0-97-generic #107-Ubuntu SMP x86_64 GNU/Linux\n",
        "sosreport-n7/var/log/kern.log.1.gz": gzip.compress(
            b"Nov 20 10:00:00 n7 kernel: [1.0] NVRM: Xid (PCI:0000:19:00): 48, pid=1, DBE\n"
        ),
        "sosreport-n7/sos_commands/hardware/dmidecode": b"System Information\n\tManufacturer: NVIDIA\n"
        b"\tProduct Name: DGXH100\n",
    }  # fmt: skip
    file = tmp_path / "sosreport-n7.tar.xz"
    file.write_bytes(tar_of(files, links=("sosreport-n7/dmesg",)))
    supplied = read(file)
    assert {name for _, name in supplied.placed} == {"dmesg.txt", "lspci.txt", "kernel.txt"}
    assert ("sosreport-n7/dmesg", "a link is not followed") in supplied.unplaced
    facts = read_facts(supplied.bundle)
    assert facts.log is not None and {x.code for x in facts.log.xids} == {48, 79}, "a fault in any log counts"
    assert identify(facts, supplied.told, load())[0].name == "dgx-h100"


def test_gpuprovs_own_bundle_in_an_archive_is_what_it_is_as_a_folder(tmp_path: Path) -> None:
    files = healthy("dgx-h100")
    file = tmp_path / "ticket.tgz"
    file.write_bytes(tar_of({f"ticket/{name}": str(text).encode() for name, text in files.items()}, "w:gz"))
    (tmp_path / "ticket").mkdir()
    for name, text in files.items():
        (tmp_path / "ticket" / name).write_text(str(text))
    packed, plain = read_facts(read(file).bundle), read_facts(read(tmp_path / "ticket").bundle)
    assert {n for n, s in packed.sources.items() if s.state == "read"} == {
        n for n, s in plain.sources.items() if s.state == "read"
    }


@pytest.mark.parametrize("form", ["json", "export", "text"])
def test_a_journal_gives_the_log_of_this_boot_and_of_the_one_before(form: str, tmp_path: Path) -> None:
    rows = [("a", "kernel", "Linux version 5.15.0-97-generic (b@l) #1"), ("a", "kernel", "filler")]
    rows += [("a", "kernel", f"usb 1-{n}: new device") for n in range(25)]
    rows += [("a", "kernel", XID.split("] ", 1)[1].strip()), ("a", "sshd", "NVRM: Xid (PCI:0000:00:00): 95, said sshd")]
    rows += [("b", "kernel", "Linux version 5.15.0-97-generic (b@l) #1"), ("b", "systemd", "Started all.")]
    match form:
        case "json":
            text = "\n".join(
                json.dumps({"__CURSOR": "s=1", "MESSAGE": message, "_BOOT_ID": boot, "_TRANSPORT": identifier,
                            "SYSLOG_IDENTIFIER": identifier, "__MONOTONIC_TIMESTAMP": "1000000"})
                for boot, identifier, message in rows
            )  # fmt: skip
        case "export":
            text = "\n\n".join(
                f"__CURSOR=s=1\n__MONOTONIC_TIMESTAMP=1000000\n_BOOT_ID={boot}\n_TRANSPORT={identifier}\n"
                f"SYSLOG_IDENTIFIER={identifier}\nMESSAGE={message}"
                for boot, identifier, message in rows
            )
        case _:
            text = "\n".join(
                f"Nov 20 10:00:00 n7 {identifier}[1]: {message}".replace("kernel[1]", "kernel")
                for _, identifier, message in rows
            )
    (tmp_path / "j").write_text(text + "\n")
    facts = read_facts(read(tmp_path / "j").bundle)
    assert facts.log is not None and facts.log.xids == () and facts.log.from_boot
    assert facts.before is not None and [x.code for x in facts.before.xids] == [79]


def test_logs_of_one_boot_count_each_line_once() -> None:
    same_line = "2026-11-20T10:00:00+0000 n7 kernel: " + XID.split("] ", 1)[1]
    both = journals.joined([BOOT + XID + "[ 1.0] more\n", same_line])
    assert both.count("Xid") == 1


BOMB = b"\0" * (64 * 1024 * 1024)


@pytest.mark.parametrize("pack", [gzip.compress, lambda raw: lzma.compress(raw, preset=0)], ids=["gzip", "xz"])
def test_a_decompression_bomb_is_refused(pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(budget, "TOTAL", 8 * 1024 * 1024)
    (tmp_path / "b.log.gz").write_bytes(pack(BOMB))
    with pytest.raises(GpuprovError, match="unpacks to more than"):
        read(tmp_path / "b.log.gz")


def test_what_leads_out_of_an_archive_or_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MEMBERS", 20)
    (tmp_path / "t.tar").write_bytes(tar_of({"../../dmesg.txt": XID.encode(), "/abs": XID.encode()}, "w:"))
    reasons = dict(read(tmp_path / "t.tar").unplaced)
    assert set(reasons.values()) == {"its name leads out of the archive"}
    (tmp_path / "many.tar").write_bytes(tar_of({str(n): b"x" for n in range(40)}, "w:"))
    with pytest.raises(GpuprovError):
        read(tmp_path / "many.tar")


def test_a_header_that_is_longer_than_a_name_is_refused(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("x")
        info.pax_headers = {"comment": "y" * (2 * 1024 * 1024)}
        archive.addfile(info)
    (tmp_path / "h.tgz").write_bytes(buffer.getvalue())
    with pytest.raises(GpuprovError, match="header"):
        read(tmp_path / "h.tgz")


@pytest.mark.parametrize(
    "raw", [b"\x1f\x8b\x08broken", b"PK\x03\x04broken", b"\xfd7zXZ\x00", b"BZh9", b"\x28\xb5\x2f\xfd"]
)
def test_what_is_broken_is_said_and_no_defect(raw: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(raw)
    try:
        assert not read(tmp_path / "f").bundle.files
    except GpuprovError as error:
        assert "cannot be read" in str(error)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(GpuprovError, match="a pipe, not a regular file"):
        read(tmp_path / "pipe")


def test_a_zip_is_opened_too(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("a/dmesg", BOOT + XID)
        archive.writestr("../b", BOOT)
    supplied = read(tmp_path / "t.zip")
    assert supplied.placed == (("a/dmesg", "dmesg.txt"),)
    assert dict(supplied.unplaced) == {"../b": "its name leads out of the archive"}


def test_a_machine_that_outputs_do_not_tell_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "smi").write_text(capture("nvidia_smi/q-h100-8gpu-535.txt"))
    facts = read_facts(read(tmp_path / "smi").bundle)
    with pytest.raises(GpuprovError, match=r"8 x NVIDIA H100 80GB HBM3 could be any of .*dgx-h100"):
        identify(facts, "", load())
    line = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-e18afb8d-1627-f8ff-2ba3-c05c5a8e9e67)\n"
    one_gpu = read_facts(Bundle({"nvidia-smi.xml": Output(line)}))
    with pytest.raises(GpuprovError, match=r"1 x NVIDIA H100 80GB HBM3 could be any of p5\.4xlarge, .*dgx-h100"):
        identify(one_gpu, "", load())  # -L of one GPU may be a line of eight
    with pytest.raises(GpuprovError, match=r"could be p5\.4xlarge, or a machine that the catalogue has not"):
        identify(one_gpu, "Amazon EC2", load())  # which sells one such GPU in several sizes
    with pytest.raises(GpuprovError, match=r"g9\.8xlarge is not a machine of the catalogue"):
        identify(one_gpu, "Amazon EC2 g9.8xlarge", load())
    with pytest.raises(GpuprovError, match=r"could be"):
        identify(facts, "QEMU Standard PC (Q35 + ICH9, 2009)", load())
    assert identify(facts, "Supermicro SYS-821GE-TNHR/X13DEG-OAD", load())[0].name == "supermicro-sys-821ge-tnhr"
    with pytest.raises(GpuprovError, match="no GPU and no firmware tells"):
        identify(read_facts(Bundle()), "", load())


CAPTURES = Path(__file__).parent / "captures"
TOLD = {
    "dcgm_exporter": "dcgm-exporter.prom", "dcgmi_diag": "dcgmi-diag.json", "dmesg": "dmesg.txt",
    "dgx_release": "dgx-release.txt", "fi_info": "fi_info.txt",
    "ibstat": "ibstat.txt", "imex": "imex.json", "lsblk": "lsblk.json", "lspci": "lspci.txt", "mdstat": "mdstat.txt",
    "nccl_tests": "all_reduce.txt",
    "nvidia_smi": "nvidia-smi.xml", "nvlink": "nvlink.txt", "nvlink_errors": "nvlink-errors.txt",
    "os_release": "os-release.txt", "rocm_smi": "rocm-smi.json", "topo": "topo.txt",
}  # fmt: skip
UNTOLD = {"no-id.txt", "h100-elided.txt", "mpi-not-enough-slots.txt"}
"""What no parser reads either."""


@pytest.mark.parametrize("tool", TOLD)
def test_every_capture_is_told_by_its_content(tool: str, tmp_path: Path) -> None:
    for number, file in enumerate(sorted((CAPTURES / tool).iterdir())):
        if file.suffix == ".yaml" or file.name in UNTOLD:
            continue
        (tmp_path / f"{number}").write_bytes(file.read_bytes())
        supplied = read(tmp_path / f"{number}")
        placed = [name for _, name in supplied.placed if name != "nccl.log"]  # a run of nccl-tests can be both
        assert placed == [TOLD[tool]], (file.name, supplied.unplaced)


GOOD, LOST = (
    "nvidia_smi/h100-sxm-8gpu-580.xml",
    "Unable to determine the device handle for GPU0000:4C:00.0: GPU is lost.  ",
)


@pytest.mark.parametrize("name", ["yesterday.xml", "nvidia-smi.xml"])
def test_a_fault_counts_beside_an_older_output_that_shows_none(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(capture(GOOD))
    (tmp_path / "now.txt").write_text(f"{LOST}Reboot the system to recover this GPU\n")
    supplied = read(tmp_path)
    assert judged(supplied.bundle, "dgx-h100")["gpu.count"].status == "fail"
    (tmp_path / "now.txt").unlink()
    assert judged(read(tmp_path).bundle, "dgx-h100")["gpu.count"].status == "pass"


def test_a_kernel_log_beside_one_of_our_own_counts(tmp_path: Path) -> None:
    (tmp_path / "dmesg.txt").write_text(BOOT)
    (tmp_path / "console.log").write_text(XID)
    assert judged(read(tmp_path).bundle, "dgx-h100")["gpu.xid"].status == "fail"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (capture(GOOD).replace("<uuid>GPU-0", "<uuid>GPU-f"), "have other GPUs"),
        (capture("nvidia_smi/table-a40-8gpu-525-lost.txt"), "have other drivers"),
    ],
    ids=["GPUs", "driver"],
)
def test_outputs_of_two_machines_are_refused(tmp_path: Path, text: str, message: str) -> None:
    for folder, output in (("gpu01", capture(GOOD)), ("gpu02", text)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "smi").write_text(output)
    with pytest.raises(GpuprovError, match=message) as caught:
        read(tmp_path)
    assert "gpu01/smi and gpu02/smi" in str(caught.value)


def test_looks_at_two_machines_in_gpuprovs_own_bundle_are_refused(tmp_path: Path) -> None:
    texts = healthy("p4d.24xlarge")
    for name in ("nvidia-smi.xml", "nvidia-smi-load.xml", "nvidia-smi-after.xml"):
        (tmp_path / name).write_text(str(texts[name]))
    assert "gpu.count" in judged(read(tmp_path).bundle, "p4d.24xlarge")
    later = tmp_path / "nvidia-smi-load.xml"
    later.write_text(later.read_text().replace("<uuid>GPU-", "<uuid>GPU-f"))
    with pytest.raises(GpuprovError, match=r"nvidia-smi-load\.xml have other GPUs"):
        read(tmp_path)


def test_what_quotes_a_kernel_line_is_no_kernel_log(tmp_path: Path) -> None:
    quoted = json.dumps({"nodes": [{"checks": [{"message": XID}]}]}, indent=1)
    for name, text in {"report.json": quoted, "report.html": f"<!doctype html>\n<li>{XID}</li>"}.items():
        (tmp_path / name).write_text(text)
    supplied = read(tmp_path)
    assert supplied.bundle.files == {}
    assert {reason for _, reason in supplied.unplaced} == {"a document, not the output of a tool"}


def test_what_is_cut_is_read_to_its_end_and_never_whole(tmp_path: Path) -> None:
    """As a copy that a full disk or a lost connection has ended."""
    noise = "".join(f"[ {n}.000000] usb 1-1: new device {n * 7919 % 10007}\n" for n in range(5000, 25000))
    packed = gzip.compress((BOOT + noise).encode())
    (tmp_path / "kern.log.gz").write_bytes(packed[: len(packed) // 2])
    (tmp_path / "smi.txt").write_text(capture(GOOD))
    supplied = read(tmp_path)
    assert any(name == "kern.log" and reason.startswith("its end is missing") for name, reason in supplied.unplaced)
    checks = judged(supplied.bundle, "dgx-h100")
    assert (checks["gpu.xid"].status, checks["gpu.count"].status) == ("unknown", "pass")
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:gz") as archive:
        for name, text in (("a.log", XID), ("b.log", noise)):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    (tmp_path / "day.tar.gz").write_bytes(tar.getvalue()[: len(tar.getvalue()) // 2])
    cut = read(tmp_path / "day.tar.gz")
    assert judged(cut.bundle, "dgx-h100")["gpu.xid"].status == "fail"
    assert any("cut" in reason or "missing" in reason for _, reason in cut.unplaced)


def test_an_archive_that_ends_between_two_members_is_not_whole(tmp_path: Path) -> None:
    archive = tar_of({"a.log": BOOT.encode(), "b.log": XID.encode()}, "w")
    packer = zlib.compressobj(wbits=31)
    (tmp_path / "day.tar.gz").write_bytes(packer.compress(archive[:1024]) + packer.flush(zlib.Z_SYNC_FLUSH))
    cut = read(tmp_path / "day.tar.gz")
    assert [name for name, _ in cut.placed] == ["a.log"]
    assert any("cut or damaged" in reason for _, reason in cut.unplaced)


def test_a_damaged_member_of_a_zip_is_not_whole(tmp_path: Path) -> None:
    file = tmp_path / "day.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("kern.log", BOOT + "[    1.000000] usb 1-1: new device\n")
    file.write_bytes(file.read_bytes().replace(b"usb 1-1", b"usb 9-9"))
    damaged = read(file)
    assert damaged.bundle.files == {}
    assert any(name == "kern.log" and "CRC" in reason for name, reason in damaged.unplaced)


def test_nothing_of_a_folder_vanishes_without_a_word(tmp_path: Path) -> None:
    (tmp_path / "smi.txt").write_text(capture(GOOD))
    (tmp_path / "topo.txt").write_text(capture("topo/h100-8gpu-8nic-legend.txt"))
    (tmp_path / "photo.jpg").write_bytes(bytes(range(256)) * 40)
    (tmp_path / "nothing.txt").write_text("")
    supplied = read(tmp_path)
    assert set(supplied.placed) == {("smi.txt", "nvidia-smi.xml"), ("topo.txt", "topo.txt")}
    assert set(supplied.unplaced) == {("photo.jpg", "no text"), ("nothing.txt", "empty")}


def test_xids_that_were_seen_are_named_where_a_log_is_not_whole(tmp_path: Path) -> None:
    (tmp_path / "kern.log").write_text(XID.replace("79,", "94,").replace("GPU has fallen off the bus", "Contained"))
    check = judged(read(tmp_path).bundle, "dgx-h100")["gpu.xid"]
    assert (check.status, check.action) == ("unknown", "none")
    assert "none of it fatal by itself: Xid 94 on 0000:4c:00" in check.message


def test_a_file_that_nobody_copied_is_no_reason_to_reconfigure(tmp_path: Path) -> None:
    (tmp_path / "smi.txt").write_text(capture(GOOD))
    checks = judged(read(tmp_path).bundle, "dgx-h100").values()
    missing = [c for c in checks if c.status == "unknown" and c.message.endswith("is not in the bundle")]
    assert missing
    assert {check.action for check in missing} == {"none"}


@pytest.mark.parametrize("count", [2, 4, 7])
def test_fewer_gpus_than_any_machine_has_are_what_is_left_of_one(count: int) -> None:
    text = "".join(
        f"GPU {n}: NVIDIA H100 80GB HBM3 (UUID: GPU-0000000{n}-0000-0000-0000-00000000000{n})\n" for n in range(count)
    )
    facts = read_facts(Bundle({"nvidia-smi.xml": Output(text)}))
    with pytest.raises(GpuprovError, match=rf"{count} x NVIDIA H100 80GB HBM3 could be a part of one of .*dgx-h100"):
        identify(facts, "", load())


MODULE = "Handle 0x11{:02X}, DMI type 17, 92 bytes\nMemory Device\n\tSize: 64 GB\n\tLocator: DIMM_{}\n\tType: DDR5\n\n"


def test_each_command_of_a_session_is_read_or_told_as_not_used(tmp_path: Path) -> None:
    prompt = "root@gpu17:~# "
    modules = "# dmidecode 3.3\nSMBIOS 3.4.0 present.\n\n" + "".join(MODULE.format(n, n) for n in range(4))
    session = (
        f"{prompt}dmidecode -t memory\n{modules}{prompt}cat /proc/mdstat\nPersonalities : [raid1]\n"
        f"md0 : active raid1 nvme1n1p2[1] nvme0n1p2[0](F)\n{prompt}ipmitool sel list\n 1 | 01/01/2026 | Fan\n"
        f"{prompt}uname -r\n5.15.0-1053-generic\n"
    )
    (tmp_path / "s.txt").write_text(session)
    supplied = read(tmp_path / "s.txt")
    assert supplied.placed == (
        ("s.txt: dmidecode -t memory", "dmidecode.txt"), ("s.txt: cat /proc/mdstat", "mdstat.txt"),
        ("s.txt: uname -r", "kernel.txt"),
    )  # fmt: skip
    dimms = read_facts(supplied.bundle).dimms
    assert dimms is not None and dimms.gib == 256
    assert [name for name, _ in supplied.unplaced] == ["s.txt: ipmitool sel list"]


@pytest.mark.parametrize(
    "name",
    ["nvidia_smi/q-h100-8gpu-535.txt", "nvidia_smi/table-v100-8gpu-460.txt", "rocm_smi/text-mi300x-4gpu.txt",
     "rocm_smi/amd-smi-table-mi300x-8gpu-rocm70.txt", "topo/h100-8gpu-8nic-legend.txt", "ibstat/a100-9ca-active.txt"],
)  # fmt: skip
def test_what_was_indented_as_a_whole(name: str, tmp_path: Path) -> None:
    # as notebooks and lists have it
    (tmp_path / "plain").write_text(capture(name))
    (tmp_path / "indented").write_text("\n" + textwrap.indent(capture(name), "    "))
    plain, indented = (read(tmp_path / file) for file in ("plain", "indented"))
    assert [file for _, file in indented.placed] == [file for _, file in plain.placed] != []
    assert read_facts(indented.bundle) == read_facts(plain.bundle)


@pytest.mark.parametrize("prompt", ["bash-5.1# ", "sh-4.4# ", "/ # ", "\u276f ", "\u27ad ", "[root@node1 ~]# ", "$ "])
def test_prompts_of_any_shell(prompt: str, tmp_path: Path) -> None:
    (tmp_path / "s.txt").write_text(
        f"{prompt}uname -r\n5.15.0-1053-generic\n{prompt}nvidia-smi -L\nNo devices were found\n"
    )
    assert read(tmp_path / "s.txt").placed == (
        ("s.txt: uname -r", "kernel.txt"), ("s.txt: nvidia-smi -L", "nvidia-smi.xml")
    )  # fmt: skip


def test_a_service_that_runs_by_a_shell_without_a_profile(tmp_path: Path) -> None:
    # github.com/bottlerocket-os/bottlerocket-kernel-kit/pull/142, B200
    (tmp_path / "s.txt").write_text((Path(__file__).parent / "sessions/bottlerocket-fabric-manager.txt").read_text())
    assert judged(read(tmp_path / "s.txt").bundle, "dgx-b200")["nvswitch.fabric"].status != "fail"
    assert [file for _, file in read(tmp_path / "s.txt").placed] == ["fabricmanager.txt", "fabricmanager.log"]


def test_dmidecode_is_told_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "memory.out").write_text("# dmidecode 3.3\n\n" + MODULE.format(0, 0))
    assert "dmidecode.txt" in read(tmp_path).bundle.files


def disks_of(count: int, form: str) -> str:
    """What the system boots from, and as many drives of an instance's own."""
    if form == "pairs":
        row = 'NAME="{}" TYPE="{}" SIZE="{}" MODEL="{}" MOUNTPOINT="{}"\n'
        instance_rows = "".join(row.format(f"nvme{n}n1", "disk", 1900000000000, "Amazon EC2 NVMe Instance Storage", "")
                      for n in range(1, count + 1))  # fmt: skip
        root = row.format("nvme0n1", "disk", 64 << 30, "Amazon Elastic Block Store", "")
        return root + row.format("nvme0n1p1", "part", 63 << 30, "", "/") + instance_rows
    names = [("nvme0n1", "Amazon Elastic Block Store")]
    names += [(f"nvme{n}n1", "Amazon EC2 NVMe Instance Storage") for n in range(1, count + 1)]
    if form == "json":
        return json.dumps({"Devices": [
            {"NameSpace": 1, "DevicePath": f"/dev/{name}", "Firmware": "0", "ModelNumber": model,
             "PhysicalSize": 1900000000000} for name, model in names]})  # fmt: skip
    if form == "json 2.11":
        return json.dumps({"Devices": [{"HostNQN": "nqn", "Subsystems": [
            {"Subsystem": "nvme-subsys", "Controllers": [{"Controller": name[:-2], "ModelNumber": model, "Namespaces": [
                {"NameSpace": name, "NSID": 1, "PhysicalSize": 1900000000000}]}], "Namespaces": []}
            for name, model in names]}]})  # fmt: skip
    first, *_ = capture("lsblk/nvme-list-i4.txt").splitlines(keepends=True)
    rows = capture("lsblk/nvme-list-i4.txt").splitlines(keepends=True)
    return "".join([first, rows[1], rows[2], *(rows[4].replace("nvme2n1", f"nvme{n}n1") for n in range(1, count + 1))])


@pytest.mark.parametrize("form", ["pairs", "json", "json 2.11", "table"])
def test_lists_of_disks_are_judged(form: str, tmp_path: Path) -> None:
    for count, status in ((8, "pass"), (7, "fail")):
        (tmp_path / "disks.txt").write_text(disks_of(count, form))
        check = judged(read(tmp_path / "disks.txt").bundle, "p4d.24xlarge")["storage.nvme_count"]
        assert check.status == status, check.message


def test_a_list_that_does_not_tell_whose_the_disks_are_never_passes(tmp_path: Path) -> None:
    table = "NAME     MAJ:MIN RM   SIZE RO TYPE MOUNTPOINT\n"
    for count, status in ((12, "unknown"), (7, "fail")):
        (tmp_path / "l").write_text(table + "".join(f"nvme{n}n1  259:{n}    0   3.5T  0 disk \n" for n in range(count)))
        assert judged(read(tmp_path / "l").bundle, "dgx-h100")["storage.nvme_count"].status == status


def test_software_raid_is_judged(tmp_path: Path) -> None:
    (tmp_path / "mdstat").write_text(capture("mdstat/raid5-degraded.txt"))
    check = judged(read(tmp_path / "mdstat").bundle, "dgx-h100")["storage.raid"]
    assert (check.status, check.message) == ("fail", "md2 misses 1 disk")
    (tmp_path / "mdstat").write_text(capture("mdstat/raid0-6-disks.txt"))
    assert judged(read(tmp_path / "mdstat").bundle, "dgx-h100")["storage.raid"].status == "pass"


def test_rocm_smi_without_an_option_is_judged(tmp_path: Path) -> None:
    table = capture("rocm_smi/table-mi355x-partitions-rocm7.txt")
    (tmp_path / "smi").write_text(table)
    checks = judged(read(tmp_path / "smi").bundle, "amd-mi300x-node")
    assert checks["gpu.count"].status == "fail" and "2 of 8" in checks["gpu.count"].message
    assert checks["amd.partitions"].status == "fail"
    assert checks["amd.vbios"].status == "unknown" and "rocm-smi's table" in checks["amd.vbios"].message
    row = "{}       {}     0x74a1,   2495{}  40.0°C      119.0W    NPS1, SPX, 0        132Mhz  900Mhz  0%   auto\n"
    head = "".join(table.splitlines(keepends=True)[:5])
    (tmp_path / "smi").write_text(head + "".join(row.format(n, n + 2, n) for n in range(8)))
    assert judged(read(tmp_path / "smi").bundle, "amd-mi300x-node")["gpu.count"].status == "pass"


def test_all_that_rocm_smi_tells_is_judged_like_its_json(tmp_path: Path) -> None:
    rows = "".join(
        f"GPU[{n}]\t\t: Unique ID: 0x8d1457e2c20f59d{n}\nGPU[{n}]\t\t: PCI Bus: 0000:{n + 1:02X}:00.0\n"
        f"GPU[{n}]\t\t: VBIOS version: 113-M300\nGPU[{n}]\t\t: Card Series: \t\tAMD Instinct MI300X OAM\n"
        f"GPU[{n}]\t\t: VRAM Total Memory (B): 206141652992\n"
        for n in range(8)
    )
    head = "============ ROCm System Management Interface ============\nDriver version: 6.10.5\n"
    for text, status in ((rows, "pass"), (rows.replace("113-M300", "113-M299", 1), "fail")):
        (tmp_path / "smi").write_text(head + text)
        checks = judged(read(tmp_path / "smi").bundle, "amd-mi300x-node")
        assert checks["amd.vbios"].status == status
        assert {checks[name].status for name in ("gpu.count", "gpu.model", "gpu.memory", "amd.partitions")} == {"pass"}


def test_amd_smi_without_an_option_is_judged(tmp_path: Path) -> None:
    table = capture("rocm_smi/amd-smi-table-mi300x-8gpu-rocm70.txt")
    for text, status in ((table, "pass"), (re.sub(r"\| 0000:df:.*\n.*\n", "", table), "fail")):
        (tmp_path / "smi").write_text(text)
        checks = judged(read(tmp_path / "smi").bundle, "amd-mi300x-node")
        assert checks["gpu.count"].status == status
        assert {checks[name].status for name in ("gpu.model", "gpu.memory")} == {"pass"}
    (tmp_path / "smi").write_text(capture("rocm_smi/amd-smi-table-name-cut-left.txt"))
    assert judged(read(tmp_path / "smi").bundle, "amd-mi300x-node")["gpu.model"].status == "pass"


UNREAD = ("|ERR!  ERR!  ERR!            N/A  / ERR!  |    GPU is lost         |   ERR!          ERR! |",
          "|ERR!  ERR!  ERR!            N/A  / ERR!  |     ERR!  /  ERR!      |   ERR!          ERR! |")  # fmt: skip


@pytest.mark.parametrize("second", UNREAD)
def test_a_gpu_that_the_table_names_and_cannot_read_is_lost(second: str) -> None:
    rows = capture("nvidia_smi/table-v100-8gpu-460.txt").splitlines()
    index = next(n for n, row in enumerate(rows) if row.startswith("|   2  ")) + 1
    smi = nvidia_smi.parse("\n".join([*rows[:index], second, *rows[index + 1 :]]))
    assert [gpu.lost for gpu in smi.gpus] == [n == 2 for n in range(8)]


def test_a_gpu_of_the_table_without_heat_state_and_power_has_to_be_reset() -> None:
    # driver 580, as a public note on an RTX PRO 6000 has it; --query-gpu said "[GPU requires reset]" of it
    second = "|ERR!  ERR!  ERR!             N/A /  N/A  |   58222MiB /  97887MiB |     N/A      Default |"
    rows = capture("nvidia_smi/table-v100-8gpu-460.txt").splitlines()
    index = next(n for n, row in enumerate(rows) if row.startswith("|   2  ")) + 1
    smi = nvidia_smi.parse("\n".join([*rows[:index], second, *rows[index + 1 :]]))
    assert [bool(gpu.reset_required) for gpu in smi.gpus] == [n == 2 for n in range(8)]
    assert not any(gpu.lost for gpu in smi.gpus)


@pytest.mark.parametrize("file", ["table-v100-8gpu-460.txt", "q-h100-8gpu-535.txt"])
def test_of_what_was_printed_again_and_again_the_last_counts(file: str) -> None:
    once = capture(f"nvidia_smi/{file}")
    assert nvidia_smi.parse(once * 3).gpus == nvidia_smi.parse(once).gpus


def test_a_table_behind_all_that_nvidia_smi_tells_hides_nothing_of_it() -> None:
    query_text, table = (
        capture(f"nvidia_smi/{name}.txt") for name in ("q-a10-remap-pending-535", "table-v100-8gpu-460")
    )
    for text in (query_text + table, table + query_text):
        assert nvidia_smi.parse(text).gpus == nvidia_smi.parse(query_text).gpus


def test_a_gpu_that_was_lost_in_between_counts() -> None:
    healthy_table, lost_table = (
        capture(f"nvidia_smi/table-{name}.txt") for name in ("v100-8gpu-460", "a40-8gpu-525-lost")
    )
    assert [gpu.lost for gpu in nvidia_smi.parse(healthy_table + lost_table + healthy_table).gpus].count(True) == 1


def test_what_somebody_left_out_of_a_list_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "smi").write_text(capture("nvidia_smi/csv-h100-elided.csv"))
    checks = judged(read(tmp_path / "smi").bundle, "dgx-h100")
    assert {checks[name].status for name in ("gpu.count", "gpu.inforom")} == {"unknown"}
    assert checks["gpu.model"].status == "pass"


def test_a_row_of_rocm_smi_without_a_value_is_no_gpu_that_answers() -> None:
    text = capture("rocm_smi/table-mi300x-4gpu.txt")
    last = next(row for row in text.splitlines() if re.match(r"3 +", row))
    columns = "N/A         N/A       N/A, N/A, N/A       None    None    0%   unknown  N/A  0%  0%"
    assert len(rocm_smi.parse(text).gpus) == 4
    for device in ("3       4     0x74a1,   16738 ", "3       [0x74a1 : 0x00]      "):
        assert len(rocm_smi.parse(text.replace(last, device + columns)).gpus) == 3
