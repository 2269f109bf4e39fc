"""Write provisioner/catalog/data/cloud_sizes.yaml from the lists of GPU sizes in scripts/data/cloud_sizes/.

    python scripts/cloud_sizes.py            writes the file
    python scripts/cloud_sizes.py --check    exits with 1 if the file is not what the lists give

Each list is a CSV extract of what a provider's API or documentation says; its head names the source and the columns. A row keeps only
what its source says. A size that machines.yaml has is left out, and so is a size whose GPU is not in gpus.yaml (EXCLUDED names them).
To renew a list: replace the CSV, run this script, commit both.
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
    "aws-api": "EC2 DescribeInstanceTypes as github getmoto/moto:moto/ec2/resources/instance_types.json @34d6cad5 (2026-08-02) has it",
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
"""Name in DescribeInstanceTypes → slug of gpus.yaml. Of the families with V100 and A100, machines.yaml has each size."""

EXCLUDED = {
    "Radeon Pro V520": "g4ad: ROCm has no Radeon Pro V520 (gfx1011)",
}
"""GPU as a list names it → why its sizes are not in the file."""

HEAD = """\
# GPU sizes that providers sell, beside those of machines.yaml. Written by scripts/cloud_sizes.py from scripts/data/cloud_sizes/*.csv:
# change those and run it. A key that the source of a row does not say is left out.
# sources:    id -> where the values were read
# machines:   name (as the provider's API takes it), provider, gpu (slug of gpus.yaml), gpus (number of them), vcpus, memory_gib,
#             network (kind ethernet|efa|infiniband|roce, ports, rate_gbps of one port: the baseline where the source has baseline and burst),
#             local_nvme (count, size_gb of one disk), cpu (arm64 where it is), retired (date and reason), source (ids)
# fractional: sizes that have a part of a GPU (share): they need a vGPU driver with a licence, which gpuprov does not install
"""


def read_list(name: str) -> Iterator[dict[str, str]]:
    """The rows of scripts/data/cloud_sizes/NAME.csv; lines that begin with # are its head."""
    with (LISTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(line for line in file if not line.startswith("#"))


def number(text: str) -> int | float:
    value = float(text)
    return int(value) if value.is_integer() else value


def aws() -> Iterator[Row]:
    for size in read_list("aws"):
        if size["gpu"] in EXCLUDED:
            continue
        row: Row = {"name": size["name"], "provider": "aws", "gpu": AWS_GPUS[size["gpu"]]}
        if size["partition"] != "1":
            yield row | {"share": str(Fraction(size["partition"])), "source": ["aws-api"]}
            continue
        row |= {"gpus": int(size["count"]), "vcpus": int(size["vcpus"]), "memory_gib": number(size["memory_mib"]) / 1024}
        ports = int(size["efa"] or size["cards"])
        total = re.fullmatch(r"(\d+) Gigabit", size["performance"])
        rate = int(total[1]) / ports if total else number(size["gbps"])
        row["network"] = {"kind": "efa" if size["efa"] else "ethernet", "ports": ports, "rate_gbps": rate}
        if size["nvme"]:
            row["local_nvme"] = {"count": int(size["disks"]), "size_gb": int(size["disk_gb"])}
        if size["arch"] == "arm64":
            row["cpu"] = "arm64"
        yield row | {"source": ["aws-api"]}


PROVIDERS = (aws,)


def render() -> str:
    """The text of cloud_sizes.yaml."""
    known = {row["name"] for row in yaml.safe_load((DATA / "machines.yaml").read_text(encoding="utf-8"))["machines"]}
    rows = [row for provider in PROVIDERS for row in provider() if row["name"] not in known]
    lines = [HEAD + f"schema: 1\nas_of: '{AS_OF}'", "sources:"]
    lines += [f'  {key}: "{text}"' for key, text in SOURCES.items()]
    for section, part in (("machines", False), ("fractional", True)):
        lines.append(f"{section}:")
        chosen = sorted((row for row in rows if ("share" in row) is part), key=_order)
        lines += [f"  - {flow(row)}" for row in chosen]
    return "\n".join(lines) + "\n"


def _order(row: Row) -> tuple[Any, ...]:
    """Provider as in PROVIDERS, then the name with its numbers as numbers."""
    parts = re.split(r"(\d+)", row["name"])
    return [p.__name__ for p in PROVIDERS].index(row["provider"]), [int(p) if p.isdigit() else p for p in parts]


def flow(value: object) -> str:
    """A value as YAML in one line; whole numbers have no fraction."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else str(value)
    text = str(value)
    return f"'{text}'" if isinstance(value, str) and ("/" in text or ":" in text) else text


def main() -> int:
    parser = argparse.ArgumentParser(description="Write provisioner/catalog/data/cloud_sizes.yaml from the lists of sizes.")
    parser.add_argument("--check", action="store_true", help="Exit with 1 if the file is not what the lists give.")
    text = render()
    if not parser.parse_args().check:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    print(f"{TARGET.relative_to(ROOT)} is out of date: run python scripts/cloud_sizes.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
