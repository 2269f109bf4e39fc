"""What a cloud's own image was to bring: the driver that is loaded, toolkits, packages that were asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from provisioner.configure.drift import DesiredState, Difference, differences
from provisioner.stack.models import Package, VendorImage
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.facts import read
from tests.unit.verify.test_image_parts import GOOD, texts

FILES = {name: text if isinstance(text, Output) else Output(str(text), 0) for name, text in texts(efa=GOOD).items()}
LOADED = read(Bundle(files=FILES)).module


def package_differences(
    parts: dict[str, str], packages: Sequence[Package] = (), **files: Output | None
) -> list[Difference]:
    """The differences of parts of the image; `files`: replaced in the bundle, None takes one out."""
    bundle = {**FILES, **{name.replace("_txt", ".txt").replace("_", "-"): output for name, output in files.items()}}
    outputs = {name: output for name, output in bundle.items() if output is not None}
    vendor = VendorImage(name="hpc", parts=parts, packages=tuple(packages))
    lock = DesiredState({}, (), (), (), "ubuntu-24.04", vendor=vendor)
    return [d for d in differences(Bundle(files=outputs), lock) if d.kind == "package"]


def package(name: str, *, part: str = "nccl", asked: bool = True) -> Package:
    return Package(name=name, version="2.27.7-1", repository="cuda", part=part, asked=asked)


def test_the_driver_is_the_one_that_is_loaded() -> None:
    assert LOADED is not None
    assert package_differences({"driver": LOADED.version}) == []
    (other,) = package_differences({"driver": "1.2.3"})
    assert (other.subject, other.wanted, other.found, other.mended) == ("driver", "1.2.3", LOADED.version, False)
    assert other.message == f"driver of the image is {LOADED.version}, locked 1.2.3"


def test_a_driver_that_is_not_loaded_is_not_there() -> None:
    (missing,) = package_differences({"driver": "1.2.3"}, nvidia_version_txt=None)
    assert (missing.found, missing.message) == (None, "driver of the image is not there, locked 1.2.3")


@pytest.mark.parametrize(("version", "right"), [("13.0", True), ("12.8.1", True), ("12.9", False)])
def test_one_of_several_toolkits_is_enough(version: str, right: bool) -> None:
    assert (package_differences({"cuda": version}) == []) == right


def test_the_packages_that_were_asked_for_say_the_version() -> None:
    text = str(FILES["packages.txt"].text) + "libother\t9.9.9-1\tii \nlibnccl2\t2.27.7-1\tii \n"
    rows = [package("libother", asked=False), package("libother", part="dcgm"), package("libnccl2")]
    assert package_differences({"nccl": "2.27.7"}, rows, packages_txt=Output(text, 0)) == []
    (other,) = package_differences({"nccl": "2.27.7"}, [package("libother")], packages_txt=Output(text, 0))
    assert other.found == "9.9.9"


def test_packages_that_could_not_be_read_are_told_of_once() -> None:
    assert package_differences({"nccl": "2.27.7", "driver": "1.2.3"}, packages_txt=None) == []
