"""`stack` of cluster.yaml: versions that are asked for, images, and where packages come from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from provisioner.catalog import distributions
from provisioner.common.errors import GpuprovError
from provisioner.common.image_reference import parse
from provisioner.spec.base import Model, Name

if TYPE_CHECKING:
    Distribution = str
else:
    Distribution = Literal[distributions.names()]


def _image(text: str) -> str:
    try:
        parse(text)
    except GpuprovError as error:
        raise PydanticCustomError("string_image", "{said}", {"said": error.message}) from None
    return text


ImageReference = Annotated[
    str,
    Field(
        min_length=1,
        max_length=255,
        pattern=r"^[a-z0-9][a-zA-Z0-9._:/@-]*$",
        title="a container image such as nvcr.io/nvidia/pytorch:25.10-py3",
    ),
    AfterValidator(_image),
]

_PART = r"([A-Za-z0-9_]|\{os\}|\{codename\})([A-Za-z0-9._-]|\{os\}|\{codename\})*"
_COMPONENT = r"^[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*$"
"""A folder of a suite, and a component: no folder of either begins with a dot, so none leads out of the repository."""


class OwnRepository(Model):
    """A signed apt repository of one's own, in place of the vendor's; or what is stated of the vendor's own files."""

    uri: (
        Annotated[str, Field(max_length=1024, pattern=r"^https?://([A-Za-z0-9._~/:%+=\[\]-]|\{os\}|\{codename\})+$")]
        | None
    ) = Field(
        default=None,
        title="the address of an apt repository, http:// or https://, without a password",
        description="Where it is; {os} and {codename} stand for the distribution (ubuntu2404, noble); null: where the "
        "vendor's is",
        examples=["https://mirror.example.com/cuda/{os}/x86_64/"],
    )
    key: Annotated[str, Field(max_length=1024, pattern=r"^(https?://)?[A-Za-z0-9._~/:%+=\[\]-]+$")] | None = Field(
        default=None,
        title="the address or the path of an OpenPGP public key",
        description="The key that it is signed with: an address, or a path beside this file; null: the vendor's",
        examples=["mirror.asc"],
    )
    fingerprint: Annotated[str, Field(pattern=r"^[0-9A-Fa-f]{40}$")] | None = Field(
        default=None,
        title="the 40 hex digits of a key's full fingerprint",
        description="Full fingerprint of that key, 40 hex digits (`gpg --show-keys FILE`)",
        examples=["EB693B3035CD5710E231E123A4B469963BF863CC"],
    )
    sha256: tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], ...] | None = Field(
        default=None,
        max_length=16,
        title="a list of SHA-256 hashes, 64 hex digits each",
        description="Hashes of the vendor's files that you have compared, where the vendor signs nothing and `gpuprov "
        "lock` asks for them",
        examples=[["762a3dbc1c8c1e4b03867b022ccafcfafa95bffe461a58a5b6e38fc678263614"]],
    )
    suite: Annotated[str, Field(pattern=rf"^(\./|/|(\./)?{_PART}(/{_PART})*/?)$", max_length=255)] | None = Field(
        default=None,
        title="a suite such as noble, or / for a flat repository",
        description="Suite, or / for a flat repository; null: as the vendor's",
        examples=["/"],
    )
    components: (
        tuple[
            Annotated[str, Field(pattern=_COMPONENT, max_length=64)],
            ...,
        ]
        | None
    ) = Field(
        default=None,
        max_length=16,
        title="a list of components such as [main]",
        description="Components of the suite; null: as the vendor's",
        examples=[["main"]],
    )


class StackRequest(Model):
    """What is pinned; everything left out is chosen and written to cluster.lock."""

    pytorch: (
        Annotated[
            str, Field(pattern=r"^[0-9]{1,4}(\.[0-9]{1,4}){0,2}(\+(cu[0-9]{3}|rocm[0-9]{1,2}(\.[0-9]{1,2}){1,2}))?$")
        ]
        | None
    ) = Field(
        default=None,
        title='a version in quotes, such as "2.9" or "2.9.1+cu130"',
        description="PyTorch version, or one of its builds; quote it: unquoted, 2.10 is the number 2.1",
        examples=["2.9"],
    )
    tensorflow: Annotated[str, Field(pattern=r"^[0-9]{1,4}(\.[0-9]{1,4}){0,2}$")] | None = Field(
        default=None,
        title='a version in quotes, such as "2.20"',
        description="TensorFlow version; its image comes beside PyTorch's, or in place of it",
        examples=["2.20"],
    )
    driver: Annotated[str, Field(pattern=r"^[0-9]{3}(\.[0-9]{1,4}){0,2}$")] | None = Field(
        default=None,
        title='a driver branch or version in quotes, such as "580" or "580.95.05"',
        description="NVIDIA driver: a branch, or one exact version",
        examples=["580"],
    )
    cuda: Annotated[str, Field(pattern=r"^[0-9]{1,3}\.[0-9]{1,3}(\.[0-9]{1,3})?$")] | None = Field(
        default=None,
        title='a CUDA version in quotes, such as "13.0"',
        description="CUDA toolkit on the nodes",
        examples=["13.0"],
    )
    nccl: Annotated[str, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){1,2}$")] | None = Field(
        default=None,
        title='an NCCL version in quotes, such as "2.27.7"',
        description="NCCL on the nodes",
        examples=["2.27.7"],
    )
    cudnn: Annotated[str, Field(pattern=r"^[0-9]{1,3}(\.[0-9]{1,3}){0,3}$")] | None = Field(
        default=None,
        title='a cuDNN version in quotes, such as "9.10"',
        description="cuDNN on the nodes; framework images bring their own, so null installs none",
        examples=["9.10"],
    )
    os: Distribution | None = Field(
        default=None,
        title=f"{', '.join(distributions.names()[:-1])} or {distributions.names()[-1]}",
        description="Distribution of the nodes; null takes the newest that has everything else",
        examples=["ubuntu-22.04"],
    )
    kernel: Annotated[str, Field(pattern=r"^[0-9]{1,2}\.[0-9]{1,3}(\.[0-9]{1,3}(-[0-9A-Za-z.-]{1,40})?)?$")] | None = (
        Field(
            default=None,
            title='a kernel in quotes, such as "6.8" or "6.8.0-1066-aws"',
            description="Kernel that the nodes must run: a series, or `uname -r`; null takes the base image's",
            examples=["6.8.0-1066-aws"],
        )
    )
    ofed: Annotated[str, Field(pattern=r"^[0-9]{1,2}(\.[0-9]{1,3}){0,2}$")] | None = Field(
        default=None,
        title='a DOCA version in quotes, such as "3.2"',
        description="DOCA-OFED on InfiniBand and RoCE machines; null leaves the kernel's own RDMA drivers",
        examples=["3.2"],
    )
    gdrcopy: Annotated[str, Field(pattern=r"^[0-9]{1,2}(\.[0-9]{1,3}){0,2}$")] | None = Field(
        default=None,
        title='a GDRCopy version in quotes, such as "2.5"',
        description="GDRCopy on the nodes; null installs none",
        examples=["2.5"],
    )
    containers: tuple[ImageReference, ...] = Field(
        default=(),
        max_length=64,
        title="a list of container images",
        description="Images that every node holds before it is handed over, locked by digest",
        examples=[["nvcr.io/nvidia/pytorch:25.10-py3"]],
    )
    repositories: dict[Name, OwnRepository] = Field(
        default={},
        title="repositories by the names that the stack gives them",
        description="Repositories of your own in place of the vendors' (cuda, container-toolkit, rocm, amdgpu, "
        "grafana, lustre, doca, efa, gdrcopy, mount-s3); the last four have no other, and lustre's fingerprint has to "
        "be said",
    )
