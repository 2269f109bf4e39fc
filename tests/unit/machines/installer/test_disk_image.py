"""A golden disk image: which files are refused, what is served of one, and what the machine is told."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path

import pytest
import urllib3

from provisioner import spec
from provisioner.common.errors import GpuprovError
from provisioner.common.paths import ClusterPaths
from provisioner.machines.installer import disk_image, iso, ramdisk, report, serve, source
from provisioner.machines.installer.seed import Address, Target
from provisioner.machines.providers import first_boot
from provisioner.transport import ssh_pins
from tests.support.golden import SECTOR, raw

KEY = "ssh-ed25519 " + "A" * 68
TOKEN = "ab" * 16
TARGET = Target("n1.lab", "ubuntu", KEY, ("GPU-0001",), TOKEN, report=f"https://10.0.0.5:8443/{TOKEN}")
IMAGE = disk_image.DiskImage(Path("x.zst"), "0" * 64, 1 << 20)
CONFIG = first_boot.cloud_config("ubuntu", KEY)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"QFI\xfb", "is a qcow2 image"),
        (b"\x28\xb5\x2f\xfd", "is compressed"),
        (b"\x1f\x8b", "is compressed"),
        (b"\x55\xaa", "has no GUID partition table"),
        (b"", "has no GUID partition table"),
        (b"\0" * SECTOR + b"EFI PART" + b"\0" * 4096, "has no EFI system partition"),
    ],
)
def test_what_is_no_disk_that_starts_by_uefi_is_refused(tmp_path: Path, head: bytes, message: str) -> None:
    image = tmp_path / "golden.raw"
    image.write_bytes(head)
    with pytest.raises(GpuprovError, match=message) as refused:
        source.refuse_unfit_disk(image)
    assert "install.image: the .raw of `gpuprov image build`" in refused.value.hint
    source.refuse_unfit_disk(raw(image))


def test_a_disk_that_is_cut_or_cannot_grow_is_refused(tmp_path: Path) -> None:
    image = raw(tmp_path / "golden.raw", mib=2)
    content = image.read_bytes()
    image.write_bytes(content[: 1 << 20])
    with pytest.raises(
        GpuprovError, match="is cut: it has 1,048,576 bytes, and its partition table is of a disk of 2,09"
    ):
        source.refuse_unfit_disk(image)
    first = 2 * SECTOR + 32
    image.write_bytes(content[:first] + (2000).to_bytes(8, "little") + content[first + 8 :])
    with pytest.raises(GpuprovError, match="has its EFI system partition last"):
        source.refuse_unfit_disk(image)


def test_validate_looks_at_the_image(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "name: lab\nsites:\n  one:\n    provider: baremetal\n    method: redfish\n    credentials: env:BMC\n"
        f"    install: {{ image: golden.raw, sha256: {'a' * 64} }}\n    hosts: {{ n1: {{ bmc: b1 }} }}\n"
        "groups: { train: { machine: dgx-h100 } }\n"
    )

    def problem_lines() -> list[str]:
        return [f"{problem.line}:{problem.path}: {problem.message}" for problem in spec.unready(file, spec.load(file))]

    at = "7:sites.one.install.image:"
    image = tmp_path / "golden.raw"
    assert problem_lines() == [f'{at} "{image}" is not there']
    image.write_bytes(b"QFI\xfb")
    assert problem_lines() == [f"{at} {image} is a qcow2 image"]
    raw(image)
    assert problem_lines() == []


@pytest.mark.skipif(not shutil.which("zstd"), reason="needs zstd")
def test_an_image_is_compressed_once_and_only_where_it_is_the_named_one(tmp_path: Path) -> None:
    image, folder = raw(tmp_path / "golden.raw"), tmp_path / "images"
    sha256 = hashlib.sha256(image.read_bytes()).hexdigest()
    with pytest.raises(GpuprovError, match=f"has the SHA-256 {sha256}, not {'0' * 64}"):
        disk_image.prepare(image, "0" * 64, folder)
    assert list(folder.iterdir()) == []
    prepared = disk_image.prepare(image, sha256, folder)
    assert (prepared.sha256, prepared.size) == (sha256, image.stat().st_size)
    decompressed = subprocess.run(["zstd", "-dcq", str(prepared.file)], capture_output=True, check=True).stdout
    assert decompressed == image.read_bytes()
    previous_time = prepared.file.stat().st_mtime_ns
    assert disk_image.prepare(image, sha256, folder).file.stat().st_mtime_ns == previous_time
    with image.open("ab") as longer:
        longer.write(b"x" * SECTOR)
    other = hashlib.sha256(image.read_bytes()).hexdigest()
    assert [disk_image.prepare(image, other, folder).file] == list(folder.iterdir()), "the older one is gone"


def test_the_machine_is_told_no_secret_and_keeps_the_host_key_that_it_makes() -> None:
    texts = {name: text.decode() for name, text in disk_image.files(TARGET, IMAGE, "PEM", CONFIG).items()}
    assert not any("PRIVATE" in text or "ed25519_private" in text for text in texts.values())
    config = json.loads(texts["gpuprov-user-data"].partition("\n")[2])
    assert (config["hostname"], config["fqdn"], config["ssh_deletekeys"]) == ("n1", "n1.lab", False)
    assert config["users"][0]["ssh_authorized_keys"] == [KEY]
    assert json.loads(texts["gpuprov-meta-data"])["instance-id"] == TOKEN
    assert texts["gpuprov-target"].splitlines() == [
        "chosen='by-size'", f"image_sha256='{'0' * 64}'", "image_bytes='1048576'", f"token='{TOKEN}'",
    ]  # fmt: skip
    assert "serials='GPU-0001'" in texts["gpuprov-guard"] and "gpuprov-network-config" not in texts
    assert texts["gpuprov-ca.pem"] == "PEM"
    fixed = Address(IPv4Interface("10.0.0.11/24"), "10.0.0.1", ("10.0.0.2",))
    target = replace(TARGET, mac="52:54:00:00:00:01", fixed=fixed)
    texts = {name: text.decode() for name, text in disk_image.files(target, IMAGE, "", CONFIG).items()}
    assert json.loads(texts["gpuprov-network-config"])["ethernets"]["install"]["addresses"] == ["10.0.0.11/24"]
    assert "gpuprov-ca.pem" not in texts
    assert disk_image.kernel_command_line(target).endswith(" BOOTIF=01-52-54-00-00-00-01")


def test_what_is_put_beside_the_ramdisk_is_an_archive_that_the_kernel_unpacks(tmp_path: Path) -> None:
    if not shutil.which("cpio"):
        pytest.skip("needs cpio")
    packed = gzip.decompress(iso.in_memory({"gpuprov-install": b"true\n", "scripts/gpuprov": b"x"}))
    listed = subprocess.run(["cpio", "-t", "--quiet"], input=packed, capture_output=True, check=True).stdout
    assert listed.split() == [b"gpuprov-install", b"scripts/gpuprov"]


@pytest.mark.parametrize(
    ("segments", "body", "expected_report"),
    [
        (["installed"], KEY.encode() + b"\n", report.Report(host_key=KEY)),
        (["installed"], b"", report.Report()),
        (["installed"], b"ssh-rsa " + b"A" * 68, report.Report()),
        (["installed"], KEY.encode() + b"\n\nnode ssh-ed25519 AAAA", report.Report()),
        (["refused", "data"], b"", report.Report("data")),
        (["refused", "nonsense"], b"", None),
        (["refused", report.AGAIN], b"", None),
        (["refused"], b"", None),
        (["installed", "data"], b"", None),
    ],
)
def test_reports(segments: list[str], body: bytes, expected_report: report.Report | None) -> None:
    assert report.read(segments, body) == expected_report


def test_the_image_and_reports_are_served_to_those_who_have_a_token(tmp_path: Path) -> None:
    (tmp_path / "install.iso").write_bytes(b"iso")
    (tmp_path / "x.zst").write_bytes(b"disk")
    with serve.serving("127.0.0.1", 0, tmp_path) as images:
        images.files[TOKEN] = tmp_path / "install.iso"
        ca = tmp_path / "ca.pem"
        ca.write_text(images.certificate)
        assert "PRIVATE" not in images.certificate
        with urllib3.PoolManager(ca_certs=str(ca)) as web:
            ours, other = images.base(TOKEN), images.base("cd" * 16)
            assert web.request("GET", f"{ours}/disk.zst").status == 404, "none is served"
            images.disk = tmp_path / "x.zst"
            assert web.request("GET", f"{ours}/disk.zst").data == b"disk"
            for path in (f"{other}/disk.zst", f"{ours}/x.zst", f"{ours}/refused/nonsense", f"{other}/refused/data"):
                assert web.request("GET", path).status == 404, path
            assert (web.request("HEAD", f"{ours}/refused/data").status, images.reports) == (404, {})
            assert web.request("GET", f"{ours}/refused/data").status == 200
            assert images.reports == {TOKEN: report.Report("data")}
            assert web.request("POST", f"{other}/installed", body=KEY).status == 404
            assert web.request("POST", f"{ours}/installed", headers={"Content-Length": "2000"}).status == 413
            assert web.request("POST", f"{ours}/installed", body=KEY).status == 200
            assert images.reports == {TOKEN: report.Report(host_key=KEY)}
            assert web.request("GET", f"{ours}/disk.zst").status == 404, "it is written to once"
            assert web.request("GET", f"{ours}/refused/fetch").status == 200
            assert images.reports == {TOKEN: report.Report(report.AGAIN, KEY)}
    assert (images.sent, images.fetched) == ({TOKEN: 4}, {})
    with serve.serving("127.0.0.1", 0, tmp_path) as second:  # a run that was killed: its installers know this one
        assert second.certificate == images.certificate
    assert {path.stat().st_mode & 0o777 for path in tmp_path.glob("serving-*.pem")} == {0o600}


def test_a_reported_host_key_is_pinned_by_the_machines_name(tmp_path: Path) -> None:
    paths = ClusterPaths(tmp_path / "cluster.yaml", "lab", sandbox=False)
    ssh_pins.pin(paths, "n1.lab", KEY)
    other = KEY.replace("AA", "BB")
    ssh_pins.pin(paths, "n2.lab", KEY)
    ssh_pins.pin(paths, "n1.lab", other)
    assert sorted(ssh_pins.load_pins(paths).values()) == [("n1.lab", other), ("n2.lab", KEY)]


def test_a_ramdisk_that_can_not_be_made_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GpuprovError, match=r"mmdebstrap.* is missing") as refused:
        ramdisk.make("http://deb.debian.org/debian")
    assert refused.value.hint == "sudo apt-get install -y mmdebstrap debian-archive-keyring"
    fails = tmp_path / "mmdebstrap"
    fails.write_text("#!/bin/sh\necho 'I: downloading' >&2\necho 'E: no such suite' >&2\nexit 1\n")
    fails.chmod(0o755)
    monkeypatch.setattr(ramdisk, "KEYRING", fails)
    with pytest.raises(GpuprovError, match="could not be made: E: no such suite"):
        ramdisk.make("http://deb.debian.org/debian")
    assert ramdisk.ready("http://deb.debian.org/debian") is None
    assert list((tmp_path / "cache" / "gpuprov" / "installer").iterdir()) == []
