"""Names that are made into paths: of a cluster.yaml, of a lock, of a package. None leads out of its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provisioner import spec
from provisioner.common.errors import GpuprovError, InputError
from provisioner.common.paths import below
from provisioner.sandbox import registry, repository
from provisioner.sandbox.keys import Keys, keys
from provisioner.stack.models import Image, Package, Stack
from tests.support import plans

OUT = ("../out", "../../../../out", "a/../../out", "/out", "x/../../../../../../out")
FILE = """\
name: vision
sites: {virginia: {provider: aws, region: us-east-1}}
groups: {train: {machine: p4d.24xlarge}}
access: {allow: [203.0.113.0/24]}
stack:
  KEY
"""


@pytest.mark.parametrize(
    "key",
    [
        *(f'containers: ["{name}"]' for name in (
            "nvcr.io/../../../x:1", "../x:1", "a/../../x", "nvcr.io//x:1", "nvcr.io/x:../y", "nvcr.io/./x:1",
            "x@sha256:../y", "nvcr.io/x@sha256:" + "../" * 20, "nvcr.io:80/../x", "a..b/../c:1",
        )),
        *(f'repositories: {{cuda: {{uri: "https://h/", fingerprint: "{"A" * 40}", {more}}}}}' for more in (
            'suite: "../../x/"', 'suite: "a/../../x"', 'suite: "/etc/x"', "suite: noble, components: [../../x]",
            "suite: noble, components: [a/../../x]", "suite: noble, components: [/etc/x]",
        )),
    ],
)  # fmt: skip
def test_a_path_in_cluster_yaml_is_refused_at_its_line(key: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(FILE.replace("KEY", key))
    with pytest.raises(InputError) as caught:
        spec.load(file)
    assert {problem.line for problem in caught.value.problems} == {6}


@pytest.mark.parametrize("name", [*OUT, "..", "a/..", "a\0b", "link/x"])
def test_nothing_is_below_a_folder_that_is_not(name: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path)
    with pytest.raises(GpuprovError, match="points outside of"):
        below(tmp_path / "here", name)


def test_what_is_below_is_given(tmp_path: Path) -> None:
    assert below(tmp_path, "a/b..c/d.deb") == tmp_path / "a/b..c/d.deb"
    assert below(tmp_path, "") == tmp_path


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return keys(tmp_path_factory.mktemp("keys"))


def stack(**changed: Any) -> Stack:
    """A stack whose texts were not looked at: the wall before this one is away."""
    complete = plans.plan(plans.cluster_spec("p4d.24xlarge")).groups[0].stack
    repository = complete.repositories[0].model_copy(
        update={k.partition("_")[2]: v for k, v in changed.items() if k.startswith("repository_")}
    )
    package = Package(name="libnccl2", version="1.0-1", repository="cuda", part="nccl").model_copy(
        update={k.partition("_")[2]: v for k, v in changed.items() if k.startswith("package_")}
    )
    return complete.model_copy(
        update={"repositories": (repository,), "packages": (package,), "os": changed.get("os", complete.os)}
    )


@pytest.mark.parametrize("name", OUT)
@pytest.mark.parametrize(
    "field",
    ["repository_name", "repository_suite", "repository_components", "package_name", "package_version",
     "package_repository", "os"],
)  # fmt: skip
def test_nothing_of_a_lock_is_written_beside_the_mirror(field: str, name: str, tmp_path: Path, secrets: Keys) -> None:
    mirror = tmp_path / "a" / "b" / "mirror"
    mirror.mkdir(parents=True)
    other = {"repository_suite": "noble"} if field == "repository_components" else {}
    try:
        repository.write_repositories(mirror, [stack(**{field: name, **other})], secrets, "amd64")
    except GpuprovError as error:
        assert "points outside of" in error.message
    assert not (tmp_path / "out").exists()
    assert {p for p in tmp_path.rglob("*") if p.is_file() and not p.is_relative_to(mirror)} == set()
    assert not Path("/out").exists()


@pytest.mark.parametrize("reference", [*OUT, "nvcr.io/../../../../../../out:1", "nvcr.io/x:../../../../../../out"])
def test_no_image_is_written_beside_the_registry(reference: str, tmp_path: Path) -> None:
    image = Image(reference="a/b:1", digest="", pull="").model_copy(update={"reference": reference})
    with pytest.raises(GpuprovError, match="not a valid image reference"):
        registry.build(image, b"", "amd64")
    for built in (registry.Built(reference, "1", "sha256:" + "a" * 64, {}), registry.Built("a", reference, "x", {})):
        with pytest.raises(GpuprovError, match="points outside of"):
            registry.write(tmp_path / "a" / "b", [built])
    assert not (tmp_path / "out").exists()
