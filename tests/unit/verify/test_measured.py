"""What the output of a node confirms of its machine's row, and how that comes into the catalogue."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import catalog
from provisioner.catalog.models import Machine
from provisioner.verify.facts import read
from provisioner.verify.measured import observed, rewritten
from tests.support.healthy_bundle import ALL, bundle, edit, healthy
from tests.support.rehearsal import ROOT

CATALOG = ROOT / "provisioner" / "catalog" / "data" / "machines.yaml"
KNOWN = catalog.load()


def seen(machine: str, texts: dict[str, Any] | None = None) -> dict[str, bool]:
    row = KNOWN.machine(machine)
    found = observed(read(bundle(texts or healthy(machine))), row, KNOWN.gpu(row.gpu_model))
    return {one.key: one.agrees for one in found}


@pytest.mark.parametrize("machine", ALL)
def test_a_healthy_node_confirms_its_row(machine: str) -> None:
    found = seen(machine)
    assert [key for key, agrees in found.items() if not agrees] == []
    assert {"gpu_model", "gpu_count", "gpu_memory_mib"} <= found.keys()


def test_what_a_node_shows_otherwise_is_denied() -> None:
    texts = healthy("dgx-h100")
    texts["nvidia-smi.xml"] = edit(str(texts["nvidia-smi.xml"]), 3, product_name="NVIDIA H20")
    assert seen("dgx-h100", texts)["gpu_model"] is False
    texts = healthy("dgx-h100")
    texts["topo.txt"] = str(texts["topo.txt"]).replace("NV18", "NV12")
    found = seen("dgx-h100", texts)
    assert (found["topo_peer_cell"], found["gpu_model"]) == (False, True)


def test_what_no_tool_printed_is_not_said() -> None:
    texts = healthy("dgx-h100")
    for name in ("topo.txt", "nvlink.txt", "lspci.txt", "host.json", "lsblk.json", "rdma.json"):
        texts.pop(name, None)
    assert seen("dgx-h100", texts).keys() == {"gpu_model", "gpu:product_names", "gpu_count", "gpu_memory_mib"}


def rows(text: str) -> dict[str, Machine]:
    return {row["name"]: Machine.model_validate(row) for row in yaml.safe_load(text)["machines"]}


@pytest.mark.parametrize("machine", sorted(row.name for row in KNOWN.machines()))
def test_the_row_says_what_is_measured_and_where_it_was_seen(machine: str) -> None:
    before = CATALOG.read_text(encoding="utf-8")
    after = rewritten(before, machine, ["numa_nodes", "gpu_count"], "output of 1 node's tools")
    changed, same = rows(after).pop(machine), rows(before)
    assert {"numa_nodes", "gpu_count"} <= set(changed.basis.measured)
    assert not {"numa_nodes", "gpu_count"} & set(changed.basis.unverified)
    assert set(same[machine].basis.unverified) - {"numa_nodes"} == set(changed.basis.unverified)
    assert changed.source == (*same[machine].source, "output of 1 node's tools")
    others = {name: row for name, row in rows(after).items() if name != machine}
    assert others == {name: row for name, row in same.items() if name != machine}


def archive(folder: Path, machine: str, *, ok: bool = True, **changes: str) -> Path:
    texts = {**healthy(machine), **changes}
    bundle(texts).write(folder / "evidence" / "node-0")
    head = {
        "schema": 1,
        "machine": machine,
        "simulated": False,
        "date": "2026-11-24",
        "nodes": [{"ok": ok, "checks": {}}],
    }
    (folder / "evidence" / "evidence.json").write_text(json.dumps(head))
    with tarfile.open(folder / "e.tar.gz", "w:gz") as packed:
        for path in sorted((folder / "evidence").rglob("*")):
            packed.add(path, path.relative_to(folder / "evidence"), recursive=False)
    return folder / "e.tar.gz"


def measured(*words: object) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "measured.py"), *map(str, words)], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_one_command_turns_rows_into_measured_ones(tmp_path: Path) -> None:
    copy = tmp_path / "machines.yaml"
    copy.write_text(CATALOG.read_text(encoding="utf-8"), encoding="utf-8")
    packed = archive(tmp_path, "workstation-rtx4090")
    code, said = measured(packed, "--write", "--catalog", copy)
    assert code == 0, said
    assert "gpu_model" in rows(copy.read_text(encoding="utf-8"))["workstation-rtx4090"].basis.measured
    assert (tmp_path / "captures" / "workstation-rtx4090-2026-11-24" / "node-0" / "nvidia-smi.xml").is_file()
    code, said = measured(packed, "--catalog", copy)
    assert code == 0 and "0 denied" in said


def test_a_machine_that_is_not_healthy_or_not_real_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    code, said = measured(archive(tmp_path / "a", "workstation-rtx4090", ok=False))
    assert code == 0 and "0 keys confirmed" in said and "it proves nothing" in said
    (tmp_path / "b").mkdir()
    host = json.loads(str(healthy("workstation-rtx4090")["host.json"]))
    host["files"]["proc/cpuinfo"] = "model name\t: simulated by gpuprov\n"
    code, said = measured(archive(tmp_path / "b", "workstation-rtx4090", **{"host.json": json.dumps(host)}), "--write")
    assert code == 1 and "rehearsal" in said


def test_what_is_no_evidence_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(b"no archive")
    code, said = measured(tmp_path / "x.tar.gz")
    assert code == 1 and "no evidence of a first run" in said and "Traceback" not in said
