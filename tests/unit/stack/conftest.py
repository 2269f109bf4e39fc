"""Vendors on loopback for the tests of this folder that read repositories and registries."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.sandbox.keys import Keys
from provisioner.sandbox.keys import keys as make_keys
from provisioner.stack import fetch
from tests.support.vendors import Vendors, cuda_debs, deb, efa_debs, serve, toolkit_debs


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return make_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def _served(tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> Iterator[Vendors]:
    with serve(tmp_path_factory.mktemp("vendors")) as vendors:
        vendors.publish("cuda", cuda_debs(), keys)
        vendors.publish("container-toolkit", toolkit_debs(), keys)
        vendors.publish("acme", [deb("tool", "1.0-1"), deb("tool", "1.1-1")], keys)
        vendors.publish("efa", efa_debs(), keys, suite="noble", components="main extra")
        shutil.copytree(vendors.root, vendors.root.with_name(f"{vendors.root.name}-whole"))
        yield vendors


@pytest.fixture
def vendors(_served: Vendors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Vendors:
    """The vendors as they were at first, an empty cache, no account, no patience."""
    pristine = _served.root.with_name(f"{_served.root.name}-whole")
    shutil.rmtree(_served.root)
    shutil.copytree(pristine, _served.root)
    _served.quiet()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "docker"))
    monkeypatch.setattr(fetch, "PAUSE", 0.01)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return _served
