"""What nodes show of real software has a source, and nothing beside it has none."""

from __future__ import annotations

import pytest

from provisioner.sandbox import packages
from provisioner.sandbox.sources import DATA, Shown, source_rows
from provisioner.stack.models import Package

OWN = {"gpuprov-sandbox-boot.service", "gpuprov-sandbox-sys.service"}
"""Units of the simulator itself, which stand for no real ones."""


def test_every_unit_has_a_source() -> None:
    units = {f"units/{item.name}" for item in DATA.joinpath("units").iterdir() if item.name not in OWN}
    assert units == {row.file for row in source_rows().values() if row.file and row.file.startswith("units/")}


@pytest.mark.parametrize("row", source_rows().values(), ids=lambda row: row.name)
def test_a_row_says_what_and_whence(row: Shown) -> None:
    assert row.source.strip()
    assert bool(row.file) != bool(row.texts)
    assert row.file is None or DATA.joinpath(row.file).is_file()


@pytest.mark.parametrize(
    ("other_package", "keeps"), [("nvidia-kernel-common-580", False), ("nvidia-kernel-support", True)]
)
def test_the_persistence_daemon_comes_with_the_unit_of_its_distribution(other_package: str, keeps: bool) -> None:
    both = [
        Package(name=name, version="580.173.02-1", part="driver") for name in ("nvidia-persistenced", other_package)
    ]
    unit = packages.build(both[0], both, "amd64").files["usr/lib/systemd/system/nvidia-persistenced.service"].content
    assert (b"--no-persistence-mode" not in unit, b"StopWhenUnneeded" not in unit) == (keeps, keeps)
