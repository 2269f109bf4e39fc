"""Parsers without captured output, and all parsers against damaged text: they raise Unreadable and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from provisioner.catalog import load as catalogue
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.facts import read
from provisioner.verify.facts_document import facts_document
from provisioner.verify.parsers import (
    Unreadable,
    apt_config,
    dcgm_exporter,
    dcgmi_diag,
    dgx_release,
    dmesg,
    fi_info,
    framework,
    ibstat,
    images,
    kernel,
    load,
    lsblk,
    lspci,
    nccl_tests,
    nvidia_smi,
    nvlink,
    nvlink_errors,
    os_release,
    packages,
    pci,
    rocm_smi,
    stamp,
    systemd,
    topo,
)
from provisioner.verify.tools import FILES
from tests.support.healthy_load import ran, result

CAPTURES = Path(__file__).parent / "captures"
PARSERS: dict[str, Callable[[str], object]] = {
    "nvidia_smi": nvidia_smi.parse,
    "topo": topo.parse,
    "nvlink": nvlink.parse,
    "nvlink_errors": nvlink_errors.parse,
    "dmesg": dmesg.parse,
    "ibstat": ibstat.parse,
    "fi_info": fi_info.parse,
    "lspci": lspci.parse,
    "dcgm_exporter": dcgm_exporter.parse,
    "rocm_smi": rocm_smi.parse,
    "systemd": systemd.parse,
    "nccl_tests": nccl_tests.parse,
    "dcgmi_diag": dcgmi_diag.parse,
    "lsblk": lsblk.parse,
    "dgx_release": dgx_release.parse,
    "os_release": os_release.parse,
}
UNITS = (
    "Id=docker.service\nLoadState=loaded\nActiveState=active\nSubState=running\nUnitFileState=enabled\nResult=success\n\n"
    "Id=x.service\nLoadState=not-found\nActiveState=inactive\nSubState=dead\nUnitFileState=\nResult=success\n"
)
APT = (
    'APT "";\nAPT::Periodic "";\nAPT::Periodic::Unattended-Upgrade "1";\n'
    'Unattended-Upgrade::Package-Blacklist "";\nUnattended-Upgrade::Package-Blacklist:: "^nvidia-";\n'
    'Unattended-Upgrade::Package-Blacklist:: "[";\n'
)
# dpkg-query of Debian 12.11: the source has another name, another version (a rebuild), or neither
DPKG = (
    "libssl3:amd64\t3.0.19-1~deb12u2\tii \topenssl\t3.0.19-1~deb12u2\n"
    "bash\t5.2.15-2+b8\tii \tbash\t5.2.15-2\n"
    "adduser\t3.134\tii \tadduser\t3.134\n"
)
OTHERS: dict[str, tuple[Callable[[str], object], str]] = {
    "packages": (packages.parse, "adduser\t3.134\tii \nlibc6:amd64\t2.36-9\tii \n"),
    "holds": (packages.parse_holds, "libnccl2\nnvidia-open\n"),
    "framework": (framework.parse, '{"images": [{"reference": "a", "rc": 0, "output": "{\\"torch\\": \\"2.9\\"}"}]}'),
    "images": (images.parse, '{"Id": "sha256:1", "RepoTags": ["a:b"], "RepoDigests": ["a@sha256:2"]}'),
    "failed units": (systemd.parse_failed, "● a.service loaded failed failed A\nb.timer loaded failed failed B\n"),
    "kernel": (kernel.parse, "6.8.0-1024-aws\n"),
    "modules": (kernel.parse_modules, "nvidia 14376960 1 nvidia_uvm, Live 0x0 (O)\n"),
    "unfinished packages": (packages.parse_unfinished, "libnccl2\t2.27.7-1\thF \nlibc6:amd64\t2.36-9\tii \n"),
    "sources": (packages.parse_sources, DPKG),
    "reboot": (kernel.parse_reboot, "*** System restart required ***\nlibc6\n"),
    "stamp": (stamp.parse, '{"fingerprint": "0f", "node": "train-0"}'),
    "units": (systemd.parse_units, UNITS),
    "unattended": (apt_config.parse, APT),
    "load": (load.parse, ran(result(catalogue().machine("p4d.24xlarge")))),
    "load without a result": (load.parse, ran(None, rc=1, error="RuntimeError: no\n")),
}


def texts() -> dict[str, tuple[Callable[[str], object], str]]:
    cases = dict(OTHERS)
    for tool, parse in PARSERS.items():
        for path in sorted((CAPTURES / tool).iterdir()):
            if path.suffix != ".yaml" and path.stat().st_size < 130_000:
                cases[f"{tool}/{path.name}"] = (parse, path.read_bytes().decode())
    return cases


TEXTS = texts()


@pytest.mark.parametrize("name", TEXTS)
def test_damage_never_breaks_a_parser(name: str) -> None:
    parse, text = TEXTS[name]
    chance = random.Random(name)
    other = TEXTS[chance.choice(list(TEXTS))][1]
    damaged = [text[: chance.randrange(len(text))] for _ in range(8)]
    damaged += [text[chance.randrange(len(text)) :] for _ in range(4)]
    for _ in range(12):
        raw = bytearray(text.encode())
        for _ in range(chance.randrange(1, 40)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        damaged.append(raw.decode("utf-8", "replace"))
    lines = text.splitlines()
    damaged += [
        "\n".join(chance.sample(lines, len(lines))),
        "\n".join(a + b for a, b in zip(lines, other.splitlines(), strict=False)),
    ]
    damaged += [line for pair in zip(lines, other.splitlines(), strict=False) for line in ("\n".join(pair),)][:5]
    damaged += [
        "",
        "\n" * 50,
        "\x00" * 100,
        "9" * 5000,
        "[" * 100_000,
        '{"a":' * 50_000,
        "\U0001f600" * 50,
        "NaN",
        "null",
        "[[]]",
        "{}",
    ]
    for mutant in damaged:
        try:
            parse(mutant)
        except Unreadable as error:
            assert str(error)


@pytest.mark.parametrize("name", TEXTS)
def test_line_ends_of_another_system_change_nothing(name: str) -> None:
    parse, text = TEXTS[name]
    try:
        plain = parse(text)
    except Unreadable:
        with pytest.raises(Unreadable):
            parse(text.replace("\n", "\r\n"))
        return
    assert parse(text.replace("\r\n", "\n").replace("\n", "\r\n")) == plain


def test_any_bundle_gives_facts() -> None:
    chance = random.Random(7)
    for _ in range(40):
        noise = {name: Output(bytes(chance.choices(range(256), k=300)).decode("latin-1"), rc=0) for name in FILES}
        document = facts_document(read(Bundle(noise)))
        json.dumps(document)
        assert document["gpus"] is None
        assert {entry["file"] for entry in document["unreadable"]} >= {"nvidia-smi.xml", "topo.txt", "ibstat.txt"}


@pytest.mark.parametrize(
    ("address", "plain"),
    [
        ("00000000:10:1C.0", "0000:10:1c"),
        ("0000:10:1c", "0000:10:1c"),
        ("10:1c.0", "0000:10:1c"),
        ("0008:06:00.0", "0008:06:00"),
    ],
)
def test_a_pci_address_has_one_spelling(address: str, plain: str) -> None:
    assert pci(address) == plain


def test_packages_of_every_state() -> None:
    text = "libnccl2\t2.27.7-1+cuda13.0\tii \nlibc6:amd64\t2.36-9\tii \nold\t1.0\trc \ngone\t\tun \n"
    text += "held\t2:1.0~rc1-1\thi \n"
    assert packages.parse(text) == {"libnccl2": "2.27.7-1+cuda13.0", "libc6": "2.36-9", "held": "2:1.0~rc1-1"}
    assert packages.parse("libnccl2\t2.27.7-1\n") == {"libnccl2": "2.27.7-1"}
    assert packages.parse(DPKG) == {"libssl3": "3.0.19-1~deb12u2", "bash": "5.2.15-2+b8", "adduser": "3.134"}
    assert packages.parse_sources(DPKG) == {"libssl3": "openssl 3.0.19-1~deb12u2", "bash": "bash 5.2.15-2"}
    assert packages.parse_sources(text) == {}
    assert packages.parse_holds("") == ()


def test_framework_reports() -> None:
    banner = "== PyTorch ==\nNOTE: {not json}\n"
    report = json.dumps({"torch": "2.9.0", "cuda": "13.0", "nccl": [2, 27, 7], "python": "3.12.3", "gpus": 8})
    entries = [
        {"reference": "a", "rc": 0, "output": banner + report + "\n"},
        {"reference": "b", "rc": None, "timed_out": True, "output": ""},
        {"reference": "c", "rc": 125, "output": "", "error": "Unable to find image"},
    ]
    a, b, c = framework.parse(json.dumps({"images": entries}))
    assert (a.torch, a.cuda, a.nccl, a.python, a.gpus, a.error) == ("2.9.0", "13.0", "2.27.7", "3.12.3", 8, "")
    assert "deadline" in b.error
    assert "Unable to find image" in c.error
    assert framework.parse(report)[0].torch == "2.9.0"


def test_images_in_a_row_or_in_a_list() -> None:
    tagged = {"Id": "sha256:1", "RepoTags": ["a:1"], "RepoDigests": ["a@sha256:2"]}
    bare = {"Id": "sha256:3", "RepoTags": None, "RepoDigests": None}
    assert images.parse(json.dumps(tagged) + "\n" + json.dumps(bare)) == images.parse(json.dumps([tagged, bare]))
    assert images.parse("[]") == ()
    assert images.tag("docker.io/library/debian") == images.tag("debian:latest")
    assert images.tag("localhost:5000/x") == "localhost:5000/x:latest"


def test_partitions_of_one_amd_gpu_are_one_gpu() -> None:
    card = {"Card Series": "AMD Instinct MI300A", "PCI Bus": "0000:01:00.0", "VRAM Total Memory (B)": "137438953472"}
    parsed = rocm_smi.parse(json.dumps({"card0": card, "card1": card, "card2": card | {"PCI Bus": "0001:01:00.0"}}))
    assert [(gpu.index, gpu.partitions, gpu.memory_mib) for gpu in parsed.gpus] == [(0, 2, 131072), (1, 1, 131072)]


def test_what_nvidia_smi_says_when_it_cannot() -> None:
    assert nvidia_smi.failure("Failed to initialize NVML: Driver/library version mismatch") == "mismatch"
    assert (
        nvidia_smi.failure("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")
        == "no-driver"
    )
    assert nvidia_smi.failure("<nvidia_smi_log>") is None
    assert nvidia_smi.parse("No devices were found\n").gpus == ()


def test_units_with_and_without_a_file() -> None:
    units = systemd.parse_units(UNITS)
    assert units["docker.service"] == systemd.Unit("loaded", "active", "running", "enabled", "success")
    assert (units["x.service"].load, units["x.service"].enabled) == ("not-found", "")


def test_what_unattended_upgrades_spares() -> None:
    config = apt_config.parse(APT)
    assert config.periodic
    assert config.blacklist == ("^nvidia-", "[")
    assert (config.spares("nvidia-modprobe"), config.spares("libnvidia-cfg1"), config.spares("xnvidia-")) == (
        True,
        False,
        False,
    )
    assert not apt_config.parse('APT::Periodic::Unattended-Upgrade "0";\n').periodic


def test_the_newest_kernel() -> None:
    names = [
        "linux-image-6.8.0-1024-aws",
        "linux-image-6.8.0-999-aws",
        "linux-image-aws",
        "linux-image-6.9.0-1-amd64-dbg",
    ]
    assert kernel.newest_kernel(names) == "6.8.0-1024-aws"
    assert kernel.newest_kernel(["linux-image-6.1.0-9-amd64", "linux-image-6.1.0-10-amd64"]) == "6.1.0-10-amd64"
    assert kernel.newest_kernel(["linux-image-unsigned-6.8.0-45-generic"]) == "6.8.0-45-generic"
    assert kernel.newest_kernel(["linux-base"]) is None


def test_services() -> None:
    assert systemd.parse("   Active: activating (auto-restart) (Result: exit-code)").state == "activating"
    assert systemd.parse("Unit nvidia-fabricmanager.service could not be found.").state == "not-found"
    assert systemd.parse_failed("● a.service loaded failed failed A\n") == ("a.service",)
    assert kernel.parse_modules("Module  Size  Used by\nnvidia_peermem  16384  0\n") == ("nvidia_peermem",)
