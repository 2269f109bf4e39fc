"""What a cloud's own GPU image was to bring, proven on the node: check image.parts, and what `up` sees of it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from provisioner.configure.drift import DesiredState, differences
from provisioner.stack.models import Package, VendorImage
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.pytest_runner import Case
from tests.support.healthy_bundle import bundle, expected, healthy
from tests.support.judging import judge

ND = "Standard_ND96asr_v4"
NAMES = {"nccl": ["libnccl2"], "dcgm": ["datacenter-gpu-manager-4-core"], "cuda": [], "efa": ["efa"]}
PARTS = {"nccl": "2.27.7", "dcgm": "4.6.0", "cuda": "13.0", "efa": "1.50.0", "driver": "580.105.08"}
HELD = "datacenter-gpu-manager-4-core\t1:4.6.0-1ubuntu2\tii \n"


def texts(**vendor: Any) -> dict[str, str | Output]:
    files = healthy(ND)
    host = json.loads(str(files["host.json"])) | {"vendor": {"cuda": ["12.8.1", "13.0.2"]} | vendor}
    return files | {"host.json": json.dumps(host), "packages.txt": str(files["packages.txt"]) + HELD}


def image_parts_result(files: dict[str, str | Output]) -> tuple[str, str]:
    want = replace(
        expected(ND), brought={part: {"version": v, "packages": NAMES.get(part, [])} for part, v in PARTS.items()}
    )
    result = judge({"node": Case(bundle(files), want)})["node"]
    (check,) = [r for r in result.checks if r.id == "image.parts"]
    return check.status, check.message


GOOD = "# EFA installer version: 1.50.0\n"


def test_packages_toolkits_and_the_installer_prove_the_parts() -> None:
    assert image_parts_result(texts(efa=GOOD))[0] == "pass"


def test_another_version_or_none_is_fatal_and_named() -> None:
    changed = texts(efa="# EFA installer version: 1.47.0\n", cuda=["12.8.1"])
    changed["packages.txt"] = str(changed["packages.txt"]).replace(HELD, "")
    outcome, reason = image_parts_result(changed)
    assert outcome == "fail"
    assert "dcgm is not there, locked 4.6.0" in reason and "cuda is 12.8.1, locked 13.0" in reason
    assert "efa is 1.47.0, locked 1.50.0" in reason and "nccl" not in reason


def test_a_probe_that_does_not_know_what_images_bring_proves_nothing() -> None:
    assert image_parts_result(healthy(ND))[0] == "unknown"


def test_up_does_not_take_another_image_for_the_locked_one() -> None:
    packages = tuple(
        Package(name=name, version=f"{PARTS[part]}-1", repository="cuda", part=part)
        for part, names in NAMES.items()
        for name in names
    )
    vendor = VendorImage(name="ubuntu-hpc", parts={"nccl": "2.27.7", "dcgm": "4.6.0"}, packages=packages)
    lock = DesiredState({}, (), (), (), "ubuntu-24.04", vendor=vendor)
    files = {name: Output(str(text), rc=0) for name, text in texts().items()}
    assert "dcgm" not in str(differences(Bundle(files=files), lock))
    files["packages.txt"] = Output(str(texts()["packages.txt"]).replace("4.6.0", "4.5.2"), rc=0)
    (difference,) = [d for d in differences(Bundle(files=files), lock) if d.subject == "dcgm"]
    assert difference.message == "dcgm of the image is 4.5.2, locked 4.6.0" and not difference.mended
