"""`gpuprov lock` of a cluster that is not sandbox, from its file to its lock, against vendors on loopback."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
from datetime import date
from pathlib import Path

import pytest
import yaml

from provisioner import spec, stack
from provisioner.cli.main import run
from provisioner.common.events import Events
from provisioner.lifecycle import locking
from provisioner.lifecycle.session import open_cluster
from provisioner.machines.providers.aws.provider import Aws
from provisioner.sandbox.keys import Keys
from provisioner.sandbox.repository import write_repositories
from provisioner.stack import facts, lockfile
from provisioner.stack.models import Lock
from tests.support.vendors import Reply, Vendors, deb, efa_debs

IMAGE = "nvidia/pytorch"
SUBSCRIPTION = "00000000-0000-0000-0000-000000000000"
REPOSITORIES = ("cuda", "container-toolkit", "efa")


def cluster_yaml(vendors: Vendors, keys: Keys, folder: Path, *, without: str = "", **stack: object) -> Path:
    """A p4d cluster whose repositories and image are the loopback vendors'."""
    repositories = {
        name: {"uri": f"{vendors.url}/{name}/", "key": f"{vendors.url}/{name}.asc", "fingerprint": keys.fingerprint}
        for name in REPOSITORIES
        if name != without
    }
    if "efa" in repositories:
        repositories["efa"] |= {"suite": "{codename}", "components": ["main"]}
    document = {
        "name": "vision",
        "sites": {"virginia": {"provider": "aws", "region": "us-east-1"}},
        "groups": {"train": {"machine": "p4d.24xlarge", "count": 4}},
        "stack": {
            "driver": "580",
            "containers": [f"127.0.0.1:{vendors.port}/{IMAGE}:25.10-py3"],
            "repositories": repositories,
            **stack,
        },
    }
    file = folder / "cluster.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


def locked(file: Path, *arguments: str) -> Lock:
    assert run(["lock", str(file), *arguments]) == 0
    written_lock = lockfile.read(file.with_name("cluster.lock"))
    assert written_lock is not None
    return written_lock


def versions(lock: Lock) -> dict[str, str]:
    return {p.name: p.version for p in lock.groups["train"].packages}


@pytest.fixture
def p4d(vendors: Vendors, keys: Keys, tmp_path: Path) -> Path:
    vendors.image(IMAGE, "25.10-py3")
    return cluster_yaml(vendors, keys, tmp_path)


def test_the_whole_closure_at_exact_versions(p4d: Path, vendors: Vendors, capsys: pytest.CaptureFixture[str]) -> None:
    lock = locked(p4d)
    err = capsys.readouterr().err
    assert "37 packages at exact versions, 1 image by digest" in err
    assert not lock.simulated
    train = lock.groups["train"]
    got = versions(lock)
    # the revision is the repository's, the newest of that release
    assert got["nvidia-open"] == "580.173.02-1ubuntu1"
    assert got["nvidia-fabricmanager"] == "580.173.02-1"
    # a name without a branch: the release that goes with the rest, not the newest
    assert got["nvidia-modprobe"] == got["nvidia-persistenced"] == "580.173.02-1ubuntu1"
    # CUDA's parts have numbers of their own
    assert got["cuda-toolkit-13-0"] == "13.0.2-1"
    assert (got["cuda-nvcc-13-0"], got["cuda-crt-13-0"], got["cuda-cudart-13-0"]) == (
        "13.0.96-1",
        "13.0.96-1",
        "13.0.99-1",
    )
    assert got["libnccl2"] == got["libnccl-dev"] == "2.30.4-1+cuda13.0"
    # the installer's parts have numbers of their own, and pull in one that nobody asked for
    assert (got["efa"], got["efa-config"], got["libfabric1-aws"]) == ("3.1.0-1.amzn1", "1.18-1.amzn1", "2.4.0amzn1.0")
    # what only the distribution has is left to apt, and so is what no part of the stack needs
    assert not {"dkms", "libc6", "rdma-core", "xserver-xorg-core", "nvidia-kernel-source-580"} & set(got)
    pulled = {p.name: p.part for p in train.packages if not p.asked}
    assert pulled["nvidia-modprobe"] == "driver"
    assert pulled["cuda-nvcc-13-0"] == "cuda"
    assert pulled["libfabric1-aws"] == "efa"
    # names of the sandbox's closure that this repository has not
    assert "nvidia-firmware-580" not in got
    assert {r.name for r in train.repositories} == set(REPOSITORIES)
    assert train.images[0].digest == vendors.image(IMAGE, "25.10-py3")
    assert train.images[0].pull == f"127.0.0.1:{vendors.port}/{IMAGE}@{train.images[0].digest}"
    assert train.kernel is None
    assert lock.bases["virginia"]["ubuntu-24.04"].id is None
    assert "sign in" in lock.bases["virginia"]["ubuntu-24.04"].why


def test_a_plan_solves_and_writes_no_lock(p4d: Path, vendors: Vendors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Aws, "who", lambda _: None)  # somebody is signed in
    cluster = open_cluster(p4d, sandbox=False)
    planned_lock = locking.current(cluster, Events(), write=False)
    assert not p4d.with_name("cluster.lock").exists()
    assert planned_lock.groups == locked(p4d).groups


def test_a_second_lock_is_the_same_and_reads_no_list_again(
    p4d: Path, vendors: Vendors, capsys: pytest.CaptureFixture[str]
) -> None:
    locked(p4d)
    first = p4d.with_name("cluster.lock").read_bytes()
    assert len(vendors.asked("Packages")) == 3
    vendors.seen.clear()
    capsys.readouterr()
    locked(p4d)
    assert capsys.readouterr().out == "no version changes\n"
    assert p4d.with_name("cluster.lock").read_bytes() == first
    assert len(vendors.asked("InRelease")) == 3
    assert vendors.asked("Packages") == []
    # what is locked is only compared: registries count what is fetched
    assert {method for method, path, _ in vendors.seen if path.startswith("/v2/")} == {"HEAD"}


def test_a_machine_type_for_each_site_has_a_stack_of_its_own(p4d: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = yaml.safe_load(p4d.read_text())
    document["sites"]["east"] = {"provider": "azure", "region": "eastus", "subscription": SUBSCRIPTION}
    types = {"virginia": "p4d.24xlarge", "east": "Standard_NC24ads_A100_v4"}
    document["groups"]["train"] |= {"machine": types, "site": list(types)}
    p4d.write_text(yaml.safe_dump(document, sort_keys=False))
    lock = locked(p4d)
    capsys.readouterr()
    assert [(name, {r.name for r in stack.repositories}) for name, stack in lock.groups.items()] == [
        ("train@virginia", set(REPOSITORIES)), ("train@east", {"cuda", "container-toolkit"})
    ]  # fmt: skip
    assert {site: list(bases) for site, bases in lock.bases.items()} == {site: ["ubuntu-24.04"] for site in types}
    first = p4d.with_name("cluster.lock").read_bytes()
    locked(p4d)
    assert capsys.readouterr().out == "no version changes\n"
    assert p4d.with_name("cluster.lock").read_bytes() == first
    assert run(["lock", str(p4d), "--explain", "driver"]) == 0
    out = capsys.readouterr().out
    assert "train@virginia: driver 580" in out and "train@east: driver 580" in out


@pytest.mark.parametrize(("day", "is_warned"), [(date(2027, 5, 20), False), (date(2027, 5, 22), True)])
def test_facts_that_are_old_are_named(
    day: date, is_warned: bool, p4d: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(facts, "today", lambda: day)
    locked(p4d)
    assert (
        "more than 180 days old: nvidia (2026-11-21), frameworks (2026-11-2" in capsys.readouterr().err
    ) == is_warned


def test_what_is_tried_again_is_told(p4d: Path, vendors: Vendors, capsys: pytest.CaptureFixture[str]) -> None:
    vendors.replies["/cuda/InRelease"] += [Reply(503)]
    vendors.replies[f"/v2/{IMAGE}/manifests/25.10-py3"] += [Reply(429)]
    locked(p4d)
    err = capsys.readouterr().err
    assert "repository cuda: HTTP 503; retrying in" in err
    assert f"image 127.0.0.1:{vendors.port}/{IMAGE}:25.10-py3: HTTP 429; retrying in" in err


def test_the_cache_is_not_trusted(p4d: Path, vendors: Vendors) -> None:
    locked(p4d)
    vendors.seen.clear()
    for file in (Path(os.environ["XDG_CACHE_HOME"]) / "gpuprov" / "indexes").iterdir():
        file.write_bytes(file.read_bytes()[:-1] + b"x")
    locked(p4d)
    assert len(vendors.asked("Packages")) == 3


def test_what_is_locked_stays_until_it_is_named(p4d: Path, vendors: Vendors, keys: Keys) -> None:
    previous = versions(locked(p4d))
    newer = [deb("efa-config", "1.19-1.amzn1"), deb("efa-profile", "1.8-1.amzn1")]
    shutil.rmtree(vendors.root / "efa")
    vendors.publish("efa", [*efa_debs(), *newer], keys, suite="noble", components="main")
    assert versions(locked(p4d)) == previous
    after = versions(locked(p4d, "--upgrade", "efa"))
    assert {n for n in after if after[n] != previous[n]} == {"efa-config", "efa-profile"}


def test_a_tag_that_moved_is_said_and_not_followed(
    p4d: Path, vendors: Vendors, capsys: pytest.CaptureFixture[str]
) -> None:
    digest = locked(p4d).groups["train"].images[0].digest
    moved = vendors.image(IMAGE, "25.10-py3", annotations={"built": "again"})
    capsys.readouterr()
    assert locked(p4d).groups["train"].images[0].digest == digest
    assert "has moved to" in capsys.readouterr().err
    assert locked(p4d, "--upgrade", "driver").groups["train"].images[0].digest == digest
    reference = f"127.0.0.1:{vendors.port}/{IMAGE}:25.10-py3"
    assert locked(p4d, "--upgrade", reference).groups["train"].images[0].digest == moved
    vendors.image(IMAGE, "25.10-py3", annotations={"built": "a third time"})
    assert locked(p4d, "--upgrade").groups["train"].images[0].digest not in (digest, moved)


def test_groups_that_ask_for_the_same_read_once(vendors: Vendors, keys: Keys, tmp_path: Path) -> None:
    vendors.image(IMAGE, "25.10-py3")
    file = cluster_yaml(vendors, keys, tmp_path)
    document = yaml.safe_load(file.read_text())
    document["groups"] |= {"more": {"machine": "p4d.24xlarge"}, "small": {"machine": "g5.xlarge"}}
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    lock = locked(file)
    assert lock.groups["train"].packages == lock.groups["more"].packages
    assert "nvidia-fabricmanager" not in {p.name for p in lock.groups["small"].packages}
    assert len(vendors.asked("InRelease")) == 3


def test_amd_s_repositories_are_locked_at_what_they_have(vendors: Vendors, keys: Keys, tmp_path: Path) -> None:
    rocm = [deb(name, "6.4.4.60404-129~24.04", Depends="rocm-core") for name in ("rocm-smi-lib", "rocminfo", "rccl")]
    hip = deb("hip-runtime-amd", "6.4.43484.60404-129~24.04", Depends="hsa-rocr (>= 1.3), comgr, libnuma1")
    dependencies = [
        deb("rocm-core", "6.4.4.60404-129~24.04"),
        deb("hsa-rocr", "1.15.0.60404-129~24.04"),
        deb("comgr", "3.0-1"),
    ]
    dkms = [deb("amdgpu-dkms", v, Depends="dkms, amdgpu-dkms-firmware (= " + v + ")") for v in ("1:6.12-1", "1:6.9-1")]
    firmware = [deb("amdgpu-dkms-firmware", v) for v in ("1:6.12-1", "1:6.9-1", "1:6.13-1")]
    vendors.publish("rocm", [*rocm, hip, *dependencies], keys, suite="noble", components="main")
    vendors.publish("amdgpu", [*dkms, *firmware], keys, suite="noble", components="main")
    vendors.image(IMAGE, "25.10-py3")
    file = cluster_yaml(vendors, keys, tmp_path)
    document = yaml.safe_load(file.read_text())
    document["sites"]["virginia"] = {"provider": "baremetal"}
    document["groups"]["train"]["machine"] = "amd-mi300x-node"
    document["stack"].pop("driver")
    document["stack"]["repositories"] = {
        name: {"uri": f"{vendors.url}/{name}/", "key": f"{vendors.url}/{name}.asc", "fingerprint": keys.fingerprint}
        for name in ("rocm", "amdgpu")
    }
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    lock = locked(file)
    got = versions(lock)
    assert got["amdgpu-dkms"] == got["amdgpu-dkms-firmware"] == "1:6.12-1"
    assert (got["hsa-rocr"], got["hip-runtime-amd"]) == ("1.15.0.60404-129~24.04", "6.4.43484.60404-129~24.04")
    assert {p.part for p in lock.groups["train"].packages} == {"rocm"}
    assert {r.suite for r in lock.groups["train"].repositories} == {"noble"}


def test_a_mirror_that_changes_no_longer_fits_the_lock(p4d: Path, vendors: Vendors, keys: Keys) -> None:
    lock = locked(p4d)
    assert lockfile.differences(lock, stack.request(spec.load(p4d))) == []
    p4d.write_text(p4d.read_text().replace(f"{vendors.url}/efa/", f"{vendors.url}/elsewhere/"))
    assert lockfile.differences(lock, stack.request(spec.load(p4d))) == [
        f"stack.repositories.efa.uri: {vendors.url}/efa/ when locked, {vendors.url}/elsewhere/ now"
    ]


def test_a_key_beside_cluster_yaml_travels_in_the_lock(p4d: Path, vendors: Vendors, keys: Keys) -> None:
    (p4d.parent / "keys").mkdir()
    (p4d.parent / "keys" / "efa.asc").write_text(keys.public)
    p4d.write_text(p4d.read_text().replace(f"{vendors.url}/efa.asc", "keys/efa.asc"))
    (key,) = (r.key_url for r in locked(p4d).groups["train"].repositories if r.name == "efa")
    head, _, text = key.partition(",")
    assert head == "data:application/pgp-keys;base64"
    assert base64.b64decode(text).decode() == keys.public
    assert vendors.asked("efa.asc") == []


def refused(file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert run(["lock", str(file)]) == 2
    assert not file.with_name("cluster.lock").exists()
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("key: {url}/efa.asc", "key: nowhere.asc"),
            "cannot read signing key nowhere.asc: No such file",
        ),
        (("key: {url}/efa.asc", "key: cluster.yaml"), "is not an OpenPGP public key"),
        (("{url}/efa/", "{url}/nowhere/"), "no repository at"),
        (("{url}/efa.asc", "{url}/nowhere.asc"), "HTTP 404"),
        (("suite: '{{codename}}'", "suite: bookworm"), "no repository at"),
        (("- main", "- other"), "lists no other/binary-amd64/Packages"),
    ],
)
def test_what_is_wrong_with_a_repository_of_one_s_own(
    change: tuple[str, str], message: str, p4d: Path, vendors: Vendors, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = (text.format(url=vendors.url) for text in change)
    assert old in p4d.read_text()
    p4d.write_text(p4d.read_text().replace(old, new))
    err = refused(p4d, capsys)
    assert message in err
    assert "cluster.yaml:2" in err


def test_a_name_that_no_repository_of_a_stack_has(p4d: Path, capsys: pytest.CaptureFixture[str]) -> None:
    p4d.write_text(p4d.read_text().replace("    efa:", "    effa:"))
    assert run(["validate", str(p4d)]) == 2
    assert "unknown repository effa (did you mean efa?)" in capsys.readouterr().out


def test_a_version_that_the_repository_has_not(
    vendors: Vendors, keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vendors.image(IMAGE, "25.10-py3")
    error_text = refused(cluster_yaml(vendors, keys, tmp_path, nccl="2.28.3"), capsys)
    assert "repository cuda has no libnccl2 2.28.3-1+cuda13.0; newest there: 2.30.4-1+cuda13.2" in error_text
    assert "stack.nccl" in error_text


def judge(vendors: Vendors, lock: Lock, keys: Keys, folder: Path) -> dict[str, str]:
    """What apt itself would install for the lock's packages, name → version, in a world of its own: the loopback
    repositories, and a system that has what the distribution is needed for."""
    for name in (
        "lists/partial",
        "cache/archives/partial",
        "etc/apt.conf.d",
        "etc/preferences.d",
        "etc/sources.list.d",
    ):
        (folder / name).mkdir(parents=True)
    (folder / "key.asc").write_text(keys.public)
    sources = "".join(
        f"Types: deb\nURIs: {r.uri}\nSuites: {r.suite}\n"
        + (f"Components: {r.components}\n" if r.components else "")
        + f"Signed-By: {folder}/key.asc\n\n"
        for r in lock.groups["train"].repositories
    )
    (folder / "etc/sources.list.d/vendors.sources").write_text(sources)
    installed = {
        "dkms": "3.0", "libc6": "2.39", "adduser": "3", "build-essential": "12", "rdma-core": "52", "libcap2": "2",
        "xserver-xorg-core": "2:21.1",
    }  # fmt: skip
    (folder / "status").write_text(
        "".join(
            f"Package: {name}\nStatus: install ok installed\nVersion: {version}\nArchitecture: amd64\n"
            "Maintainer: test\nDescription: test\n\n"
            for name, version in installed.items()
        )
    )
    (folder / "apt.conf").write_text(
        f'Dir::Etc "{folder}/etc"; Dir::State "{folder}"; Dir::State::status "{folder}/status"; '
        f'Dir::State::lists "{folder}/lists"; Dir::Cache "{folder}/cache"; APT::Architecture "amd64"; '
        'APT::Architectures { "amd64"; }; APT::Sandbox::User "root"; Acquire::Languages "none";'
    )
    env = {"PATH": os.environ["PATH"], "APT_CONFIG": str(folder / "apt.conf"), "LC_ALL": "C"}
    subprocess.run(["apt-get", "update", "-q"], env=env, check=True, capture_output=True, timeout=60)
    names = [f"{p.name}={p.version}" for p in lock.groups["train"].packages]
    done = subprocess.run(
        ["apt-get", "-s", "install", "--no-install-recommends", *names],
        env=env, check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(re.findall(r"^Inst (\S+) \((\S+) ", done.stdout, re.MULTILINE))


def test_a_sandbox_can_take_its_packages_from_this_lock(p4d: Path, keys: Keys, tmp_path: Path) -> None:
    """The sandbox's mirror has what the lock names, in the same layouts; what it pulls in itself is in the lock too."""
    stack = locked(p4d).groups["train"]
    assert write_repositories(tmp_path / "mirror", [stack], keys, "amd64") == len(stack.packages)
    for name in REPOSITORIES:
        (file,) = (tmp_path / "mirror" / "apt" / name).rglob("Packages")
        text = file.read_text()
        locked_versions = {p.name: p.version for p in stack.packages if p.repository == name}
        mirrored_versions = dict(re.findall(r"^Package: (\S+)\nVersion: (\S+)$", text, re.MULTILINE))
        assert mirrored_versions == locked_versions
        needed = re.findall(r"^Depends: (.*)$", text, re.MULTILINE)
        assert {f"{n} (= {v})" for n, v in locked_versions.items()} >= {
            part for line in needed for part in line.split(", ")
        }


def test_apt_wants_nothing_that_is_not_in_the_lock(p4d: Path, vendors: Vendors, keys: Keys, tmp_path: Path) -> None:
    lock = locked(p4d)
    assert judge(vendors, lock, keys, tmp_path / "apt") == versions(lock)


def test_the_judge_sees_a_lock_that_lacks_a_package(p4d: Path, vendors: Vendors, keys: Keys, tmp_path: Path) -> None:
    lock = locked(p4d)
    stack = lock.groups["train"]
    less = stack.model_copy(update={"packages": tuple(p for p in stack.packages if p.name != "cuda-crt-13-0")})
    assert "cuda-crt-13-0" in judge(
        vendors, lock.model_copy(update={"groups": {"train": less}}), keys, tmp_path / "apt"
    )


def test_processors_that_no_repository_is_read_for_are_refused(
    p4d: Path, vendors: Vendors, capsys: pytest.CaptureFixture[str]
) -> None:
    p4d.write_text(p4d.read_text().replace("p4d.24xlarge", "p6e-gb200.36xlarge"))
    assert run(["lock", str(p4d)]) == 2
    error_text = capsys.readouterr().err
    assert re.search(r"cluster\.yaml:\d+(:\d+)?: p6e-gb200\.36xlarge has arm64 processors", error_text)
    assert not p4d.with_name("cluster.lock").exists()
