"""host.json: what the probe writes on this machine is read; strange values are None, and no text is a traceback."""

from __future__ import annotations

import json
import struct
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provisioner.catalog import load
from provisioner.verify.collect import probe_source
from provisioner.verify.parsers import Unreadable, host, mdstat
from provisioner.verify.parsers.host_hardware import read_cmdline, read_ranges, read_space
from provisioner.verify.parsers.host_software import read_cdi, read_docker, read_down, read_sockets
from provisioner.verify.probe import host as probe_host
from provisioner.verify.probe import host_network, host_software
from tests.support.healthy_host import host_document

DOCUMENT = host_document(load().machine("p4d.24xlarge"), "580.105.08")


def parse(**changed: Any) -> host.Host:
    return host.parse(json.dumps({**DOCUMENT, **changed}))


def test_a_document_is_read() -> None:
    parsed = parse()
    assert parsed.memory is not None
    assert parsed.memory.total == int(1152 * 2**20 * 0.975)
    assert (parsed.cpu.processors, parsed.cpu.threads_per_core) == (96, 2) if parsed.cpu else False
    assert (parsed.numa_nodes, parsed.huge_pages_mode, parsed.synchronised) == (2, "madvise", True)
    assert parsed.cmdline == ("console=tty1", "console=ttyS0", "panic=-1", "ro")
    root = parsed.at("/var/lib/docker")
    assert root is not None
    assert (root.place, round(root.used_share, 2), round(root.inode_share or 0, 2)) == ("/", 0.2, 0.03)
    assert parsed.limits["session"].memlock == (-1, -1)
    assert parsed.sshd == {"port": ("22",), "permitrootlogin": ("without-password",), "passwordauthentication": ("no",)}
    assert parsed.cdi is not None
    assert (parsed.cdi[0].driver, parsed.cdi[0].devices) == ("580.105.08", ("0", "all"))
    assert parsed.disks is not None
    assert [(d.name, d.state, d.wear) for d in parsed.disks] == [("nvme0", "live", None), ("nvme1", "live", 0.03)]
    assert parsed.public == ()
    assert parsed.boots is not None
    assert parsed.boots[-1][0] == "boot"


def test_the_probe_writes_what_the_parser_reads() -> None:
    written = probe_host.host(15, {})
    parsed = host.parse(written["text"])
    assert json.loads(written["text"])["failed"] == {}
    assert parsed.memory is not None
    assert parsed.cpu is not None
    assert parsed.cpu.processors >= 1
    assert parsed.space is not None
    assert parsed.at("/") is not None
    assert parsed.processes is not None
    assert parsed.processes.count > 1
    assert parsed.limits["session"].memlock is not None
    assert parsed.resolve_seconds is not None
    assert parsed.docker is None or parsed.docker.error or parsed.docker.version


def test_the_probe_is_one_program() -> None:
    source = probe_source()
    assert "from provisioner" not in source
    assert source.count("from __future__") == 1
    compile(source, "probe", "exec")


@pytest.mark.parametrize(
    "text", ["", "[]", "null", '{"time": null}', '{"time": 1, "files": []}', "{", "[" * 100_000, "7"]
)
def test_no_document_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        host.parse(text)


def test_a_document_with_nothing_in_it_says_nothing() -> None:
    empty = asdict(host.parse('{"time": 5}'))
    assert {key: value for key, value in empty.items() if value not in (None, {}, ())} == {"time": 5.0}


ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.sampled_from(["", "9" * 40]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(DOCUMENT)), ANYTHING, max_size=6))
def test_any_value_anywhere_is_read_or_left_out(changed: dict[str, Any]) -> None:
    given_time = changed.get("time", 0)
    changed |= {"time": 1.0} if not isinstance(given_time, int | float) else {}
    try:
        parsed = parse(**changed)
    except Unreadable:
        return
    assert parsed.public is not None
    json.dumps(asdict(parsed))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(DOCUMENT["files"])), st.text(max_size=60))
def test_any_text_of_any_file_is_read_or_left_out(name: str, text: str) -> None:
    host.parse(json.dumps({**DOCUMENT, "files": {**DOCUMENT["files"], name: text}}))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["df", "sync", "sshd", "docker"]), st.text(alphabet="/ 0123456789abcdef=\n{}:-", max_size=80))
def test_any_answer_of_any_program_is_read_or_left_out(name: str, text: str) -> None:
    parse(**{name: {"rc": 0, "text": text}})


def test_the_whole_document_cut_anywhere_is_unreadable() -> None:
    text = json.dumps(DOCUMENT)
    for end in range(0, len(text), 97):
        with pytest.raises(Unreadable):
            host.parse(text[:end])


MDSTAT = """\
Personalities : [raid0] [raid1] [linear] [multipath]
md1 : active raid0 nvme3n1[1] nvme2n1[0] nvme5n1[3] nvme4n1[2]
      15002423296 blocks super 1.2 512k chunks

md0 : active raid1 nvme1n1p2[1] nvme0n1p2[2](F)
      1874715648 blocks super 1.2 [2/1] [_U]
      bitmap: 1/14 pages [4KB], 65536KB chunk

md127 : inactive nvme6n1[0](S)
      3750607872 blocks super 1.2

md3 : active (auto-read-only) raid5 sdd[3] sdc[1] sdb[0]
      1953258496 blocks level 5, 512k chunk, algorithm 2 [3/3] [UUU]

unused devices: <none>
"""


def test_arrays() -> None:
    arrays = {a.name: (a.active, a.level, a.members, a.failed, a.missing) for a in mdstat.parse(MDSTAT)}
    assert arrays == {
        "md1": (True, "raid0", 4, 0, 0),
        "md0": (True, "raid1", 2, 1, 1),
        "md127": (False, None, 1, 0, 0),
        "md3": (True, "raid5", 3, 0, 0),
    }


def test_an_array_that_is_broken_or_mended_or_not_understood() -> None:
    (broken,) = mdstat.parse("md1 : broken raid0 nvme5n1[2] nvme4n1[1]\n      9 blocks super 1.2 512k chunks\n")
    assert (broken.active, broken.state) == (False, "broken")
    (rebuilding,) = mdstat.parse(
        "md0 : active raid1 nvme2n1p2[2] nvme0n1p2[0](F)\n      9 blocks [2/1] [_U]\n"
        "      [=>...................]  recovery =  7.1% (1/9) finish=145.2min speed=99K/sec\n"
    )
    assert (rebuilding.missing, rebuilding.lost, rebuilding.rebuilt) == (1, ("nvme0n1p2",), "7.1 %")
    with pytest.raises(Unreadable):
        mdstat.parse("md1 : gone raid0 nvme5n1[2]\n")


def test_rows_of_df_with_spaces_and_without_inodes() -> None:
    text = (
        "Mounted on Filesystem Type 1B-blocks Used Avail Inodes IUsed\n"
        "/mnt/my data /dev/sdb1 vfat 100 40 60 0 0\n/ /dev/sda1 btrfs 1000 10 980 - -\n/bad row\n/x /d t 1 2 - 3 4\n"
    )
    file_systems = read_space(text)
    assert file_systems is not None
    assert [(f.place, f.size, f.inodes) for f in file_systems] == [("/mnt/my data", 100, 0), ("/", 1000, None)]


@pytest.mark.parametrize(
    ("text", "count"), [("0", 1), ("0-1", 2), ("0-3,8", 5), ("", None), ("x", None), ("3-0", None), (None, None)]
)
def test_ranges(text: str | None, count: int | None) -> None:
    assert read_ranges(text) == count


def test_arguments_that_are_a_nodes_own_are_left_out() -> None:
    first = read_cmdline("BOOT_IMAGE=/vmlinuz-6.8 root=UUID=aa ro ip=10.0.0.1::: iommu=pt")
    second = read_cmdline("BOOT_IMAGE=/vmlinuz-6.9 root=UUID=bb ip=10.0.0.2::: iommu=pt ro")
    assert first == second == ("iommu=pt", "ro")


def test_sockets() -> None:
    sockets = read_sockets(
        ["tcp 0.0.0.0 22", "tcp ::ffff:10.0.0.1 5555", "tcp ::1 631", "tcp x 1", "tcp 1.2.3.4 99999"]
    )
    assert sockets is not None
    assert [(s.address, s.port, s.loopback, s.everywhere) for s in sockets] == [
        ("0.0.0.0", 22, False, True),
        ("10.0.0.1", 5555, False, False),
        ("::1", 631, True, False),
    ]


BOND = """\
Bonding Mode: IEEE 802.3ad Dynamic link aggregation
MII Status: up

Slave Interface: ens1f0np0
MII Status: up
Speed: 25000 Mbps

Slave Interface: ens1f1np1
MII Status: down
Speed: Unknown
"""


def test_bonds() -> None:
    assert read_down(BOND) == ("ens1f1np1",)


def test_descriptions_of_two_drivers_in_one_file_name_none() -> None:
    descriptions = read_cdi(
        {"/etc/cdi/a.json": ['"kind": "nvidia.com/gpu",', '"name": "0",', "libcuda.so.580.1", "libcuda.so.570.1"]}
    )
    assert descriptions is not None
    assert (descriptions[0].kinds, descriptions[0].devices, descriptions[0].driver) == (
        ("nvidia.com/gpu",),
        ("0",),
        None,
    )


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"rc": 1, "text": "", "error": "Cannot connect to the Docker daemon"}, "Cannot connect to the Docker daemon"),
        (
            {"rc": 1, "text": "", "error": 'template: :1:18: executing "" at <.ServerVersion>'},
            "the daemon is not there",
        ),
        ({"rc": 0, "text": '{"version": "", "errors": ["permission denied"]}'}, "permission denied"),
        ({"rc": None, "text": "", "timed_out": True}, "it hangs"),
        ({"rc": 0, "text": "{"}, "the daemon is not there"),
    ],
)
def test_why_docker_does_not_answer(said: dict[str, Any], error: str) -> None:
    docker = read_docker(said)
    assert docker is not None
    assert docker.error == error


def test_starts_and_shutdowns_of_wtmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def record(kind: int, user: bytes, when: int) -> bytes:
        return host_software.RECORD.pack(kind, 0, b"~", b"~~", user, b"6.8", 0, 0, 0, when, 0, b"", b"")

    assert host_software.RECORD.size in (384, 400)
    rows = [
        record(2, b"reboot", 100),
        record(7, b"ubuntu", 150),
        record(1, b"shutdown", 200),
        record(1, b"runlevel", 290),
    ]
    (tmp_path / "wtmp").write_bytes(b"".join([*rows, record(2, b"reboot", 300)]) + b"cut")
    real = open
    monkeypatch.setattr(
        "builtins.open", lambda path, *a, **k: real(str(path).replace("/var/log", str(tmp_path)), *a, **k)
    )
    assert host_software.boots() == [["boot", 100], ["shutdown", 200], ["boot", 300]]


def test_no_password_of_a_repository_travels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sources.list").write_text(
        "# deb http://off.example/ x\ndeb [signed-by=/k] https://me:secret@mirror.example/cuda/ /\n"
    )
    folder = tmp_path / "sources.list.d"
    folder.mkdir()
    (folder / "a.sources").write_text(
        "Types: deb\nURIs: http://one.example/a\nSuites: x\n\nEnabled: no\nURIs: http://two/\n"
    )
    (folder / "b.list.save").write_text("deb http://three.example/ x\n")
    real = open
    monkeypatch.setattr(
        "builtins.open", lambda path, *a, **k: real(str(path).replace("/etc/apt", str(tmp_path)), *a, **k)
    )
    monkeypatch.setattr(host_software, "listed", lambda path: [p.name for p in folder.iterdir()])
    assert host_software.sources() == ["http://one.example/a", "https://mirror.example/cuda/"]


def test_the_machines_of_the_kernels_socket_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    four = struct.pack("=I", struct.unpack(">I", bytes([10, 0, 3, 17]))[0]).hex().upper()
    head = "  sl  local_address rem_address   st\n"
    (tmp_path / "tcp").write_text(f"{head}   0: {four}:2553 00000000:0000 0A\n   1: {four}:0016 {four}:9999 01\n")
    (tmp_path / "tcp6").write_text(f"{head}   0: {'0' * 32}:0016 {'0' * 32}:0000 0A\n")
    real = open
    monkeypatch.setattr(
        "builtins.open", lambda path, *a, **k: real(str(path).replace("/proc/net", str(tmp_path)), *a, **k)
    )
    assert host_network.listening() == ["tcp 10.0.3.17 9555", "tcp :: 22"]
