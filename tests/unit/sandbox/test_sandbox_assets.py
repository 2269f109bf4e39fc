"""What prepare() builds: packages, signed repositories, images with known digests, keys, addresses."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import subprocess
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.sandbox import assets, network, packages, registry, repository
from provisioner.sandbox.keys import Keys, clearsign, keys
from provisioner.sandbox.runtime import Podman
from provisioner.stack.models import Archive, Image, Package, Repository, Stack


def stack(*packages: Package, suite: str = "/", components: str = "") -> Stack:
    names = sorted({p.repository for p in packages if p.repository})
    repositories = tuple(
        Repository(
            name=n, uri="https://x", suite=suite, components=components, key_url="https://k", fingerprint="0" * 40
        )
        for n in names
    )
    empty = dict.fromkeys(
        ("driver", "driver_branch", "kernel_modules", "fabric_manager", "cuda_driver", "cuda_toolkit", "nccl")
    )
    return Stack(
        os="ubuntu-24.04",
        **empty,
        dcgm=None,
        dcgm_exporter=None,
        container_toolkit=None,
        packages=packages,
        repositories=repositories,
    )


def package(name: str, version: str = "580.173.02-1", repository: str = "cuda") -> Package:
    return Package(name=name, version=version, repository=repository, part="driver")


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return keys(tmp_path_factory.mktemp("keys") / "k")


@pytest.mark.parametrize(
    "name",
    [
        "nvidia-open",
        "nvidia-kernel-open-dkms",
        "nvidia-driver-cuda",
        "libnccl2",
        "cuda-toolkit-13-0",
        "an-unknown-package",
    ],
)
def test_packages_are_read_by_dpkg_and_say_that_they_are_simulated(tmp_path: Path, name: str) -> None:
    deb = packages.build(package(name), [package("libcuda1"), package("libnvidia-ml1")], "amd64")
    file = tmp_path / deb.filename
    file.write_bytes(deb.build())
    fields = subprocess.run(["dpkg-deb", "--field", file], capture_output=True, text=True, check=True).stdout
    assert f"Package: {name}\n" in fields
    assert "Version: 580.173.02-1\n" in fields
    assert "simulated by gpuprov" in fields
    listed = subprocess.run(["dpkg-deb", "--contents", file], capture_output=True, text=True, check=True).stdout
    assert f"./usr/share/doc/{name}/simulated" in listed
    assert (
        deb.build() == packages.build(package(name), [package("libcuda1"), package("libnvidia-ml1")], "amd64").build()
    )


def test_dependencies_are_those_that_the_lock_has() -> None:
    alone = packages.build(package("nvidia-driver-cuda"), [], "amd64")
    assert "Depends" not in alone.fields
    full = packages.build(package("nvidia-driver-cuda"), [package("libcuda1"), package("libnvidia-ml1")], "amd64")
    assert full.fields["Depends"] == "libcuda1 (= 580.173.02-1), libnvidia-ml1 (= 580.173.02-1)"


@pytest.mark.parametrize(
    ("suite", "components", "suite_folder", "index"),
    [
        ("/", "", "", "Packages"),
        ("./", "", "", "Packages"),
        ("jammy", "main", "dists/jammy", "main/binary-amd64/Packages"),
        ("stable", "", "dists/stable", "main/binary-amd64/Packages"),
    ],
)
def test_repositories_are_signed_and_whole(
    tmp_path: Path, secrets: Keys, suite: str, components: str, suite_folder: str, index: str
) -> None:
    lock = stack(package("libnccl2", "2.27.7-1+cuda13.0"), package("nvidia-open"), suite=suite, components=components)
    assert repository.write_repositories(tmp_path, [lock], secrets, "amd64") == 2
    base = tmp_path / repository.folder("cuda", lock.os)
    ring = tmp_path / "ring.gpg"
    subprocess.run(["gpg", "--batch", "--quiet", "--dearmor", "-o", ring, tmp_path / "keys/cuda.asc"], check=True)
    checked = subprocess.run(
        ["gpgv", "--keyring", ring, base / suite_folder / "InRelease"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    release = (base / suite_folder / "Release").read_text()
    listing = (base / suite_folder / index).read_bytes()
    assert f" {hashlib.sha256(listing).hexdigest()} {len(listing)} {index}\n" in release
    assert gzip.decompress((base / suite_folder / f"{index}.gz").read_bytes()) == listing
    for paragraph in listing.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        file = (base / fields["Filename"]).read_bytes()
        assert (len(file), hashlib.sha256(file).hexdigest()) == (int(fields["Size"]), fields["SHA256"])


def test_two_distributions_have_a_repository_each(tmp_path: Path, secrets: Keys) -> None:
    """One fleet of both, or one on its way: the same package of the same version needs other packages there."""
    noble = stack(package("nvidia-open"), package("nvidia-dkms-580-open"))
    debian = stack(package("nvidia-open"), package("nvidia-kernel-open-dkms")).model_copy(update={"os": "debian-12"})
    assert repository.write_repositories(tmp_path, [noble, debian], secrets, "amd64") == 4
    needs = {}
    for os in (noble.os, debian.os):
        listing = (tmp_path / repository.folder("cuda", os) / "Packages").read_text()
        needs[os] = re.findall("^Depends: (\\S+)", listing, re.M)
    assert needs == {noble.os: ["nvidia-dkms-580-open"], "debian-12": ["nvidia-kernel-open-dkms"]}


def test_a_suite_can_not_lead_out_of_its_repository(tmp_path: Path, secrets: Keys) -> None:
    # A lock with such a suite is refused when it is read; this is the second wall.
    lock = stack(package("xx"))
    out = lock.repositories[0].model_copy(update={"suite": "../../../out/"})
    with pytest.raises(GpuprovError, match="points outside"):
        repository.write_repositories(
            tmp_path / "m", [lock.model_copy(update={"repositories": (out,)})], secrets, "amd64"
        )
    assert not (tmp_path / "out").exists()


def test_a_changed_release_is_not_signed(tmp_path: Path, secrets: Keys) -> None:
    inline, _ = clearsign(secrets, "Suite: stable\n")
    (tmp_path / "key.asc").write_text(secrets.public)
    subprocess.run(
        ["gpg", "--batch", "--quiet", "--dearmor", "-o", tmp_path / "ring", tmp_path / "key.asc"], check=True
    )
    (tmp_path / "InRelease").write_text(inline.replace("stable", "stably"))
    assert subprocess.run(
        ["gpgv", "--keyring", tmp_path / "ring", tmp_path / "InRelease"], capture_output=True, check=False
    ).returncode


def test_keys_are_private_made_once_and_fit_together(tmp_path: Path) -> None:
    created = keys(tmp_path / "k")
    assert keys(tmp_path / "k") == created
    assert len(created.fingerprint) == 40
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "k").iterdir()} == {0}
    verified = subprocess.run(
        ["openssl", "verify", "-CAfile", tmp_path / "k/ca.pem", tmp_path / "k/registry.pem"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stderr


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("nvcr.io/nvidia/pytorch:25.10-py3", ("nvcr.io/nvidia/pytorch", "25.10-py3")),
        ("pytorch/pytorch", ("pytorch/pytorch", "latest")),
        ("localhost:5000/a/b:1", ("localhost-5000/a/b", "1")),
        ("localhost:5000/a", ("localhost-5000/a", "latest")),
        ("a/b:1@sha256:" + "ab" * 32, ("a/b", "1")),
    ],
)
def test_names_in_the_registry(reference: str, expected: tuple[str, str]) -> None:
    assert registry.repository_of(reference) == expected


def image(torch: str = "2.9.0") -> Image:
    return Image(
        reference="nvcr.io/nvidia/pytorch:25.10-py3",
        digest="",
        pull="",
        torch=torch,
        cuda="13.0",
        nccl="2.27.7",
        python="3.12",
    )


def test_images_have_a_digest_that_follows_from_their_content(tmp_path: Path) -> None:
    built = registry.build(image(), b"busybox", "amd64")
    assert built == registry.build(image(), b"busybox", "amd64")
    assert built.digest != registry.build(image("2.8.0"), b"busybox", "amd64").digest
    assert registry.pull_name(built) == f"mirror.gpuprov.internal:5000/nvcr.io/nvidia/pytorch@{built.digest}"
    registry.write(tmp_path, [built])
    for digest, blob in built.blobs.items():
        assert digest == "sha256:" + hashlib.sha256(blob).hexdigest()
        assert (tmp_path / f"docker/registry/v2/blobs/sha256/{digest[7:9]}/{digest[7:]}/data").read_bytes() == blob
    manifest = json.loads(built.blobs[built.digest])
    config = json.loads(built.blobs[manifest["config"]["digest"]])
    assert config["config"]["Labels"]["org.gpuprov.simulated"] == "true"
    layer = gzip.decompress(built.blobs[manifest["layers"][0]["digest"]])
    assert config["rootfs"]["diff_ids"] == ["sha256:" + hashlib.sha256(layer).hexdigest()]


def test_node_numbers_stay_when_groups_grow_shrink_and_come(tmp_path: Path) -> None:
    first = network.node_numbers(tmp_path, ["a-0", "a-1", "b-0"])
    grown = network.node_numbers(tmp_path, ["a-0", "a-1", "a-2", "b-0", "c-0"])
    assert {name: grown[name] for name in first} == first
    assert len(set(grown.values())) == 5
    network.node_numbers(tmp_path, ["a-0", "b-0", "c-0"])
    regrown = network.node_numbers(tmp_path, ["a-0", "b-0", "c-0", "d-0"])
    assert regrown["d-0"] not in grown.values()
    assert network.node_numbers(tmp_path, grown) == grown, "they may still have their machines"
    (tmp_path / network.NUMBERS).write_text("{half")
    assert len(set(network.node_numbers(tmp_path, ["a-0", "b-0"]).values())) == 2


def test_more_nodes_than_there_are_numbers_is_refused(tmp_path: Path) -> None:
    full = network.node_numbers(tmp_path, [f"n-{i}" for i in range(250)])
    assert sorted(full.values()) == list(range(4, 254))
    other_nodes = network.node_numbers(tmp_path, ["m-0", "m-1"])
    assert sorted(other_nodes.values()) == sorted({full["n-0"], full["n-1"]})
    with pytest.raises(GpuprovError, match="251 nodes are too many"):
        network.node_numbers(tmp_path, [f"n-{i}" for i in range(251)])


@pytest.fixture
def octets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPUPROV_STATE", str(tmp_path / "state"))
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(network.containers, "octets_in_use", lambda: frozenset({250}))
    monkeypatch.setattr(network.leftovers, "remove", lambda _: [])
    monkeypatch.setattr(network.leftovers, "remove_network", lambda _: None)
    monkeypatch.setattr(network.leftovers, "find_foreign", lambda _: [])
    monkeypatch.setattr(network.layers, "remove_unused", lambda: None)
    return tmp_path


def test_octets_are_one_a_workspace_and_taken_over_when_it_is_gone(octets: Path) -> None:
    for name in ("a", "b"):
        (octets / name).mkdir()
    a, b = network.allocate_octet(octets / "a"), network.allocate_octet(octets / "b")
    assert (a, b) == (249, 248)  # 250 is a container's
    assert network.allocate_octet(octets / "a") == a
    network.release_octet(octets / "a")
    network.release_octet(octets / "a")
    (octets / "b").rmdir()
    (octets / "c").mkdir()
    assert network.allocate_octet(octets / "c") in (a, b)


def test_an_octet_that_cannot_be_cleared_is_not_chosen(octets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = {"gpuprov-249"}
    remaining = ["network namespace netns-1: the device is busy"]
    monkeypatch.setattr(
        network.leftovers, "remove", lambda candidate: list(remaining) if candidate.name in stuck else []
    )
    (octets / "a").mkdir()
    assert network.allocate_octet(octets / "a") == 248
    stuck.add("gpuprov-248")  # no node stands in it: it moves on
    assert network.allocate_octet(octets / "a") == 247
    assert network.owners() == {247: str(octets / "a")}
    stuck.add("gpuprov-247")
    assert network.release_octet(octets / "a") == remaining
    assert network.owners() == {247: str(octets / "a")}
    monkeypatch.setattr(network.containers, "octets_in_use", lambda: frozenset({247}))
    with pytest.raises(ProviderError, match="network namespace netns-1: the device is busy"):
        network.allocate_octet(octets / "a")
    stuck |= {f"gpuprov-{octet}" for octet in network.OCTETS}
    (octets / "b").mkdir()
    with pytest.raises(GpuprovError, match="249: network namespace netns-1: the device is busy"):
        network.allocate_octet(octets / "b")


def test_an_octet_that_is_somebodys_is_not_chosen_and_does_not_stop_down(
    octets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = {"gpuprov-249"}
    monkeypatch.setattr(
        network.leftovers, "find_foreign", lambda candidate: ["lab1"] if candidate.name in foreign else []
    )
    (workspace := octets / "a").mkdir()
    assert network.allocate_octet(workspace) == 248
    foreign.add("gpuprov-248")
    monkeypatch.setattr(network.containers, "octets_in_use", lambda: frozenset({248}))
    assert network.allocate_octet(workspace) == 248  # its nodes stand
    monkeypatch.setattr(network.containers, "octets_in_use", frozenset)
    assert network.release_octet(workspace) == []
    foreign |= {f"gpuprov-{octet}" for octet in network.OCTETS}
    with pytest.raises(GpuprovError, match="248: lab1"):
        network.allocate_octet(workspace)


def test_a_storage_that_fails_is_no_error_of_an_octet(octets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """250 octets failed, and `down` gave none back."""
    (workspace := octets / "a").mkdir()
    calls = list[int]()

    def fail() -> None:
        calls.append(1)
        raise ProviderError("containers-storage layers failed")

    monkeypatch.setattr(network.layers, "remove_unused", fail)
    for command in (network.allocate_octet, network.release_octet):
        with pytest.raises(ProviderError, match="containers-storage layers failed"):
            command(workspace)
    assert len(calls) == 2
    assert network.owners() == {}


def test_subnets_of_this_computer_are_not_used(octets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc/net/route has addresses as numbers of the processor's byte order."""
    routes = octets / "route"
    monkeypatch.setattr(network, "ROUTES", routes)
    head, tail = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT", "\t0\t0\t0"
    rows = ["eth0\t00000000\t01FA4D0A\t3\t0\t0\t0\t00000000", "eth0\t00F84D0A\t00000000\t1\t0\t0\t0\t00FEFFFF"]
    rows.append("cni-podman3\t00F74D0A\t00000000\t1\t0\t0\t0\t00FFFFFF")  # that of a sandbox
    routes.write_text("\n".join([head, *(row + tail for row in rows)]) + "\n")  # 10.77.248.0/23
    (octets / "a").mkdir()
    assert network.allocate_octet(octets / "a") == 247
    monkeypatch.setenv("GPUPROV_SANDBOX_NETWORK", "10.99")
    (octets / "b").mkdir()
    assert network.of_octet(network.allocate_octet(octets / "b")).cidr == "10.99.249.0/24"
    monkeypatch.setenv("GPUPROV_SANDBOX_NETWORK", "10.99.1")
    with pytest.raises(GpuprovError, match="is not two numbers"):
        network.of_octet(7)


def test_a_node_whose_lease_podman_keeps_gets_another_number(octets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workspace := octets / "a").mkdir()
    octet = network.allocate_octet(workspace)
    assert network.node_numbers(workspace, ["n-0", "n-1"]) == {"n-0": 4, "n-1": 5}
    monkeypatch.setattr(network.containers, "octets_in_use", lambda: frozenset({octet}))
    assert network.allocate_octet(workspace) == octet
    assert network.node_numbers(workspace, ["n-0", "n-1"], {4}) == {"n-0": 6, "n-1": 5}
    assert network.node_numbers(workspace, ["n-0", "n-1", "n-2"], {4}) == {"n-0": 6, "n-1": 5, "n-2": 7}
    with pytest.raises(GpuprovError, match="250 nodes are too many for one sandbox cluster, 249 is the most"):
        network.node_numbers(workspace, [f"n-{i}" for i in range(250)], {4})
    monkeypatch.setattr(
        network.leftovers, "leased", lambda candidate: {2} if candidate.name == f"gpuprov-{octet}" else set()
    )
    assert network.allocate_octet(workspace) == 250  # it was the number of the mirror


def test_octets_are_never_given_twice(octets: Path) -> None:
    folders = [octets / f"w{i}" for i in range(24)]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(network.allocate_octet, folders))) == 24


def test_an_archive_is_an_archive_in_a_sandbox_too(tmp_path: Path, secrets: Keys) -> None:
    """Nodes fetch it, compare it and make a repository of it, as of a vendor's."""
    lock = stack(package("efa", "1.50.0-1", "efa"), package("efa-config", "1.50.0-1", "efa"), package("nvidia-open"))
    vendors = Archive(url="https://efa.example.com/efa-1.tar.gz", folder="efa/DEBS/")
    repositories = tuple(
        r.model_copy(update={"archives": (vendors,)}) if r.name == "efa" else r for r in lock.repositories
    )
    sandbox_assets = assets.Assets(
        "i", tmp_path, Podman("podman", "crun"), secrets.fingerprint, "ca", "amd64", b"busybox"
    )
    local = sandbox_assets.localise(lock.model_copy(update={"repositories": repositories}))
    (efa,) = (r for r in local.repositories if r.name == "efa")
    (archive,) = efa.archives
    assert repository.write_repositories(tmp_path / "http", [local], secrets, "amd64") == 3
    served = tmp_path / "http" / archive.url.split("/", 3)[3]
    assert (hashlib.sha256(served.read_bytes()).hexdigest(), served.stat().st_size) == (archive.sha256, archive.size)
    assert not (tmp_path / "http" / "apt" / "efa").exists()
    with tarfile.open(served) as tar:
        inside = {hashlib.sha256(tar.extractfile(m).read()).hexdigest() for m in tar if m.name.endswith(".deb")}  # type: ignore[union-attr]
    assert inside == {p.sha256 for p in local.packages if p.repository == "efa"}
    assert not any(p.sha256 for p in local.packages if p.repository != "efa")
    assert sandbox_assets.localise(local) == local


def test_what_decides_of_packages_is_all_there() -> None:
    """The modules whose change makes the mirror anew are named by file."""
    assert re.fullmatch(r"[0-9a-f]{64}", assets._code())
