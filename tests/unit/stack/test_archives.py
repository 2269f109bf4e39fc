"""Packages out of vendors' archives, and `gpuprov lock` of the p4d example, which asks its user for nothing: against
stand-ins of the vendors' servers on loopback, with their addresses, folders and kinds of signatures, and test keys."""

from __future__ import annotations

import copy
import hashlib
import os
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.cli.main import run
from provisioner.sandbox.deb import Deb, File
from provisioner.sandbox.keys import Keys
from provisioner.sandbox.keys import keys as make_keys
from provisioner.stack import archives, lockfile, registry
from provisioner.stack.facts import rows
from provisioner.stack.models import Lock, Repository, on_node
from tests.support.ansible_modules import module, shared
from tests.support.vendors import Vendors, deb, efa_debs

P4D = Path(__file__).resolve().parents[3] / "examples" / "aws-p4d.yaml"
EFA = "efa-installer.amazonaws.com/aws-efa-installer-1.50.0.tar.gz"
DEBS = "aws-efa-installer/DEBS/UBUNTU2404/x86_64"
MOUNT_S3 = "s3.amazonaws.com/mountpoint-s3-release/1.24.0/x86_64/mount-s3-1.24.0-x86_64.deb"


@pytest.fixture
def world(vendors: Vendors, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> Vendors:
    """Every vendor's address leads to loopback, and their keys are the tests'."""
    known = rows("repositories")
    local = copy.deepcopy(known)
    for name, row in local.items():
        if name != "lustre" and row["fingerprint"]:
            row["fingerprint"] = keys.fingerprint
        row["hashes"] = [published_hash for published_hash in row.get("hashes", []) if name not in ("efa",)]
    for name, row in on_loopback(local, vendors.url).items():
        monkeypatch.setitem(known, name, row)
    monkeypatch.setitem(registry.HOSTS, "nvcr.io", f"127.0.0.1:{vendors.port}")
    root = vendors.root
    cuda = "developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64"
    shutil.copytree(root / "cuda", root / cuda)
    (root / cuda / "3bf863cc.pub").write_text(keys.public)
    shutil.copytree(root / "container-toolkit", root / "nvidia.github.io/libnvidia-container/stable/deb/amd64")
    (root / "nvidia.github.io/libnvidia-container/gpgkey").write_text(keys.public)
    efa(vendors, keys)
    vendors.image("nvidia/pytorch", "25.10-py3")
    return vendors


def on_loopback(value: Any, url: str) -> Any:
    """The data with every https://HOST/ replaced by loopback's /HOST/."""
    if isinstance(value, dict):
        return {key: on_loopback(item, url) for key, item in value.items()}
    if isinstance(value, list):
        return [on_loopback(item, url) for item in value]
    return value.replace("https://", f"{url}/") if isinstance(value, str) else value


def efa(vendors: Vendors, keys: Keys, *, signed_by: Keys | None = None, extra: bytes = b"") -> Path:
    """AWS's installer: folders of each distribution, some of them deeper, packages for debugging beside them."""
    folders = {"efa": "efa-driver/", "rdma-core": "rdma-core/"}
    debs = [*efa_debs(), deb("rdma-core", "64.0amzn0-1")]
    files = {f"{DEBS}/{folders.get(d.name, '')}{d.filename}": d.build() for d in debs}
    files[f"{DEBS}/debug/rdma-core/rdma-core-dbgsym_1_amd64.deb"] = deb("rdma-core", "99.0-1").build()
    files["aws-efa-installer/DEBS/UBUNTU2204/x86_64/efa_1_amd64.deb"] = deb("efa", "99.0-1").build()
    files["aws-efa-installer/efa_installer.sh"] = b"#!/bin/bash\n" + extra
    file = vendors.archive(EFA, files)
    vendors.sign(file, signed_by or keys)
    (vendors.root / "efa-installer.amazonaws.com/aws-efa-installer.key").write_text(keys.public)
    return file


@pytest.fixture
def p4d(tmp_path: Path) -> Path:
    return Path(shutil.copy(P4D, tmp_path / "cluster.yaml"))


def locked(file: Path, *arguments: str) -> Lock:
    assert run(["lock", str(file), *arguments]) == 0
    written_lock = lockfile.read(file.with_name("cluster.lock"))
    assert written_lock is not None
    return written_lock


def refused(file: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    previous_bytes = lock.read_bytes() if (lock := file.with_name("cluster.lock")).exists() else None
    assert run(["lock", str(file), *arguments]) == 2
    assert (lock.read_bytes() if lock.exists() else None) == previous_bytes
    error_text = capsys.readouterr().err
    assert "Traceback" not in error_text
    return error_text


def repository(lock: Lock, name: str) -> Repository:
    return next(r for r in lock.groups["train"].repositories if r.name == name)


def test_the_p4d_example_needs_nothing_of_its_user(p4d: Path, world: Vendors, keys: Keys) -> None:
    lock = locked(p4d)
    train = lock.groups["train"]
    efa_repository = repository(lock, "efa")
    assert efa_repository.uri == "file:/var/lib/gpuprov/repositories/efa/"
    (archive,) = efa_repository.archives
    content = (world.root / EFA).read_bytes()
    assert archive.url == f"{world.url}/{EFA}"
    assert (archive.sha256, archive.size) == (hashlib.sha256(content).hexdigest(), len(content))
    assert archive.basis == f"signed by {keys.fingerprint}"
    efas = {p.name: p for p in train.packages if p.repository == "efa"}
    assert efas["efa"].version == "3.1.0-1.amzn1"
    assert efas["libfabric1-aws"].part == "efa"
    # of this distribution, and none for debugging; what the archive has is not left to the distribution
    assert efas["rdma-core"].version == "64.0amzn0-1"
    assert all(re.fullmatch("[0-9a-f]{64}", p.sha256) for p in efas.values())
    assert efas["efa-config"].sha256 == hashlib.sha256(deb("efa-config", "1.18-1.amzn1").build()).hexdigest()
    assert not any(p.sha256 for p in train.packages if p.repository != "efa")


def test_a_second_lock_fetches_no_archive_again(p4d: Path, world: Vendors) -> None:
    locked(p4d)
    first = p4d.with_name("cluster.lock").read_bytes()
    world.seen.clear()
    locked(p4d)
    assert p4d.with_name("cluster.lock").read_bytes() == first
    assert world.asked("aws-efa-installer-1.50.0.tar.gz") == [f"/{EFA}.sig"]


def test_a_tampered_archive_is_refused(p4d: Path, world: Vendors, capsys: pytest.CaptureFixture[str]) -> None:
    file = world.root / EFA
    file.write_bytes(file.read_bytes() + b"x")
    error_text = refused(p4d, capsys)
    assert f"{EFA}: bad signature" in error_text and "possible tampering" in error_text
    assert not archives.kept(f"{world.url}/{EFA}").exists()


def test_a_signature_of_another_key_is_refused(
    p4d: Path, world: Vendors, keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    efa(world, keys, signed_by=make_keys(tmp_path / "stranger"))
    error_text = refused(p4d, capsys)
    assert "signed by another key" in error_text and f"has to be a signature by {keys.fingerprint}" in error_text


def test_a_key_that_is_not_the_pinned_one_is_refused(
    p4d: Path, world: Vendors, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stranger = make_keys(tmp_path / "stranger")
    efa(world, stranger)
    assert "signing key mismatch" in refused(p4d, capsys)


def test_a_signature_that_is_missing_is_refused(p4d: Path, world: Vendors, capsys: pytest.CaptureFixture[str]) -> None:
    (world.root / f"{EFA}.sig").unlink()
    error_text = refused(p4d, capsys)
    assert (
        "no signature at" in error_text
        and "HTTP 404" in error_text
        and "nothing is used that is not signed" in error_text
    )


def test_another_archive_under_the_locked_address_is_refused(
    p4d: Path, world: Vendors, keys: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    """Signed by the right key all the same: it is not what was tested."""
    previous_hash = repository(locked(p4d), "efa").archives[0].sha256
    efa(world, keys, extra=b"# built again\n")
    error_text = refused(p4d, capsys)
    assert (
        f"the lock has {previous_hash}" in error_text and "`gpuprov lock --upgrade efa` takes the new one" in error_text
    )
    after = repository(locked(p4d, "--upgrade", "efa"), "efa").archives[0].sha256
    assert after != previous_hash


def test_a_hash_that_sources_tell_is_compared_beside_the_signature(
    p4d: Path, world: Vendors, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    published_hashes = [{"url": f"{world.url}/{EFA}", "sha256": "0" * 64, "sources": ["one", "another"]}]
    monkeypatch.setitem(rows("repositories")["efa"], "hashes", published_hashes)
    assert f"one and another have {'0' * 64}" in refused(p4d, capsys)


def test_a_cache_that_was_changed_is_fetched_again(p4d: Path, world: Vendors) -> None:
    first = locked(p4d)
    cached_file = archives.kept(f"{world.url}/{EFA}")
    cached_file.write_bytes(cached_file.read_bytes() + b"x")
    assert locked(p4d) == first
    assert cached_file.read_bytes() == (world.root / EFA).read_bytes()


def test_an_archive_without_packages_for_the_distribution(
    p4d: Path, world: Vendors, keys: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    file = world.archive(EFA, {"aws-efa-installer/DEBS/UBUNTU2204/x86_64/efa_1_amd64.deb": deb("efa", "1-1").build()})
    world.sign(file, keys)
    error_text = refused(p4d, capsys)
    assert f"has no packages in {DEBS}/; there: aws-efa-installer/DEBS/UBUNTU2204/x86_64/" in error_text


def test_what_is_no_archive(p4d: Path, world: Vendors, keys: Keys, capsys: pytest.CaptureFixture[str]) -> None:
    (world.root / EFA).write_bytes(b"<html>")
    world.sign(world.root / EFA, keys)
    assert "cannot be opened" in refused(p4d, capsys)
    (world.root / EFA).unlink()
    archives.kept(f"{world.url}/{EFA}").unlink()
    assert "HTTP 404" in refused(p4d, capsys)


def test_one_package_alone_signed_by_the_newer_of_two_keys(
    p4d: Path, world: Vendors, keys: Keys, tmp_path: Path
) -> None:
    """Mountpoint for S3: a .deb with its signature, and a key file that holds a former key too."""
    file = world.root / MOUNT_S3
    file.parent.mkdir(parents=True)
    package = deb("mount-s3", "1.24.0", Depends="fuse")
    file.write_bytes(package.build())
    world.sign(file, keys, ".asc")
    (world.root / "s3.amazonaws.com/mountpoint-s3-release/public_keys").mkdir(parents=True)
    both = keys.public + make_keys(tmp_path / "former").public
    (world.root / "s3.amazonaws.com/mountpoint-s3-release/public_keys/KEYS").write_text(both)
    document = yaml.safe_load(p4d.read_text())
    document["sites"]["virginia"]["storage"] = {"s3": [{"bucket": "my-data", "path": "/data"}]}
    p4d.write_text(yaml.safe_dump(document, sort_keys=False))
    lock = locked(p4d)
    (mount_package,) = (p for p in lock.groups["train"].packages if p.part == "mount_s3")
    assert (mount_package.version, mount_package.sha256) == ("1.24.0", hashlib.sha256(package.build()).hexdigest())


def infiniband(p4d: Path, **stack: object) -> Path:
    document = yaml.safe_load(p4d.read_text())
    document["sites"] = {"rack": {"provider": "baremetal"}}
    document["groups"]["train"] = {"machine": "dgx-h100", "count": 2}
    document["stack"] |= stack
    p4d.write_text(yaml.safe_dump(document, sort_keys=False))
    return p4d


def test_a_hash_that_one_source_tells_is_confirmed_once(
    p4d: Path, world: Vendors, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """DOCA: a .deb with a repository in it, which NVIDIA does not sign."""
    inner = [deb("doca-ofed", "3.2.3019-1", Depends="mlnx-ofed-kernel-dkms"), deb("mlnx-ofed-kernel-dkms", "25.10-1")]
    inner = [*inner[:1], deb("mlnx-ofed-kernel-dkms", "25.10-1", Depends="dkms (>= 2)"), deb("dkms", "3.2.1-MLNX")]
    name = "doca-host_3.2.3-019000-25.10-ubuntu2404_amd64.deb"
    folder = "usr/share/doca-host-3.2.3-019000-25.10-ubuntu2404/repo/pool"
    host = Deb("doca-host", "3.2.3", "amd64", "host", files={f"{folder}/{d.filename}": File(d.build()) for d in inner})
    file = world.root / f"www.mellanox.com/downloads/DOCA/DOCA_v3.2.3/host/{name}"
    file.parent.mkdir(parents=True)
    file.write_bytes(host.build())
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    known = rows("repositories")["doca"]["hashes"]
    ours = {"url": f"{world.url}/{file.relative_to(world.root)}", "sha256": digest, "sources": ["Azure/azhpc-images"]}
    monkeypatch.setitem(rows("repositories")["doca"], "hashes", [*(k for k in known if name not in k["url"]), ours])
    infiniband(p4d, ofed="3.2.3")
    error_text = refused(p4d, capsys)
    assert (
        "no two sources tell the SHA-256" in error_text
        and f"{digest}  {ours['url']} (told by: Azure/azhpc-images)" in error_text
    )
    suggestion = re.search(r"stack:\n +repositories:\n +doca: \{ sha256: \[([0-9a-f]{64})\] \}", error_text)
    assert suggestion and suggestion[1] == digest
    assert re.search(r"cluster\.yaml:\d+", error_text)
    infiniband(p4d, repositories={"doca": {"sha256": [digest]}})
    lock = locked(p4d)
    (archive,) = repository(lock, "doca").archives
    # DOCA's own dkms must not replace the distribution's
    assert {p.name for p in lock.groups["train"].packages if p.part == "ofed"} == {"doca-ofed", "mlnx-ofed-kernel-dkms"}
    assert archive.basis == "SHA-256 confirmed in cluster.yaml, also in Azure/azhpc-images"
    # another file under that address is refused, whatever the user had confirmed
    file.write_bytes(host.build() + b"\n")
    archives.kept(archive.url).unlink()
    assert "the lock has" in refused(p4d, capsys)


def test_hashes_that_no_source_tells_are_asked_for_together(
    p4d: Path, world: Vendors, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = world.root / "developer.download.nvidia.com/compute/redist/gdrcopy/CUDA 12.8/ubuntu24_04/x64"
    folder.mkdir(parents=True)
    for name in ("gdrdrv-dkms", "libgdrapi", "gdrcopy"):
        (folder / f"{name}_2.5.1-1_amd64.Ubuntu24_04.deb").write_bytes(deb(name, "2.5.1-1").build())
    infiniband(p4d, gdrcopy="2.5.1")
    error_text = refused(p4d, capsys)
    hashes = re.search(r"gdrcopy: \{ sha256: \[(.*)\] \}", error_text)
    assert hashes and error_text.count("told by: no source") == 3
    infiniband(p4d, repositories={"gdrcopy": {"sha256": hashes[1].split(", ")}})
    assert {p.name for p in locked(p4d).groups["train"].packages if p.part == "gdrcopy"} == {
        "gdrdrv-dkms", "libgdrapi", "gdrcopy"
    }  # fmt: skip


class Node:
    """What our Ansible module sees of a node: its arguments; files come from loopback."""

    check_mode = False

    def __init__(self, lock: Lock, folder: Path) -> None:
        stack = on_node(lock.groups["train"])
        self.repository = next(r for r in stack["repositories"] if r["name"] == "efa")
        self.packages = self.repository["packages"]
        self.params = {"timeout": 10, "attempts": 1, "pause": 0}
        self.archive = shared("gpuprov_archive")
        self.archive.ROOT = str(folder)
        self.archive.fetch_url = self.fetch_url
        self.fetched: list[str] = []

    def fetch_url(self, _module: object, url: str, timeout: int) -> tuple[Any, dict[str, Any]]:
        self.fetched.append(url)
        return urllib.request.urlopen(url, timeout=timeout), {"status": 200}

    def bring(self) -> bool:
        done: bool = self.archive.bring(self, self.repository)
        return done


def test_a_node_makes_a_repository_of_the_archive(p4d: Path, world: Vendors, tmp_path: Path) -> None:
    """What apt on the node would install from that folder is exactly the lock's."""
    node = Node(locked(p4d), tmp_path / "repositories")
    assert node.bring()
    folder = tmp_path / "repositories" / "efa"
    assert not any("fetching" in f.name or f.name == "archive" for f in folder.iterdir())
    assert apt(folder, node.packages, tmp_path / "apt") == {p["name"]: p["version"] for p in node.packages}
    assert not node.bring(), "a second run changes nothing"
    assert len(node.fetched) == 1
    package = next(folder.glob("efa-config*.deb"))
    package.write_bytes(package.read_bytes() + b"x")
    assert node.bring(), "a package that was changed on the node is replaced"
    assert len(node.fetched) == 2


def test_a_node_refuses_another_archive_than_the_locked_one(
    p4d: Path, world: Vendors, keys: Keys, tmp_path: Path
) -> None:
    node = Node(locked(p4d), tmp_path / "repositories")
    efa(world, keys, extra=b"other\n")
    node.repository["archives"][0]["size"] = (world.root / EFA).stat().st_size
    with pytest.raises(node.archive.AptError, match="is not the locked file"):
        node.bring()
    assert not (tmp_path / "repositories" / "efa").exists()
    assert list((tmp_path / "repositories").iterdir()) == []


def apt(folder: Path, packages: list[dict[str, str]], at: Path) -> dict[str, str]:
    """What apt would install of these, in a world of its own."""
    apt_repositories = module("apt_repositories")
    apt_repositories.gpuprov_archive.ROOT = str(folder.parent)
    for name in (
        "lists/partial",
        "cache/archives/partial",
        "etc/sources.list.d",
        "etc/apt.conf.d",
        "etc/preferences.d",
    ):
        (at / name).mkdir(parents=True)
    source = {"name": "efa", "uri": f"file:{folder}/", "suite": "/", "components": "", "archives": [{}]}
    (at / "etc/sources.list.d/efa.sources").write_text(apt_repositories.source(source, ""))
    status_text = "".join(
        f"Package: {name}\nStatus: install ok installed\nVersion: 3\nArchitecture: amd64\n"
        "Maintainer: t\nDescription: t\n\n"
        for name in ("dkms",)
    )
    (at / "status").write_text(status_text)
    (at / "apt.conf").write_text(
        f'Dir::Etc "{at}/etc"; Dir::State "{at}"; Dir::State::status "{at}/status"; Dir::State::lists "{at}/lists"; '
        f'Dir::Cache "{at}/cache"; APT::Architecture "amd64"; APT::Architectures {{ "amd64"; }}; '
        'APT::Sandbox::User "root"; Acquire::Languages "none";'
    )
    env = {"PATH": os.environ["PATH"], "APT_CONFIG": str(at / "apt.conf"), "LC_ALL": "C"}
    done = subprocess.run(["apt-get", "update", "-q"], env=env, check=True, capture_output=True, text=True, timeout=60)
    assert "W:" not in done.stderr, done.stderr
    names = [f"{p['name']}={p['version']}" for p in packages]
    command = ["apt-get", "-s", "install", "--no-install-recommends", *names]
    out = subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=60).stdout
    return dict(re.findall(r"^Inst (\S+) \((\S+) ", out, re.MULTILINE))


@pytest.mark.parametrize(
    ("repository_keys", "message"),
    [
        ({"fingerprint": "0" * 40}, "the vendor of efa has no apt repository"),
        ({"uri": "https://mirror.example.com/efa/", "key": "efa.asc"}, "fingerprint is missing"),
        ({}, "fingerprint is missing"),
        ({"sha256": ["0" * 63]}, "SHA-256"),
    ],
)
def test_what_is_wrong_in_cluster_yaml(
    repository_keys: dict[str, object], message: str, p4d: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = yaml.safe_load(p4d.read_text())
    document["stack"]["repositories"] = {"efa": repository_keys}
    p4d.write_text(yaml.safe_dump(document, sort_keys=False))
    assert run(["validate", str(p4d)]) == 2
    assert message in capsys.readouterr().out
