"""What the texts of a lock may be. A lock lies in git, in a pull request, in a bucket that several share. What it says
becomes names of packages and files, addresses, variables of roles: each text has a shape, and none opens a template."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from provisioner.common.errors import GpuprovError
from provisioner.common.image_reference import parse
from provisioner.common.text import printable
from provisioner.spec.source_map import shown

TEMPLATES = ("{{", "{%", "{#")
"""What opens a template of Jinja."""

_SEGMENT = r"[A-Za-z0-9_][A-Za-z0-9._-]*"
_PATH = f"{_SEGMENT}(/{_SEGMENT})*"
_SUITE = f"(\\./|/|(\\./)?{_PATH}/?)"
_ADDRESS = r"https?://[A-Za-z0-9\[][A-Za-z0-9._~/:%+=\[\]-]*"


def _shape(pattern: str, noun: str, limit: int = 255) -> Callable[[str], str]:
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if len(text) > limit or not compiled.fullmatch(text):
            raise PydanticCustomError("text", "{said}", {"said": f"{shown(text)} is not a valid {noun}"})
        return text

    return check


def _image(text: str) -> str:
    try:
        parse(text)
    except GpuprovError:
        raise PydanticCustomError(
            "text", "{said}", {"said": f"{shown(text)} is not a valid container image reference"}
        ) from None
    return text


def _check_plain(text: str) -> str:
    if any(opening in text for opening in TEMPLATES) or printable(text) != text or len(text) > 100_000:
        raise PydanticCustomError("text", "{said}", {"said": f"{shown(text)} is not plain text"})
    return text


Version = Annotated[str, AfterValidator(_shape(r"[0-9A-Za-z][0-9A-Za-z.+~_-]*", "version"))]
PackageName = Annotated[str, AfterValidator(_shape(r"[a-z0-9]([a-z0-9+.-]*[a-z0-9+.])?", "name of a package"))]
"""Debian's; apt reads `curl-` as "remove curl"."""
PackageVersion = Annotated[
    str, AfterValidator(_shape(r"[0-9]([0-9A-Za-z.+:~-]*[0-9A-Za-z.+:~])?", "version of a package", 400))
]
"""apt reads `curl=1-` as "remove curl"."""
RepositoryName = Annotated[str, AfterValidator(_shape(r"[a-z][a-z0-9-]*", "name of a repository", 64))]
_NAME = r"[a-z]([a-z0-9-]{0,30}[a-z0-9])?"
GroupName = Annotated[str, AfterValidator(_shape(_NAME, "name of a group or site"))]
StackName = Annotated[str, AfterValidator(_shape(f"{_NAME}(@{_NAME})?", "name of a group, or group@site"))]
System = Annotated[str, AfterValidator(_shape(r"[a-z]+-[0-9]+(\.[0-9]+)*", "distribution", 64))]
Address = Annotated[str, AfterValidator(_shape(f"({_ADDRESS})?", "address of a repository", 1024))]
Key = Annotated[
    str,
    AfterValidator(
        _shape(
            rf"({_ADDRESS}|data:application/pgp-keys;base64,[A-Za-z0-9+/=]+)?",
            "address of a key",
            4 << 20,
        )
    ),
]
"""An address, or the key itself."""
FolderOnNodes = Annotated[
    str, AfterValidator(_shape(rf"({_ADDRESS}|file:/var/lib/gpuprov/repositories/[a-z][a-z0-9-]*/)?", "address", 1024))
]
"""Where apt on a node reads a repository: over the network, or in a folder that is made of vendors' archives."""
Sha256 = Annotated[str, AfterValidator(_shape(r"([0-9a-f]{64})?", "SHA-256"))]
ArchiveFolder = Annotated[str, AfterValidator(_shape(rf"({_PATH}/)?", "folder of an archive", 400))]
Suite = Annotated[str, AfterValidator(_shape(rf"{_SUITE}( {_SUITE})*", "suite"))]
Components = Annotated[str, AfterValidator(_shape(rf"({_PATH}( {_PATH})*)?", "list of components", 2048))]
Fingerprint = Annotated[str, AfterValidator(_shape(r"([0-9A-Fa-f]{40})?", "fingerprint of 40 hex digits"))]
Reference = Annotated[str, Field(max_length=400), AfterValidator(_image)]
Digest = Annotated[str, AfterValidator(_shape(r"(sha256:[0-9a-f]{64})?", "digest"))]
Pull = Annotated[
    str,
    AfterValidator(
        _shape(rf"({_SEGMENT}(:[0-9]{{1,5}})?(/{_SEGMENT})*@sha256:[0-9a-f]{{64}})?", "image by digest", 400)
    ),
]
ComponentName = Annotated[str, AfterValidator(_shape(r"[a-z][a-z0-9_]*|image [A-Za-z0-9._:/@-]+", "component", 400))]
Chosen = Annotated[str, AfterValidator(_shape(r"[0-9A-Za-z][0-9A-Za-z.+~_:/@-]*", "version", 400))]
"""The version of a component; of an image, its reference."""
Build = Annotated[str, AfterValidator(_shape(r"[0-9]{8}-[0-9]{6}", "build of an image, such as 20260131-031500"))]
MachineImage = Annotated[str, AfterValidator(_shape(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*", "image of a machine"))]
Sentence = Annotated[str, AfterValidator(_check_plain)]
"""For people alone: no variable is made of it."""
