"""What a builder's system would be made of today, as apt tells it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.lifecycle.images import pipeline, virtual
from provisioner.lifecycle.images.disk import base_system, newest
from provisioner.lifecycle.images.recipe import open_recipe
from provisioner.stack import request, solve
from provisioner.stack.models import BaseImage, Lock
from tests.support.plans import with_digests
from tests.unit.lifecycle.images.test_pipeline import METAL

# apt-get 2.6.1 --simulate install on Debian 12, shortened
SAID = """\
NOTE: This is only a simulation!
      apt-get needs root privileges for real execution.
Reading package lists...
The following NEW packages will be installed:
  base-files libc6 linux-image-6.1.0-56-amd64 linux-image-amd64
Inst base-files (12.4+deb12u14 Debian:12.14/oldstable [amd64])
Inst libc6 [2.36-9] (2.36-9+deb12u14 Debian:12.14/oldstable [amd64])
Inst linux-image-6.1.0-56-amd64 (6.1.192-2 Debian-Security:12/oldstable-security [amd64])
Inst linux-image-amd64 (6.1.192-2 Debian-Security:12/oldstable-security [amd64])
Conf base-files (12.4+deb12u14 Debian:12.14/oldstable [amd64])
"""


class Apt:
    """apt-get that says this of a simulation."""

    def __init__(self, output: str = SAID) -> None:
        self.output, self.calls = output, list[list[str]]()
        self.sources = ""

    def run(self, arguments: list[str], *_: Any, **__: Any) -> str:
        self.calls.append(arguments)
        option = next(argument for argument in arguments if argument.startswith("Dir::Etc::sourcelist="))
        self.sources = Path(option.partition("=")[2]).read_text(encoding="utf-8")
        return self.output if "--simulate" in arguments else ""


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Apt:
    test_apt, keyring = Apt(), tmp_path / "keys.gpg"
    keyring.touch()
    rows = {name: replace(row, keyring=keyring) for name, row in base_system.ARCHIVES.items()}
    monkeypatch.setattr(base_system, "ARCHIVES", rows)
    monkeypatch.setattr(newest.tools, "run", test_apt.run)
    return test_apt


def test_the_kernel_and_all_packages_are_told(apt: Apt, tmp_path: Path) -> None:
    newest_packages = newest.packages("debian-12", None)
    assert newest_packages.versions["libc6"] == "2.36-9+deb12u14"
    assert newest_packages.identity.startswith("linux-image-6.1.0-56-amd64:6.1.192-2:")
    assert BaseImage(id=newest_packages.identity, why="it is one")
    first = f"deb [arch=amd64 signed-by={tmp_path / 'keys.gpg'}] http://deb.debian.org/debian bookworm main"
    assert apt.sources.splitlines()[0] == first
    apt.output = SAID.replace("2.36-9+deb12u14", "2.36-9+deb12u15")
    assert newest.packages("debian-12", None).identity != newest_packages.identity


def test_a_mirror_is_asked_in_place_of_the_archive(apt: Apt, tmp_path: Path) -> None:
    newest.packages("debian-12", "http://mirror.lab/debian")
    assert apt.sources == f"deb [arch=amd64 signed-by={tmp_path / 'keys.gpg'}] http://mirror.lab/debian bookworm main\n"


def test_an_archive_without_a_kernel_and_a_distribution_without_builders_are_refused(apt: Apt) -> None:
    apt.output = SAID.replace("linux-image-6.1.0-56", "linux-headers-6.1.0-56")
    with pytest.raises(ProviderError, match="apt chose no kernel for linux-image-amd64"):
        newest.packages("debian-12", None)
    with pytest.raises(GpuprovError, match=r"not of ubuntu-22\.04"):
        newest.packages("ubuntu-22.04", None)


def test_a_new_kernel_of_the_distribution_is_another_base(tmp_path: Path, apt: Apt) -> None:
    file = tmp_path / "pytorch.yaml"
    file.write_text(METAL.replace("groups:", "stack: { os: debian-12 }\ngroups:"), encoding="utf-8")
    recipe = open_recipe(file, sandbox=False)
    spec = recipe.cluster.spec
    groups = {name: with_digests(stack) for name, stack in solve(spec).items()}
    bases = {"virginia": {"debian-12": BaseImage(id="installed", why="what runs there")}}
    lock = Lock(request=request(spec), simulated=True, bases=bases, groups=groups)
    previous = pipeline.inputs(recipe, virtual.with_bases(recipe, lock))
    assert pipeline.inputs(recipe, virtual.with_bases(recipe, lock)) == previous
    apt.output = SAID.replace("6.1.0-56", "6.1.0-57")
    after = pipeline.inputs(recipe, virtual.with_bases(recipe, lock))
    old, new = (next(iter(image_inputs.bases.values())) for image_inputs in (previous, after))
    assert (old.split(":")[0], new.split(":")[0]) == ("linux-image-6.1.0-56-amd64", "linux-image-6.1.0-57-amd64")
