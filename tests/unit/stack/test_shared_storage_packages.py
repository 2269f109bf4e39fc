"""What mounts FSx for Lustre and buckets comes from the lock, where a group's site asks for it, signed as all is."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import stack
from provisioner.cli.main import run
from provisioner.sandbox.keys import Keys
from provisioner.spec.models import ClusterSpec
from provisioner.stack import lockfile
from provisioner.stack.facts import rows
from provisioner.stack.models import Lock, Stack
from tests.support.plans import cluster_spec
from tests.support.vendors import Vendors, deb
from tests.unit.stack.test_lock import IMAGE, REPOSITORIES, cluster_yaml

KERNEL = "6.8.0-1066-aws"
MODULES = f"lustre-client-modules-{KERNEL}"
FSX = {"fsx": {"capacity_gib": 1200}}
S3 = {"s3": ({"bucket": "my-data", "path": "/data"},)}


def spec_with(storage: dict[str, Any], **keys: Any) -> ClusterSpec:
    sites = {
        "here": {"provider": "aws", "region": "us-east-1", "storage": storage},
        "there": {"provider": "aws", "region": "us-west-2"},
    }
    groups = {
        "train": {"machine": "p4d.24xlarge", "site": "here"},
        "other": {"machine": "p4d.24xlarge", "site": "there"},
    }
    document = cluster_spec("p4d.24xlarge").model_dump() | {"sites": sites, "groups": groups} | keys
    return ClusterSpec.model_validate(document)


def mounting(solved: Stack) -> dict[str, str]:
    return {p.name: p.version for p in solved.packages if p.part in ("lustre", "mount_s3")}


def test_a_site_that_has_none_asks_for_none() -> None:
    for storage in ({}, {"efs": {}}):
        solved = stack.solve(spec_with(storage))
        assert [mounting(group_stack) for group_stack in solved.values()] == [{}, {}]


def test_the_site_s_groups_get_the_packages_and_no_others() -> None:
    solved = stack.solve(spec_with(FSX | S3, stack={"kernel": KERNEL}))
    assert list(mounting(solved["train"])) == [MODULES, "lustre-client-utils", "mount-s3"]
    assert mounting(solved["other"]) == {}
    assert "sites.here.storage.fsx" in solved["train"].components["lustre"].why
    assert "sites.here.storage.s3" in solved["train"].components["mount_s3"].why
    by_name = {r.name: r for r in solved["train"].repositories}
    assert (by_name["lustre"].suite, by_name["lustre"].fingerprint) == ("noble", "")
    assert by_name["mount-s3"].uri == "file:/var/lib/gpuprov/repositories/mount-s3/"
    (archive,) = by_name["mount-s3"].archives
    assert archive.url.endswith("/1.24.0/x86_64/mount-s3-1.24.0-x86_64.deb")
    assert archive.signature == f"{archive.url}.asc"
    on_jammy = stack.solve(spec_with(FSX, stack={"kernel": KERNEL, "os": "ubuntu-22.04"}))["train"]
    assert {r.name: r.suite for r in on_jammy.repositories}["lustre"] == "jammy"


def test_a_lock_from_before_there_was_storage_no_longer_fits() -> None:
    previous = spec_with({}, stack={"kernel": KERNEL})
    lock = Lock(request=stack.request(previous), simulated=True, groups=stack.solve(previous))
    assert lockfile.differences(lock, stack.request(spec_with({"efs": {}}, stack={"kernel": KERNEL}))) == []
    after = stack.request(spec_with(FSX | S3, stack={"kernel": KERNEL}))
    assert lockfile.differences(lock, after) == [
        "sites.here.storage.fsx: not there when locked, asked for now",
        "sites.here.storage.s3: not there when locked, asked for now",
    ]


def lustre_debs(kernel: str = KERNEL, version: str = "2.15.6-1fsx34") -> list[Any]:
    return [
        deb(f"lustre-client-modules-{kernel}", version, Depends=f"linux-image-{kernel}, lustre-client-utils"),
        deb("lustre-client-utils", "2.15.6-1fsx34"),
        deb("lustre-client-modules-aws", "6.17.0.1019", Depends=MODULES),
    ]


@pytest.fixture
def written(vendors: Vendors, keys: Keys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """cluster.yaml of a p4d with both, whose vendors are on loopback: AWS's Lustre repository too."""
    vendors.image(IMAGE, "25.10-py3")
    vendors.publish("lustre", lustre_debs(), keys, suite="noble", components="main")
    vendors.publish("mount-s3", [deb("mount-s3", "1.17.0"), deb("mount-s3", "1.24.0")], keys)
    lustre_row = {
        **rows("repositories")["lustre"],
        "uri": f"{vendors.url}/lustre",
        "key_url": f"{vendors.url}/lustre.asc",
    }
    monkeypatch.setitem(rows("repositories"), "lustre", lustre_row)
    file = cluster_yaml(vendors, keys, tmp_path, kernel=KERNEL)
    change(file, sites={"virginia": {"provider": "aws", "region": "us-east-1", "storage": {
        "fsx": {"capacity_gib": 1200}, "s3": [{"bucket": "my-data", "path": "/data"}]}}})  # fmt: skip
    set_repository(file, "lustre", {"fingerprint": keys.fingerprint})
    set_repository(file, "mount-s3", {"uri": f"{vendors.url}/mount-s3/", "key": f"{vendors.url}/mount-s3.asc",
                           "fingerprint": keys.fingerprint})  # fmt: skip
    return file


def change(file: Path, **keys: Any) -> None:
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | keys, sort_keys=False))


def set_repository(file: Path, name: str, repository: dict[str, str] | None) -> None:
    document = yaml.safe_load(file.read_text())
    document["stack"]["repositories"].pop(name, None)
    if repository is not None:
        document["stack"]["repositories"][name] = repository
    file.write_text(yaml.safe_dump(document, sort_keys=False))


def test_the_newest_of_each_and_what_it_needs_is_locked(written: Path, keys: Keys) -> None:
    assert run(["lock", str(written)]) == 0
    lock = lockfile.read(written.with_name("cluster.lock"))
    assert lock is not None
    train = lock.groups["train"]
    assert mounting(train) == {MODULES: "2.15.6-1fsx34", "lustre-client-utils": "2.15.6-1fsx34", "mount-s3": "1.24.0"}
    assert {r.name for r in train.repositories} == {*REPOSITORIES, "lustre", "mount-s3"}
    (lustre,) = (r for r in train.repositories if r.name == "lustre")
    assert (lustre.suite, lustre.components, lustre.fingerprint) == ("noble", "main", keys.fingerprint)
    assert train.kernel == KERNEL


def refused(file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert run(["lock", str(file)]) == 2
    error_text = capsys.readouterr().err
    assert "Traceback" not in error_text
    return error_text


def test_a_key_that_nobody_vouches_for_is_asked_for(
    written: Path, vendors: Vendors, capsys: pytest.CaptureFixture[str]
) -> None:
    set_repository(written, "lustre", None)
    error_text = refused(written, capsys)
    assert "group train needs AWS's Lustre client, and no two sources confirm the fingerprint" in error_text
    assert "cluster.yaml:7" in error_text and "lustre: { fingerprint: … }" in error_text
    assert not vendors.asked("InRelease")


def test_another_key_than_the_one_that_is_named_is_refused(
    written: Path, keys: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    set_repository(written, "lustre", {"fingerprint": "0123456789ABCDEF0123456789ABCDEF01234567"})
    error_text = refused(written, capsys)
    assert "repository lustre" in error_text and keys.fingerprint in error_text


def test_a_repository_of_one_s_own_for_mount_s3_has_an_address(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_repository(written, "mount-s3", {"fingerprint": "0123456789ABCDEF0123456789ABCDEF01234567"})
    assert run(["validate", str(written)]) == 2
    assert "the vendor of mount-s3 has no apt repository: one of your own needs uri" in capsys.readouterr().out


def test_a_mount_s3_that_systemd_can_t_call_is_refused(
    written: Path, vendors: Vendors, keys: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(vendors.root / "mount-s3")
    vendors.publish("mount-s3", [deb("mount-s3", "1.9.1"), deb("mount-s3", "1.17.0")], keys)
    assert "has no mount-s3 1.18.0 or newer; newest there: 1.17.0, 1.9.1" in refused(written, capsys)


def test_a_kernel_that_has_no_modules_is_refused_with_those_that_have(
    written: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written.write_text(written.read_text().replace(KERNEL, "6.8.0-1067-aws"))
    error_text = refused(written, capsys)
    assert "repository lustre has no package lustre-client-modules-6.8.0-1067-aws" in error_text
    assert f"similar names there: {MODULES}" in error_text and "stack.kernel chooses" in error_text
