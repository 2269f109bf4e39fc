"""Outputs that were cut, because a disk was full, a terminal scrolled or somebody copied too little: a parser says so,
and counts nothing of what is left. Files that were saved on another system are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.verify.bundle import Bundle
from provisioner.verify.parsers import (
    Unreadable,
    dcgm_exporter,
    dmesg,
    fi_info,
    ibstat,
    lspci,
    nvlink,
    nvlink_errors,
    packages,
    systemd,
)


def test_nvlink_cut_in_the_last_gpu() -> None:
    gpus = [f"GPU {i}: NVIDIA H200\n" + "".join(f"\t Link {n}: 26.562 GB/s\n" for n in range(18)) for i in range(2)]
    complete_text = "".join(gpus)
    assert [links.active for links in nvlink.parse(complete_text).values()] == [18, 18]
    for end in ("\t Link 11: 26.562 GB/s\n", "\t Link 11: 26.5", "\t Link 11", "\t Lin"):
        cut = nvlink.parse(gpus[0] + gpus[1].split("\t Link 11")[0] + end)
        assert (cut[0].active, cut[1].active) == (18, None)
    # a GPU that has lost links prints them all the same
    short = nvlink.parse(complete_text[::-1].replace("26.562 GB/s"[::-1], "<inactive>"[::-1], 3)[::-1])
    assert (short[1].active, short[1].inactive) == (15, 3)


def test_nvlink_counters_cut() -> None:
    rows = [f"\t Link {n}: {counter} Errors: 0\n" for n in range(2) for counter in ("Replay", "Recovery", "CRC")]
    with pytest.raises(Unreadable, match="cut"):
        nvlink_errors.parse("GPU 0: NVIDIA H200\n" + "".join(rows[:5]))


def test_a_kernel_log_cut_in_an_xid() -> None:
    (xid,) = dmesg.parse("[1.5] NVRM: Xid (PCI:0000:9b:00): 11").xids
    assert xid.code == 0
    assert [x.code for x in dmesg.parse("[1.5] NVRM: Xid (PCI:0000:9b:00): 11\n[2.5] eth0: up").xids] == [11]


CARD = """\
CA '{0}'
\tCA type: MT4129
\tNumber of ports: 1
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tLink layer: InfiniBand
"""


@pytest.mark.parametrize("end", ["Number of ports: 1\n", "Port 1:", "State: Act", "State: Active"])
def test_ibstat_cut(end: str) -> None:
    one_card, two = CARD.format("mlx5_0"), CARD.format("mlx5_0") + CARD.format("mlx5_1")
    assert [len(ibstat.parse(text).ports) for text in (one_card, two)] == [1, 2]
    for text in (one_card, two) if end != "State: Active" else (two,):
        cut = text[: text.rindex(end) + len(end)]
        if text == one_card:
            with pytest.raises(Unreadable, match="midst"):
                ibstat.parse(cut)
        else:  # the ports before the cut are known, and that there may be more
            parsed = ibstat.parse(cut)
            assert [port.device for port in parsed.ports] == ["mlx5_0"]
            assert "midst of mlx5_1" in parsed.excerpt
    # a tool that broke off says so itself
    assert ibstat.parse(two[: two.rindex("State: Act")] + "\nibpanic: [1] main: stat of IB device failed\n").panic


def test_lspci_cut() -> None:
    with pytest.raises(Unreadable, match="cut"):
        lspci.parse("19:00.0 3D controller [0302]: NVIDIA Corporation [10de:2330] (rev a1)\ne1:00.0 3D contro")


def test_fi_info_cut() -> None:
    entry = (
        "provider: efa\n    fabric: efa\n    domain: rdmap{0}s0-rdm\n    type: FI_EP_RDM\n    protocol: FI_PROTO_EFA\n"
    )
    assert len(fi_info.parse(entry.format(79) + entry.format(80)).devices) == 2
    with pytest.raises(Unreadable, match="cut"):
        fi_info.parse(entry.format(79) + entry.format(80).partition("    type")[0])


def test_samples_cut() -> None:
    text = 'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-0"} 31\nDCGM_FI_DEV_GPU_TEMP{gpu="1",UU'
    with pytest.raises(Unreadable, match="cut"):
        dcgm_exporter.parse(text)


def test_packages_cut() -> None:
    with pytest.raises(Unreadable, match="cut"):
        packages.parse("libc6:amd64\t2.36-9\tii \nlibnccl2\t2.2")


@pytest.mark.parametrize("text", ["Active: activ", "     Active: inact"])
def test_a_state_cut(text: str) -> None:
    with pytest.raises(Unreadable):
        systemd.parse(text)


def test_units_cut() -> None:
    with pytest.raises(Unreadable, match="act"):
        systemd.parse_units("Id=docker.service\nLoadState=loaded\nActiveState=act")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_saved_on_windows(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "lsblk.json").write_bytes('{"blockdevices": []}'.encode(encoding))
    assert Bundle.read(tmp_path).files["lsblk.json"].text == '{"blockdevices": []}'
