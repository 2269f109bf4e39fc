"""Turn rows of the catalogue into measured ones, by the evidence of a real machine.

    python scripts/measured.py evidence-g6.xlarge.tar.gz            # what the machine shows of each key
    python scripts/measured.py evidence-g6.xlarge.tar.gz --write    # into machines.yaml, the output beside the captures

The archive is scripts/first_run.py's, or one that is laid out like it: evidence.json and a folder of
`gpuprov collect --redact` for each node. Only what all its healthy nodes show counts. A key that a machine denies is
said and never written: its row is wrong, or the machine is. What a sandbox run shows is refused, but
for a copy of the catalogue (--catalog).
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import shutil
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import Any

from provisioner import catalog
from provisioner.catalog.models import Gpu, Machine
from provisioner.common.errors import GpuprovError
from provisioner.common.text import printable
from provisioner.verify.bundle import Bundle
from provisioner.verify.facts import read
from provisioner.verify.measured import Observed, observed, rewritten

ROOT = Path(__file__).resolve().parents[1]
CATALOG = ROOT / "provisioner" / "catalog" / "data" / "machines.yaml"
CAPTURES = ROOT / "tests" / "unit" / "verify" / "captures" / "nodes"
LARGEST = 64 << 20
"""Bytes of an archive, unpacked."""
MOST = 10_000
"""Files of an archive."""


def unpacked(archive: Path, folder: Path) -> dict[str, Any]:
    """The archive's evidence.json, its files below the folder. Raises SystemExit for what is none."""
    try:
        size = 0
        with tarfile.open(archive) as packed:
            for count, info in enumerate(packed):  # stops before the rest is unpacked
                size += info.size
                if size > LARGEST or count > MOST:
                    raise SystemExit(f"{archive}: more than {MOST} files or {LARGEST >> 20} MiB, unpacked")
                if not (info.isfile() or info.isdir()):
                    raise ValueError(f"{info.name} is a link or a device")
            packed.extractall(folder, filter="data")
        evidence = json.loads((folder / "evidence.json").read_text(encoding="utf-8"))
        if evidence["schema"] != 1 or not isinstance(evidence["simulated"], bool):
            raise ValueError("of another schema")
        if not re.fullmatch(r"\d{4}-\d\d-\d\d", evidence["date"]) or not isinstance(evidence["machine"], str):
            raise ValueError("no date, or no machine")
        if not all(isinstance(node, dict) for node in evidence["nodes"]) or not isinstance(evidence["nodes"], list):
            raise ValueError("its nodes are missing")
        return dict(evidence)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, ValueError, KeyError, TypeError,
            RecursionError) as error:  # fmt: skip
        raise SystemExit(printable(f"{archive}: no evidence of a first run: {error}")) from None


def of_nodes(
    folder: Path, evidence: dict[str, Any], machine: Machine, gpu: Gpu
) -> tuple[dict[str, list[Observed]], int]:
    """Key → what each healthy node of this machine type shows of it, and how many such nodes there are."""
    observations: dict[str, list[Observed]] = {}
    healthy = 0
    for number, node in enumerate(evidence["nodes"]):
        if node.get("ok") is not True:
            print(f"node {number} was not healthy: it proves nothing")
            continue
        if node.get("machine", machine.name) != machine.name:
            print(printable(f"node {number} is {node['machine']}: it proves nothing of {machine.name}"))
            continue
        healthy += 1
        for observation in observed(read(Bundle.read(folder / f"node-{number}")), machine, gpu):
            observations.setdefault(observation.key, []).append(observation)
    return observations, healthy


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--write", action="store_true", help="write what is confirmed into the catalogue")
    parser.add_argument("--catalog", type=Path, default=CATALOG, help="another machines.yaml than this checkout's")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        evidence = unpacked(options.archive, folder)
        simulated = evidence["simulated"] or any(
            Bundle.read(path).simulated for path in sorted(folder.glob("node-*")) if path.is_dir()
        )
        known, name = catalog.load(), evidence["machine"]
        row = known.machine(name)
        observations, healthy = of_nodes(folder, evidence, row, known.gpu(row.gpu_model))
        print(f"{'key':26} {'catalogue':28} {'node':28} {'rests on':12} by")
        for key, key_observations in observations.items():
            basis = row.basis.of(key) if not key.startswith("gpu:") else "gpus.yaml"
            agrees = "" if all(observation.agrees for observation in key_observations) else "  DENIED"
            for shown_row in dict.fromkeys(
                (observation.row, observation.node, observation.tool) for observation in key_observations
            ):
                print(printable(f"{key:26} {shown_row[0]:28} {shown_row[1]:28} {basis:12} {shown_row[2]}{agrees}"))
        denied = [key for key, values in observations.items() if not all(observation.agrees for observation in values)]
        some = [key for key, values in observations.items() if len(values) < healthy and key not in denied]
        confirmed = [key for key in observations if key not in (*denied, *some) and not key.startswith("gpu:")]
        new = [key for key in confirmed if row.basis.of(key) != "measured"]
        if simulated:
            print("\nthis is a sandbox run's output: it proves nothing of a real machine")
        print(f"\n{len(confirmed)} keys confirmed, {len(new)} of them newly measured; {len(denied)} denied")
        if denied:
            print(f"look at {', '.join(denied)}: correct the row and its source, or find out what the machine has")
        if some:
            print(f"not every node shows {', '.join(some)}: they are not confirmed")
        if not options.write:
            return 1 if denied else 0
        ours = options.catalog.resolve() == CATALOG
        if simulated and ours:
            raise SystemExit("a sandbox run's output is not written")
        if not new:
            return 1 if denied else 0
        captures = CAPTURES if ours else options.catalog.parent / "captures"
        target = captures / f"{name}-{evidence['date']}"
        source = f"output of {healthy} nodes, {evidence['date']}: tests/unit/verify/captures/nodes/{target.name}"
        text = rewritten(options.catalog.read_text(encoding="utf-8"), name, new, source)
        if target.exists():
            raise SystemExit(f"{target} is there: another archive of that day was written before")
        shutil.copytree(folder, target)
        options.catalog.write_text(text, encoding="utf-8")
        print(f"written: {options.catalog}, {target}")
        print("now: python scripts/check_docs.py && pytest tests/unit/catalog tests/unit/verify/test_evidence.py")
        return 1 if denied else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (GpuprovError, OSError, ValueError) as error:
        sys.exit(printable(str(error)))
