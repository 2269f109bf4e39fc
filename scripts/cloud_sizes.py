"""Write provisioner/catalog/data/cloud_sizes.yaml from the lists of sizes in scripts/data/cloud_sizes/.

    python scripts/cloud_sizes.py            writes the file
    python scripts/cloud_sizes.py --check    exits with 1 if the file is not what the lists give

Each list is a CSV extract of what a provider's API or documentation says; its head names the source and the columns.
A row keeps only what its source says. The script leaves out a size that machines.yaml has, and a size whose GPU
EXCLUDED or EXCLUDED_SIZES names. To renew a list: replace the CSV, run this script, commit both.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
LISTS = ROOT / "scripts/data/cloud_sizes"
DATA = ROOT / "provisioner/catalog/data"
TARGET = DATA / "cloud_sizes.yaml"

AS_OF = "2026-11-26"
"""When the lists were last compared with their sources."""

SOURCES = {
    "aws-api": "EC2 DescribeInstanceTypes: github getmoto/moto:moto/ec2/resources/instance_types.json"
    " @34d6cad5 (2026-08-02)",
    "azure-api": "Azure Resource SKUs: github kubernetes/autoscaler:cluster-autoscaler/cloudprovider/azure/"
    "azure_instance_types.go @03e49d9c (2026-03-17)",
    "azure-docs": "github MicrosoftDocs/azure-compute-docs:articles/virtual-machines/sizes/gpu-accelerated, pages and"
    " commits in scripts/data/cloud_sizes/azure_docs.csv",
    "azure-general": "github MicrosoftDocs/azure-compute-docs:articles/virtual-machines/sizes/general-purpose/"
    "dsv5-series.md @005f8f6e (2026-02-27)",
    "azure-retired": "github MicrosoftDocs/azure-compute-docs:articles/virtual-machines/sizes/retirement/"
    "retired-sizes-list.md @0bdc5d34",
    "azure-vgpu": "github Azure/karpenter-provider-azure:pkg/utils/gpu.go @352646f5 (2026-08-21) names the sizes that"
    " take a GRID driver; shares: scripts/data/cloud_sizes/azure_vgpu.csv",
    "alicloud-compute": "https://www.alibabacloud.com/help/en/ecs/user-guide/gpu-accelerated-compute-optimized-and-"
    "vgpu-accelerated-instance-families-1 (public copy of 2026)",
    "alicloud-vgpu": "the same page of help.aliyun.com in Chinese (public copy of 2026 with sgn8ia and gn9gc)",
    "alicloud-h20": "the help page says 96 GB of HBM3 and no product; a public page of a Qwen3 service by Alibaba Cloud"
    " calls the GPU of ecs.ebmgn8v.48xlarge H20",
    "alicloud-general": "github AlibabaCloudDocs/ecs:intl.en-US/Instance/Instance type families/General purpose"
    " instance families.md @cadab6e7 (2021-07-17)",
    "tencent-compute": "github tencentyun/intlcloud-documents @02ec31c2 (2024-12-24), GPU instance types: computing",
    "tencent-render": "github tencentyun/intlcloud-documents @02ec31c2 (2024-12-24), GPU instance types: rendering",
    "tencent-hpc": "list of instance types of Tencent Cloud's HPC platform (public page of 2026: PNV5b, 48 GB)",
    "tencent-l20": "public Terraform examples for Tencent Cloud: PNV5b.8XLARGE96, 16XLARGE192, 48XLARGE768 have 1, 2, 4"
    " NVIDIA L20",
    "tencent-standard": "github tencentyun/intlcloud-documents @02ec31c2 (2024-12-24), instance types: standard S5",
}

Row = dict[str, Any]

AWS_GPUS = {
    "T4": "T4",
    "T4g": "T4G",
    "A10G": "A10G",
    "L4": "L4",
    "L40S": "L40S",
    "RTX PRO 4500": "RTX-PRO-4500-Blackwell-Server",
    "RTX PRO Server 6000": "RTX-PRO-6000-Blackwell-Server",
    "V100": "V100-SXM2-32GB",
    "A100": "A100-SXM4-40GB",
    "H100": "H100-SXM5-80GB",
    "H200": "H200-SXM5-141GB",
    "B200": "B200-SXM6-180GB",
    "B300": "B300-SXM6-AC",
}
"""Name in DescribeInstanceTypes → slug of gpus.yaml. machines.yaml has every size with a V100 or an A100."""

AZURE_GPUS = {
    "Standard NCASv3_T4 Family": "T4",
    "standardNCSv3Family": "V100-PCIE-16GB",
    "StandardNCADSA100v4Family": "A100-PCIE-80GB",
    "StandardNCadsH100v5Family": "H100-NVL-94GB",
    "standardNDSv2Family": "V100-SXM2-32GB",
    "Standard NDASv4_A100 Family": "A100-SXM4-40GB",
    "standard NDAMSv4_A100Family": "A100-SXM4-80GB",
    "standardNDSH100v5Family": "H100-SXM5-80GB",
    "standardNDISRH200V5Family": "H200-SXM5-141GB",
    "standardNDISv5MI300XFamily": "MI300X",
}
"""Family of the SKU → slug of gpus.yaml."""

AZURE_RETIRED = {"standardNCSv3Family": "withdrawn by Azure on 2025-09-30"}

ALICLOUD_GPUS = {
    "T4 16": "T4",
    "V100 SXM2 16": "V100-SXM2-16GB",
    "V100 SXM2 32": "V100-SXM2-32GB",
    "A10 24": "A10",
    "A16 (GA107)": "A16",
    "A30 24": "A30",
    "- 40": "A100-SXM4-40GB",
    "- 80": "A100-SXM4-80GB",
    "L20 48": "L20",
    "- 96": "H20-SXM5-96GB",
}
"""GPU as the help page names it → slug. machines.yaml has every size with "- 40" or "- 80"."""

TENCENT_GPUS = {
    "T4": "T4",
    "V100 NVLink 32": "V100-SXM2-32GB",
    "A10": "A10",
    "A100 NVLink 40": "A100-SXM4-40GB",
    "L20 48": "L20",
}

EXCLUDED = {
    "Radeon Pro V520": "g4ad: ROCm does not support it",
    "StandardNGADSV620v1Family": "parts of a Radeon PRO V620: ROCm does not support it",
    "StandardNVadsV710v5Family": "parts of a Radeon PRO V710",
    "standardNVSv4Family": "parts of a Radeon Instinct MI25; retired on 2026-09-30",
    "standardNVSv2Family": "Tesla M60 (Maxwell): the last driver branch is 580",
    "standardNVSv3Family": "Tesla M60 (Maxwell); retired on 2026-09-30",
    "standardNPSFamily": "FPGA",
    "StandardNCCads2023Family": "confidential VM: another image and security type",
    "P4 8": "Tesla P4 (Pascal): the last driver branch is 580",
    "P100 16": "Tesla P100 (Pascal)",
    "P4": "Tesla P4 (Pascal)",
    "P40": "Tesla P40 (Pascal)",
    "- 48": "gn9g, sgn8ia: the provider names no product",
    "- 72": "gn9gc, gn9ge: the provider names no product",
}
"""GPU or family as a list names it → why the file has none of its sizes."""

EXCLUDED_SIZES = {"Standard_ND96is_MI300X_v5": "the API says no number of GPUs"}

HEAD = """\
# Sizes that providers sell, beside those of machines.yaml. scripts/cloud_sizes.py writes this file from
# scripts/data/cloud_sizes/*.csv: change those and run it. A key that the source of a row does not say is left out.
# sources:    id → where the values were read
# machines:   name       as the provider's API takes it
#             provider   aws | azure | alicloud | tencent
#             gpu, gpus  slug of gpus.yaml, and the number of them
#             vcpus      hardware threads
#             memory_gib system memory
#             network    kind ethernet|efa|infiniband|roce, ports, rate_gbps of one port (Gbit/s; the baseline where
#                        the source has a baseline and a burst, the limit of all interfaces for Azure)
#             local_nvme count, size_gb of one disk (decimal GB)
#             cpu        arm64 where it is
#             retired    when the provider withdrew it
#             source     ids
# fractional: sizes with a vGPU: share is the part of a GPU (1 and 2: a vGPU as large as one or two cards). They need a
#             vGPU (GRID) driver, which gpuprov does not install.
# without_gpus: general-purpose sizes for head nodes: the keys of machines without gpu and gpus.
"""


def read_list(name: str) -> Iterator[dict[str, str]]:
    """The rows of scripts/data/cloud_sizes/NAME.csv; lines that begin with # are its head."""
    with (LISTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


def number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def fractional(size: dict[str, str], gpu: str, share: str, sources: list[str]) -> Row:
    return {"name": size["name"], "gpu": gpu, "share": str(Fraction(share)), "source": sources}


def machine(size: dict[str, str], gpu: str, gpus: str, memory_gib: int | float) -> Row:
    """The keys that every machine has, but its source."""
    row: Row = {"name": size["name"], "gpu": gpu, "gpus": int(gpus)}
    return row | {"vcpus": int(size["vcpus"]), "memory_gib": memory_gib}


def network(kind: str, ports: int, rate_gbps: int | float) -> Row:
    return {"network": {"kind": kind, "ports": ports, "rate_gbps": rate_gbps}}


def aws() -> Iterator[Row]:
    for size in read_list("aws"):
        if size["gpu"] in EXCLUDED:
            continue
        gpu = AWS_GPUS[size["gpu"]]
        if size["partition"] != "1":
            yield fractional(size, gpu, size["partition"], ["aws-api"])
            continue
        row = machine(size, gpu, size["count"], number(size["memory_mib"]) / 1024)
        ports = int(size["efa"] or size["cards"])
        total = re.fullmatch(r"(\d+) Gigabit", size["performance"])
        rate = int(total[1]) / ports if total else number(size["gbps"])
        row |= network("efa" if size["efa"] else "ethernet", ports, rate)
        row["local_nvme"] = {"count": int(size["disks"] or 0), "size_gb": int(size["disk_gb"] or 0)}
        if size["arch"] == "arm64":
            row["cpu"] = "arm64"
        yield row | {"source": ["aws-api"]}


def azure() -> Iterator[Row]:
    vgpus = {size["name"]: size for size in read_list("azure_vgpu")}
    for vgpu in vgpus.values():
        yield fractional(vgpu, vgpu["gpu"], vgpu["share"], ["azure-vgpu"])
    documented = {size["name"]: size for size in read_list("azure_docs")}
    listed = {size["name"]: size for size in read_list("azure")}
    for name in {**listed, **documented}:
        size, page = listed.get(name), documented.get(name)
        if name in vgpus or name in EXCLUDED_SIZES or (size and size["family"] in EXCLUDED):
            continue
        if size:
            gpu = AZURE_GPUS[size["family"]]
            row = machine(size, gpu, size["gpus"], number(size["memory_mb"]) / 1024)
            if size["family"] in AZURE_RETIRED:
                row["retired"] = AZURE_RETIRED[size["family"]]
        else:
            assert page is not None
            row = machine(page, "GB300", page["accelerators"], number(page["memory_gib"]))
        if page and page["infiniband"]:
            ports, rate = page["infiniband"].split(" x ")
            row |= network("infiniband", int(ports), number(rate))
        elif page:
            row |= network("ethernet", 1, number(page["ethernet_mbps"]) / 1000)
        if (size or page or {}).get("arch") == "arm64":
            row["cpu"] = "arm64"
        sources = {"azure-api": size, "azure-docs": page, "azure-retired": "retired" in row}
        yield row | {"source": [key for key, used in sources.items() if used]}


def alicloud() -> Iterator[Row]:
    for size in read_list("alicloud"):
        if size["gpu"] in EXCLUDED:
            continue
        gpu = ALICLOUD_GPUS[size["gpu"]]
        sources = [f"alicloud-{size['page']}"] + (["alicloud-h20"] if size["gpu"] == "- 96" else [])
        if "/" in size["gpus"]:
            yield fractional(size, gpu, size["gpus"], sources)
            continue
        row = machine(size, gpu, size["gpus"], number(size["memory_gib"]))
        rate, _, ports = size["gbps"].partition(" x ")
        row |= network("ethernet", int(ports or 1), number(rate))
        if size["arch"] == "arm64":
            row["cpu"] = "arm64"
        yield row | {"source": sources}


def tencent() -> Iterator[Row]:
    for size in read_list("tencent"):
        if size["gpu"] in EXCLUDED:
            continue
        gpu = TENCENT_GPUS[size["gpu"]]
        sources = [f"tencent-{size['page']}"] + (["tencent-l20"] if size["page"] == "hpc" else [])
        if "/" in size["gpus"] or size["page"] == "render":  # rendering instances come with a GRID driver and licence
            yield fractional(size, gpu, size["gpus"], sources)
            continue
        row = machine(size, gpu, size["gpus"], number(size["memory_gb"]))
        if size["gbps"]:
            row |= network("ethernet", 1, number(size["gbps"]))
        yield row | {"source": sources}


def without_gpus(provider: str) -> Iterator[Row]:
    for size in read_list("without_gpus"):
        if size["provider"] != provider:
            continue
        row: Row = {"name": size["name"], "vcpus": int(size["vcpus"]), "memory_gib": number(size["memory_gib"])}
        if size["gbps"]:
            row |= network("ethernet", 1, number(size["gbps"]))
        if size["disks"]:
            assert size["disks"] == "0", "the list has no size of a disk"
            row["local_nvme"] = {"count": 0, "size_gb": 0}
        if size["arch"] == "arm64":
            row["cpu"] = "arm64"
        yield row | {"source": size["source"].split()}


PROVIDERS = (aws, azure, alicloud, tencent)


def render() -> str:
    """The text of cloud_sizes.yaml."""
    known = {row["name"] for row in yaml.safe_load((DATA / "machines.yaml").read_text(encoding="utf-8"))["machines"]}
    rows = []
    for provider in PROVIDERS:
        listed = (row for row in (*provider(), *without_gpus(provider.__name__)) if row["name"] not in known)
        sizes = sorted(listed, key=lambda row: _order(row["name"]))
        rows += [{"name": row.pop("name"), "provider": provider.__name__, **row} for row in sizes]
    used = {key for row in rows for key in row["source"]}
    lines = [HEAD + f"schema: 1\nas_of: '{AS_OF}'", "sources:"]
    lines += [f'  {key}: "{text}"' for key, text in SOURCES.items() if key in used]
    for section in SECTIONS:
        lines += [f"{section}:", *(f"  - {flow(row)}" for row in rows if _section(row) == section)]
    return "\n".join(lines) + "\n"


SECTIONS = ("machines", "fractional", "without_gpus")


def _section(row: Row) -> str:
    if "gpu" not in row:
        return "without_gpus"
    return "fractional" if "share" in row else "machines"


def _order(name: str) -> list[int | str]:
    """A name with its numbers as numbers, so that g5.2xlarge stands before g5.16xlarge."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def flow(value: object) -> str:
    """A value as YAML in one line; whole numbers have no fraction."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    if isinstance(value, float):
        return f"{value:g}"
    quoted = isinstance(value, str) and re.fullmatch(r"[A-Za-z][\w.-]*", value) is None
    return f"'{value}'" if quoted else str(value)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write provisioner/catalog/data/cloud_sizes.yaml from the lists.")
    parser.add_argument("--check", action="store_true", help="Exit with 1 if the file is not what the lists give.")
    check = parser.parse_args().check
    text = render()
    if not check:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    print(f"{TARGET.relative_to(ROOT)} is out of date: run python scripts/cloud_sizes.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
