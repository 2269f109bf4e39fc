"""`gpuprov doctor FILE`: the keys of a lock's repositories, as vendors on loopback have them today."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from provisioner import spec
from provisioner.cli.main import run
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.lifecycle import signing_keys
from provisioner.sandbox.keys import Keys
from provisioner.sandbox.keys import keys as make_keys
from provisioner.stack import openpgp
from tests.support.vendors import Vendors
from tests.unit.stack.test_archives import locked, p4d, world

__all__ = ["p4d", "world"]


def key_findings(file: Path, world: Vendors) -> dict[str, tuple[str, str]]:
    return {d.subject: (d.status, d.found) for d in signing_keys.examine(locked(file))}


def test_keys_that_hold(p4d: Path, world: Vendors, keys: Keys) -> None:
    findings = key_findings(p4d, world)
    assert set(findings) == {"key of cuda", "key of container-toolkit", "key of efa"}
    assert set(findings.values()) == {("ok", "does not expire")}


@pytest.mark.parametrize(
    ("days", "status", "part"),
    [(400, "ok", "valid until 20"), (20, "unknown", "in 20 days"), (-3, "missing", "expired on 20")],
)
def test_a_key_that_ends(
    days: float, status: str, part: str, p4d: Path, world: Vendors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openpgp, "expires", lambda *_: time.time() + days * 86400 + 60)
    finding = key_findings(p4d, world)["key of efa"]
    assert finding[0] == status and part in finding[1]


def test_a_key_that_was_changed_and_one_that_is_gone(
    p4d: Path, world: Vendors, keys: Keys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    locked(p4d)
    (world.root / "efa-installer.amazonaws.com/aws-efa-installer.key").write_text(make_keys(tmp_path / "new").public)
    (world.root / "nvidia.github.io/libnvidia-container/gpgkey").unlink()
    capsys.readouterr()
    assert run(["doctor", str(p4d)]) == 2
    out = capsys.readouterr().out
    assert f"no longer has {keys.fingerprint}" in out and "HTTP 404" in out
    assert "ok       key of cuda" in out


def test_the_end_of_a_key_is_what_gpg_says(keys: Keys) -> None:
    assert openpgp.expires(keys.public.encode(), keys.fingerprint) == 0
    assert openpgp.expires(keys.public.encode(), "0" * 40) is None
    assert openpgp.expires(b"<html>", keys.fingerprint) is None


def test_without_a_lock_it_shows_the_machine_all_the_same(
    tmp_path: Path, p4d: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copy(p4d, tmp_path / "other.yaml"))
    assert run(["doctor", str(other), "--json"]) == 2
    *machine, last = json.loads(capsys.readouterr().out)["findings"]
    assert machine and (last["status"], last["mend"]) == ("unknown", f"gpuprov lock {other}")
    assert last["found"] == "no other.lock: signing keys were not compared"


def test_after_a_sandbox_the_advice_locks_the_real_cluster(
    tmp_path: Path, p4d: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copy(p4d, tmp_path / "other.yaml"))
    private_dir(ClusterPaths(other, spec.load(other).name, sandbox=True).root)
    assert run(["doctor", str(other), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["findings"][-1]["mend"] == f"gpuprov lock {other} --no-sandbox"


def test_a_file_that_is_no_cluster_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", str(tmp_path / "nowhere.yaml")]) == 2
    assert "nowhere.yaml" in capsys.readouterr().err
