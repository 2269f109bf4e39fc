"""The shapes of `gpuprov image … --json`: list, diff, promote and rollback, prune, nightly. `build` and `show` print
the manifest of a build (images/manifest.py)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from provisioner.output.base import OpenOutput


class ListedBuild(OpenOutput):
    build: str
    made: str = Field(description="When it was proven, UTC")
    channels: list[str]
    driver: dict[str, str | None] = Field(description="Target → its driver")
    ids: dict[str, dict[str, str]] = Field(description="Target → region → the provider's id")


class FailedBuild(OpenOutput):
    build: str
    step: str
    target: str
    message: str
    evidence: str = Field(description="Folder with its reports and logs")


class Moved(OpenOutput):
    channel: str
    build: str
    before: str = Field(description="The build that the channel had, or empty")
    at: str
    why: str


class ImageListOutput(OpenOutput):
    """`gpuprov image list --json`"""

    image: str
    simulated: bool
    channels: dict[str, str] = Field(description="Channel → build")
    builds: list[ListedBuild] = Field(description="Newest first")
    failed: list[FailedBuild]
    history: list[Moved] = Field(description="Oldest first")


class Difference(OpenOutput):
    target: str
    what: str = Field(description="target, version, package, base, kernel or role")
    name: str
    before: str | None
    after: str | None


class ImageDiffOutput(OpenOutput):
    """`gpuprov image diff --json`"""

    image: str
    before: str
    after: str
    differences: list[Difference]


class _OfImage(OpenOutput):
    image: str


class ImageMoveOutput(Moved, _OfImage):
    """`gpuprov image promote --json`, `gpuprov image rollback --json`"""


class KeptBuild(OpenOutput):
    build: str
    why: str


class ImagePruneOutput(OpenOutput):
    """`gpuprov image prune --json`"""

    image: str
    removed: list[str]
    kept: list[KeptBuild]


class Night(OpenOutput):
    image: str
    outcome: str = Field(description="built, unchanged, busy (somebody else builds it) or failed")
    build: str
    changed: list[str] = Field(description="What is new since the last good build")
    step: str = Field(description="Where it failed, or empty")
    message: str
    page: str = Field(description="The page of the nights, where it failed")
    alerted: str = Field(description="What became of image.failed, or empty")


class ImageNightlyOutput(OpenOutput):
    """`gpuprov image nightly --json`"""

    ok: bool
    nights: list[Night]


class ImageProof(OpenOutput):
    """One boot of a machine that was made of the image."""

    machine: str
    node: str
    level: str
    report: str = Field(description="File beside the manifest")
    passed: int
    warned: int
    unknown: int


class ImageTarget(OpenOutput):
    """The image of one group of the recipe."""

    site: str
    provider: str
    machine: str
    builder: str = Field(description="Machine type that it was built on")
    ids: dict[str, str] = Field(description="Region → the provider's id")
    base: str
    kernel: str
    stack: dict[str, Any] = Field(description="As cluster.lock has it")
    roles: dict[str, dict[str, str]] = Field(description="Role → digests of its text and of what it was installed with")
    packages: dict[str, str]
    proofs: list[ImageProof]
    residue: list[str] = Field(description="What was taken away before the disk was captured")


class ImageOutput(OpenOutput):
    """`gpuprov image build --json`, `gpuprov image show --json`"""

    version: int
    name: str
    build: str
    made: str
    simulated: bool
    gpuprov: str
    inputs: dict[str, Any] = Field(description="Digests of what it was made of")
    targets: dict[str, ImageTarget]
    files: dict[str, str] = Field(description="File of the build → its SHA-256")
