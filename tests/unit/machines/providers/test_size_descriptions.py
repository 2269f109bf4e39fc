"""What clouds' APIs say of a size becomes its description for `machines:`.

AWS's rows are real answers of DescribeInstanceTypes, as moto keeps them; the others have the fields that the APIs'
references list.
"""

from __future__ import annotations

import gzip
import json
from importlib.resources import files
from typing import Any

import pytest

from provisioner import catalog
from provisioner.catalog.description import MachineDescription
from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.alicloud import market as alicloud
from provisioner.machines.providers.aws.market import size_of
from provisioner.machines.providers.sizes import OfferedSize, description

KNOWN = catalog.load()
ROWS: dict[str, Any] = json.loads(
    gzip.decompress(files("moto.ec2").joinpath("resources/instance_types.json.gz").read_bytes())
)
AWS = [row for row in KNOWN.machines("aws") if row.name in ROWS]


def described(name: str) -> dict[str, Any]:
    return description(size_of(ROWS[name]), "aws", KNOWN)


def test_most_sizes_of_the_catalogue_are_among_the_answers() -> None:
    assert len(AWS) > 40


@pytest.mark.parametrize("row", AWS, ids=lambda row: row.name)
def test_the_api_and_the_catalogue_say_the_same(row: catalog.Machine) -> None:
    keys = described(row.name)
    MachineDescription.model_validate_json(json.dumps(keys))
    assert (keys.get("gpu", "none"), keys["gpus"], keys["vcpus"], keys.get("cpu", "amd64")) == (
        row.gpu_model, row.gpu_count, row.vcpus, row.cpu
    )  # fmt: skip
    assert keys["memory_gib"] == pytest.approx(row.memory_gib, rel=0.03)
    assert keys["local_nvme"]["count"] == row.local_nvme.count or row.basis.of("local_nvme.count") == "unverified"


def test_alibaba_clouds_answer() -> None:
    """Fields: the API's reference."""
    answer = {"InstanceTypeId": "ecs.gn8is-8x.32xlarge", "CpuCoreCount": 128, "MemorySize": 1024.0, "GPUAmount": 8,
              "GPUSpec": "NVIDIA L20", "GPUMemorySize": 48.0, "CpuArchitecture": "X86", "LocalStorageAmount": 2,
              "LocalStorageCapacity": 1788}  # fmt: skip
    keys = description(alicloud.size_of(answer), "alicloud", KNOWN)
    assert (keys["gpu"], keys["gpus"], keys["vcpus"], keys["memory_gib"]) == ("L20", 8, 128, 1024.0)
    assert keys["local_nvme"] == {"count": 2, "size_gb": 1920}


@pytest.mark.parametrize(
    ("size", "gpu", "message"),
    [
        (OfferedSize("", 4, "SKUs"), None, "does not name the GPU"),
        (OfferedSize("A100", 8, "EC2"), None, "A100-SXM4-80GB, A100-PCIE-80GB"),
        (OfferedSize("Q9000", 8, "EC2"), None, "none of the catalogue"),
        (OfferedSize("", 0, "EC2"), "L40S", "has no GPU"),
        (OfferedSize("NVIDIA T4", 0, "ECS"), None, "has a part of a GPU"),
        (OfferedSize("", 1, "CVM", has_part=True), None, "has a part of a GPU"),
        (OfferedSize("", 4, "SKUs"), "L41S", "no GPU 'L41S'"),
    ],
)
def test_what_an_api_does_not_tell_is_asked_of_the_user(size: OfferedSize, gpu: str | None, message: str) -> None:
    with pytest.raises(GpuprovError, match=message):
        description(size, "azure", KNOWN, gpu)


def test_a_size_without_gpus_is_described_with_none() -> None:
    size = OfferedSize("", 0, "SKUs", keys={"vcpus": 4})
    keys = description(size, "azure", KNOWN)
    assert keys == {"provider": "azure", "gpus": 0, "vcpus": 4, "source": ["SKUs"]}
    assert MachineDescription.model_validate_json(json.dumps(keys)).gpus == 0


def test_the_user_may_name_the_gpu() -> None:
    size = OfferedSize("", 4, "SKUs", keys={"vcpus": 96})
    assert description(size, "azure", KNOWN, "L40S") == {
        "provider": "azure", "gpu": "L40S", "gpus": 4, "vcpus": 96, "source": ["SKUs"]
    }  # fmt: skip
