"""Grafana comes from its maker's signed repository, for head nodes alone, and of the series that needs nothing more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from provisioner import stack
from provisioner.cli.main import run
from provisioner.sandbox.keys import Keys
from provisioner.spec.models import ClusterSpec
from provisioner.stack import lockfile
from provisioner.stack.models import Lock
from tests.support.plans import cluster_spec
from tests.support.vendors import Vendors, deb
from tests.unit.stack.test_lock import IMAGE, REPOSITORIES, cluster_yaml
from tests.unit.stack.test_shared_storage_packages import change, refused, set_repository

HEAD = {"prometheus": {"at": "head"}}
GROUPS = {"train": {"machine": "p4d.24xlarge"}, "head": {"machine": "m6i.large"}, "other": {"machine": "m6i.large"}}


def spec_with(**monitoring: object) -> ClusterSpec:
    document = cluster_spec("p4d.24xlarge").model_dump() | {"groups": GROUPS, "monitoring": monitoring}
    return ClusterSpec.model_validate(document)


def test_only_the_head_node_gets_it_and_only_where_cluster_yaml_asks() -> None:
    for monitoring in ({}, HEAD, {"prometheus": {"at": "external"}}):
        assert [s.has("grafana") for s in stack.solve(spec_with(**monitoring)).values()] == [False, False, False]
    solved = stack.solve(spec_with(grafana=True, **HEAD))
    assert {name: group_stack.has("grafana") for name, group_stack in solved.items()} == {
        "train": False, "head": True, "other": False,
    }  # fmt: skip
    (repository,) = solved["head"].repositories
    assert (repository.uri, repository.suite, repository.components) == ("https://apt.grafana.com", "stable", "main")
    assert repository.fingerprint == "B53AE77BADB630A683046005963FA27710458545"
    assert "cluster.yaml asks for monitoring.grafana" in solved["head"].components["grafana"].why


def test_a_lock_from_before_no_longer_fits_and_one_without_it_stays_as_it_is() -> None:
    previous = spec_with(**HEAD)
    lock = Lock(request=stack.request(previous), simulated=True, groups=stack.solve(previous))
    assert not [key for key in lock.request if "grafana" in key]
    (difference,) = lockfile.differences(lock, stack.request(spec_with(grafana=True, **HEAD)))
    assert difference.startswith("monitoring.grafana: not there when locked")


@pytest.fixture
def written(vendors: Vendors, keys: Keys, tmp_path: Path) -> Path:
    vendors.image(IMAGE, "25.10-py3")
    file = cluster_yaml(vendors, keys, tmp_path)
    change(file, monitoring={"grafana": True, **HEAD}, groups=GROUPS)
    own_repository = {
        "uri": f"{vendors.url}/grafana/",
        "key": f"{vendors.url}/grafana.asc",
        "fingerprint": keys.fingerprint,
    }
    set_repository(file, "grafana", own_repository)
    return file


def publish(vendors: Vendors, keys: Keys, *versions: str) -> None:
    shutil.rmtree(vendors.root / "grafana", ignore_errors=True)
    debs = [deb("grafana", version, Depends="adduser, libfontconfig1") for version in versions]
    vendors.publish("grafana", [*debs, deb("grafana-enterprise", "12.4.9")], keys, suite="stable", components="main")


def test_the_newest_that_has_its_data_source_is_locked(written: Path, vendors: Vendors, keys: Keys) -> None:
    publish(vendors, keys, "11.6.14", "12.4.3", "12.4.10", "12.4.9", "13.0.0~beta1", "13.2.3")
    assert run(["lock", str(written)]) == 0
    lock = lockfile.read(written.with_name("cluster.lock"))
    assert lock is not None
    (package,) = (p for p in lock.groups["head"].packages if p.part == "grafana")
    assert (package.name, package.version, package.repository) == ("grafana", "12.4.10", "grafana")
    assert {r.name for r in lock.groups["train"].repositories} == set(REPOSITORIES)
    assert {r.name for r in lock.groups["head"].repositories} == {"grafana"}


def test_a_locked_version_stays_until_somebody_asks_for_a_newer_one(
    written: Path, vendors: Vendors, keys: Keys
) -> None:
    def locked_version(*arguments: str) -> str:
        assert run(["lock", str(written), *arguments]) == 0
        lock = lockfile.read(written.with_name("cluster.lock"))
        assert lock is not None
        return next(p.version for p in lock.groups["head"].packages if p.part == "grafana")

    publish(vendors, keys, "12.4.3")
    assert locked_version() == "12.4.3"
    publish(vendors, keys, "12.4.3", "12.4.10")
    assert locked_version() == "12.4.3"
    assert locked_version("--upgrade", "grafana") == "12.4.10"


def test_a_repository_without_such_a_version_is_refused(
    written: Path, vendors: Vendors, keys: Keys, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(vendors, keys, "12.4.2", "13.2.3")
    expected = "has no grafana 12.4.3 or newer, older than 13; newest there: 13.2.3, 12.4.2"
    assert expected in refused(written, capsys)
