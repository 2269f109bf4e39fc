"""What the probe reads of a machine's platform and what it asks outside, on files and servers of this computer."""

from __future__ import annotations

import base64
import json
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from provisioner.verify.parsers import Unreadable, p2p
from provisioner.verify.parsers import reach as reach_parser
from provisioner.verify.parsers import shared as shared_parser
from provisioner.verify.parsers.host_platform import FORWARDING, read_libraries, read_offset, read_pcie, read_remote
from provisioner.verify.probe import host_disks, host_platform, host_software, node, reach, runner, shared
from tests.support.healthy_host import KEY


def space(*capabilities: tuple[int, int]) -> bytes:
    """A bridge's configuration space with these extended capabilities: (id, control register), one after the other."""
    raw = bytearray(4096)
    for number, (kind, control) in enumerate(capabilities):
        offset = 0x100 + number * 0x20
        following = offset + 0x20 if number + 1 < len(capabilities) else 0
        struct.pack_into("<IHH", raw, offset, kind | 1 << 16 | following << 20, 0x1F, control)
    return bytes(raw)


@pytest.mark.parametrize(
    ("raw", "control"),
    [
        (space((0x0001, 0), (0x000D, 0x1D)), 0x1D),
        (space((0x000D, 0)), 0),
        (space((0x0001, 7)), None),
        (space((0x0001, 7))[:256], None),  # what a user that is not root may read
        (struct.pack("<I", 0x0001 | 0x100 << 20).rjust(0x104, b"\0") + bytes(64), None),  # it points to itself
    ],
)
def test_the_acs_control_register(tmp_path: Path, raw: bytes, control: int | None) -> None:
    (tmp_path / "config").write_bytes(raw)
    assert host_platform.acs(str(tmp_path / "config")) == control


def test_which_bridges_redirect() -> None:
    devices = {"0000:10:1c.0": {"iommu": "identity", "bridges": ["0000:10:00.0", "0000:11:00.0"]}}
    pcie = read_pcie({"devices": devices, "acs": {"0000:10:00.0": FORWARDING, "0000:11:00.0": 0x1, "0000:9:0.0": 0x1D}})
    assert pcie is not None
    assert pcie.redirects == ("0000:10:00.0",)


@pytest.mark.parametrize(
    ("metadata", "kind"),
    [
        ({"instance-type": "p4d.24xlarge"}, "p4d.24xlarge"),
        ({"imds": {"compute": {"vmSize": "Standard_ND96asr_v4"}}}, "Standard_ND96asr_v4"),
        ({"instance": {"instance-type": "ecs.gn7e-c16g1.32xlarge"}}, "ecs.gn7e-c16g1.32xlarge"),
        ({"hostname": "x"}, None),
        (None, None),
    ],
)
def test_what_the_cloud_calls_the_machine(metadata: object, kind: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys of cloud-init's data sources Ec2, Azure and AliYun (cloudinit/sources)."""
    text = json.dumps({"ds": {"meta_data": metadata}})
    monkeypatch.setattr(host_platform, "lines_of", lambda *_: text.splitlines())
    assert host_platform.instance() == kind


def test_what_of_fstab_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ["# x", "//s/share /mnt/s cifs username=u,password=p,nofail 0 0", "UUID=1 / ext4 defaults 0 1", "broken"]
    monkeypatch.setattr(host_platform, "lines_of", lambda *_: rows)
    assert host_platform.fstab() == ["/mnt/s cifs nofail", "/ ext4 defaults"]


@pytest.mark.parametrize(("field", "state"), [("", "none"), ("*", "locked"), ("!$6$x", "locked"), ("$6$x$y", "set")])
def test_of_a_password_only_its_state_travels(field: str, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_platform, "lines_of", lambda *_: ["daemon:*:1::::::", f"root:{field}:20000:0:99999:7:::"])
    assert host_platform.root_password() == state


def test_the_offset_that_chrony_tells() -> None:
    line = "A9FEA97B,169.254.169.123,4,1700000000.1,-0.0512,0.1,0.1,-13.5,0.0,0.02,0.0003,0.0002,16.2,Normal\n"
    assert read_offset(line) == -0.0512
    assert read_offset("506 Cannot talk to daemon\n") is None


class Answers(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(401 if self.path == "/v2/" else 503)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Answers) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


def test_what_the_node_reaches(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "listed", lambda _: [])
    addresses = [f"{server}/v2/", f"{server}/broken", "http://127.0.0.1:9/", "http://[::bad/"]
    parsed = reach_parser.parse(reach.reach(5.0, {"reach": addresses})["text"])
    answers = {row.address: (row.status, row.error.partition(":")[0]) for row in parsed.addresses}
    assert answers[addresses[0]] == (401, "")
    assert answers[addresses[1]] == (503, "")
    assert answers[addresses[2]] == (None, "ConnectionRefusedError")
    assert answers[addresses[3]][0] is None
    assert parsed.proxy is False


def test_a_file_is_written_read_back_and_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = f"server:/x {tmp_path} nfs4 rw,relatime 0 0"
    monkeypatch.setattr(shared, "lines_of", lambda _: [mount])
    document = json.loads(shared.shared(30.0, {"shared": [str(tmp_path)], "writes": True})["text"])
    assert document[str(tmp_path)]["written"]["rc"] == 0
    assert list(tmp_path.iterdir()) == []
    only_looked = json.loads(shared.shared(30.0, {"shared": [str(tmp_path)]})["text"])
    assert "written" not in only_looked[str(tmp_path)]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"rc": 0, "error": ""}, ""),
        ({"rc": 2, "error": "sh: 3: cannot create /fs/.gpuprov-n1: Permission denied"}, ""),
        ({"rc": 1, "error": "sh: printf: I/O error"}, "a write failed: sh: printf: I/O error"),
        ({"rc": 9, "error": "another text is read than was written"}, "a write failed: another text is read"),
        ({"rc": None, "timed_out": True, "seconds": 10.0}, "a write did not end within 10 s"),
    ],
)
def test_what_a_failed_write_says(written: object, message: str) -> None:
    row = {"mounted": "s:/x /fs nfs4 rw", "answers": {"rc": 0}, "written": written}
    (shared_path,) = shared_parser.parse(json.dumps({"/fs": row}))
    assert shared_path.unwritten.startswith(message)
    assert bool(shared_path.unwritten) is bool(message)


def test_a_file_system_of_the_network_is_asked_whether_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount_point = tmp_path / "a b"
    mount_point.mkdir()
    rows = [
        f"server:/x {tmp_path}/a\\040b nfs4 rw 0 0",
        f"x@tcp:/y {tmp_path}/gone lustre rw 0 0",
        "/dev/sda1 / ext4 rw",
    ]
    monkeypatch.setattr(host_disks, "lines_of", lambda _: rows)
    by_path = {row.place: row for row in read_remote(host_disks.remote()) or ()}
    assert (by_path[str(mount_point)].kind, by_path[str(mount_point)].fault) == ("nfs4", "")
    assert "No such file" in by_path[f"{tmp_path}/gone"].fault
    assert len(by_path) == 2


ARMORED = b"""-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEawROKRYJKwYBBAHaRw8BAQdAn0wwkCtik8wrdEtZXGHKcTUjqwxtBxUAKLpJ
SpZJ7la0BmEgdGVzdA==
-----END PGP PUBLIC KEY BLOCK-----
"""
"""A key of gpg 2.2 and its user id, without the signature; gpg itself calls it KEY."""


def test_the_fingerprint_of_a_key_is_what_gpg_says() -> None:
    binary = base64.b64decode(ARMORED.split(b"\n\n")[1].partition(b"\n-")[0])
    newer = b"\xc6" + binary[1:]
    versioned = ARMORED.replace(b"-----\n\n", b"-----\r\nVersion: GnuPG v1\r\n\r\n", 1).replace(
        b"\n-----END", b"\n=uhxK\n-----END"
    )
    assert [host_software.fingerprint(raw) for raw in (ARMORED, binary, newer, versioned)] == [KEY] * 4
    for raw in (b"", b"-----BEGIN PGP", b"<html>", binary[:20], b"\xc6\xff\x00", b"\xff" * 64):
        assert host_software.fingerprint(raw) == ""


@pytest.mark.parametrize(
    ("journal", "has_xid"), [("[    0.0] Linux version 6.8\n[    9.1] NVRM: Xid", True), ("", False)]
)
def test_a_ring_that_was_overwritten_is_read_from_the_journal(
    monkeypatch: pytest.MonkeyPatch, journal: str, has_xid: bool
) -> None:
    outputs = {"dmesg": "[99999.1] late\n", "journalctl": journal}
    monkeypatch.setattr(
        node, "run", lambda argv, _: {"text": outputs[argv[0]], "rc": 0, "seconds": 0.0, "truncated": False}
    )
    assert ("Xid" in node.kernel_log(5.0)["text"]) is has_xid
    assert ("late" in node.kernel_log(5.0)["text"]) is not has_xid


@pytest.mark.parametrize("text", ["", "NVIDIA-SMI has failed", " GPU0\tX\tOK\t\n", " GPU0\tX\tOK\t\n GPU1\tOK\t\n"])
def test_a_matrix_that_is_not_whole_is_unreadable(text: str) -> None:
    with pytest.raises(Unreadable):
        p2p.parse(text)


@pytest.mark.parametrize(("device_count", "attempts", "domains"), [(0, 1, 1), (1, 1, 1), (2, 2, 2), (4, 3, 3)])
def test_efa_devices_that_come_late_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, device_count: int, attempts: int, domains: int
) -> None:
    """With each question one more is there."""
    turns: list[int] = []

    def run(*_: object, **__: object) -> dict[str, object]:
        turns.append(len(turns))
        text = "".join(f"provider: efa\n    domain: rdmap{n}s27-rdm\n" * 3 for n in range(len(turns)))
        return {"text": text, "rc": 0, "timed_out": False, "missing": False}

    monkeypatch.setattr(node, "run", run)
    monkeypatch.setattr(node, "EFA_WAIT_S", 0.0)
    assert node.efa_devices(45.0, device_count)["text"].count("domain:") == 3 * domains
    assert len(turns) == attempts


def test_a_driver_that_the_host_mounts_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a pod of GKE: its programs are in no other folder of PATH, and ldconfig does not know its libraries."""
    (tmp_path / "lib64").mkdir()
    (tmp_path / "bin").mkdir()
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libother.so.1"):
        (tmp_path / "lib64" / name).touch()
    (tmp_path / "bin/nvidia-smi").write_text("#!/bin/sh\necho $LD_LIBRARY_PATH\n")
    (tmp_path / "bin/nvidia-smi").chmod(0o755)
    monkeypatch.setattr(runner, "DRIVER", str(tmp_path))
    monkeypatch.setattr(runner, "PATH", f"/usr/bin:/bin:{tmp_path}/bin")
    monkeypatch.setattr(host_platform, "DRIVER", str(tmp_path))
    assert runner.run(["nvidia-smi"], 5.0)["text"] == f"{tmp_path}/lib64\n"
    names = read_libraries(host_platform.libraries()["text"])
    assert names is not None
    assert {"libcuda.so.1", "libnvidia-ml.so.1"} <= {*names}
    assert "libother.so.1" not in names


def test_without_such_a_driver_no_library_path_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "DRIVER", str(tmp_path))
    assert "LD_LIBRARY_PATH" not in runner.program_environment()
    assert runner.PATH.endswith(":/usr/local/nvidia/bin")
