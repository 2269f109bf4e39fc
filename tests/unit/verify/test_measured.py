"""What the output of a node confirms of its machine's row, and how that comes into the catalogue."""

from __future__ import annotations

import io
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
from tests.support.sandbox_cluster import ROOT

CATALOG = ROOT / "provisioner" / "catalog" / "data" / "machines.yaml"
KNOWN = catalog.load()


def agreement_by_key(machine: str, texts: dict[str, Any] | None = None) -> dict[str, bool]:
    row = KNOWN.machine(machine)
    observations = observed(read(bundle(texts or healthy(machine))), row, KNOWN.gpu(row.gpu_model))
    return {observation.key: observation.agrees for observation in observations}


@pytest.mark.parametrize("machine", ALL)
def test_a_healthy_node_confirms_its_row(machine: str) -> None:
    agreement = agreement_by_key(machine)
    assert [key for key, agrees in agreement.items() if not agrees] == []
    assert {"gpu_model", "gpu_count", "gpu_memory_mib"} <= agreement.keys()


def test_what_a_node_shows_otherwise_is_denied() -> None:
    texts = healthy("dgx-h100")
    texts["nvidia-smi.xml"] = edit(str(texts["nvidia-smi.xml"]), 3, product_name="NVIDIA H20")
    assert agreement_by_key("dgx-h100", texts)["gpu_model"] is False
    texts = healthy("dgx-h100")
    texts["topo.txt"] = str(texts["topo.txt"]).replace("NV18", "NV12")
    agreement = agreement_by_key("dgx-h100", texts)
    assert (agreement["topo_peer_cell"], agreement["gpu_model"]) == (False, True)


def test_what_no_tool_printed_is_not_said() -> None:
    texts = healthy("dgx-h100")
    for name in ("topo.txt", "nvlink.txt", "lspci.txt", "host.json", "lsblk.json", "rdma.json"):
        texts.pop(name, None)
    assert agreement_by_key("dgx-h100", texts).keys() == {
        "gpu_model",
        "gpu:product_names",
        "gpu_count",
        "gpu_memory_mib",
    }


def rows(text: str) -> dict[str, Machine]:
    return {row["name"]: Machine.model_validate(row) for row in yaml.safe_load(text)["machines"]}


@pytest.mark.parametrize("machine", sorted(row.name for row in KNOWN.listed.values()))
def test_the_row_says_what_is_measured_and_where_it_was_seen(machine: str) -> None:
    catalog_text = CATALOG.read_text(encoding="utf-8")
    after = rewritten(catalog_text, machine, ["numa_nodes", "gpu_count"], "output of 1 node's tools")
    changed, same = rows(after).pop(machine), rows(catalog_text)
    assert {"numa_nodes", "gpu_count"} <= set(changed.basis.measured)
    assert not {"numa_nodes", "gpu_count"} & set(changed.basis.unverified)
    assert set(same[machine].basis.unverified) - {"numa_nodes"} == set(changed.basis.unverified)
    assert changed.source == (*same[machine].source, "output of 1 node's tools")
    other_rows = {name: row for name, row in rows(after).items() if name != machine}
    assert other_rows == {name: row for name, row in same.items() if name != machine}


def archive(folder: Path, machine: str, *, ok: bool = True, head: dict[str, Any] | None = None, **changes: str) -> Path:
    texts = {**healthy(machine), **changes}
    bundle(texts).write(folder / "evidence" / "node-0")
    extra = head or {}
    head = {
        "schema": 1,
        "machine": machine,
        "simulated": False,
        "date": "2026-11-24",
        "nodes": [{"ok": ok, "checks": {}}],
        **extra,
    }
    (folder / "evidence" / "evidence.json").write_text(json.dumps(head))
    with tarfile.open(folder / "e.tar.gz", "w:gz") as packed:
        for path in sorted((folder / "evidence").rglob("*")):
            packed.add(path, path.relative_to(folder / "evidence"), recursive=False)
    return folder / "e.tar.gz"


def measured(*arguments: object) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "measured.py"), *map(str, arguments)], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def test_one_command_turns_rows_into_measured_ones(tmp_path: Path) -> None:
    copy = tmp_path / "machines.yaml"
    copy.write_text(CATALOG.read_text(encoding="utf-8"), encoding="utf-8")
    packed = archive(tmp_path, "workstation-rtx4090")
    code, output = measured(packed, "--write", "--catalog", copy)
    assert code == 0, output
    assert "gpu_model" in rows(copy.read_text(encoding="utf-8"))["workstation-rtx4090"].basis.measured
    assert (tmp_path / "captures" / "workstation-rtx4090-2026-11-24" / "node-0" / "nvidia-smi.xml").is_file()
    code, output = measured(packed, "--catalog", copy)
    assert code == 0 and "0 denied" in output


def test_a_machine_that_is_not_healthy_or_not_real_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    code, output = measured(archive(tmp_path / "a", "workstation-rtx4090", ok=False))
    assert code == 0 and "0 keys confirmed" in output and "it proves nothing" in output
    (tmp_path / "b").mkdir()
    host = json.loads(str(healthy("workstation-rtx4090")["host.json"]))
    host["files"]["proc/cpuinfo"] = "model name\t: simulated by gpuprov\n"
    code, output = measured(
        archive(tmp_path / "b", "workstation-rtx4090", **{"host.json": json.dumps(host)}), "--write"
    )
    assert code == 1 and "sandbox run's output" in output


def test_what_is_no_evidence_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.tar.gz").write_bytes(b"no archive")
    code, output = measured(tmp_path / "x.tar.gz")
    assert code == 1 and "no evidence of a first run" in output and "Traceback" not in output


RTX = "workstation-rtx4090"
OK = {"ok": True, "checks": {}}


@pytest.mark.parametrize(
    "head",
    [
        {"machine": "no-such-machine"},
        {"machine": ["a"]},
        {"machine": "../../../tmp/evil"},
        {"date": "../../../../tmp/evil"},
        {"date": "2026-11-24\n      - injected"},
        {"date": None},
        {"simulated": None},
        {"simulated": "no"},
        {"nodes": [1]},
        {"nodes": {"ok": True}},
        {"nodes": [OK, OK]},  # of the second there is nothing
    ],
)
def test_evidence_of_a_strange_form_is_refused(tmp_path: Path, head: dict[str, Any]) -> None:
    copy = tmp_path / "machines.yaml"
    copy.write_text(CATALOG.read_text(encoding="utf-8"), encoding="utf-8")
    code, output = measured(archive(tmp_path, RTX, head=head), "--write", "--catalog", copy)
    assert (code, "Traceback" in output) == (1, False), output
    assert copy.read_text(encoding="utf-8") == CATALOG.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["link", "many", "cut", "deep"])
def test_an_archive_of_a_strange_form_is_refused(tmp_path: Path, kind: str) -> None:
    packed = archive(tmp_path, RTX)
    if kind == "cut":
        packed.write_bytes(packed.read_bytes()[:-200])
    else:
        with tarfile.open(packed, "w:gz") as tar:
            tar.add(tmp_path / "evidence" / "node-0", "node-0")
            info = tarfile.TarInfo("evidence.json")
            if kind == "link":
                info.type, info.linkname = tarfile.SYMTYPE, "node-0/nvidia-smi.xml"
                tar.addfile(info)
            elif kind == "many":
                for number in range(10_001):
                    tar.addfile(tarfile.TarInfo(f"x{number}"))
            else:
                info.size = 200_000
                tar.addfile(info, io.BytesIO(b"[" * 200_000))
    code, output = measured(packed)
    assert (code, "Traceback" in output) == (1, False), output


def test_a_sandbox_is_not_written_by_another_name_of_the_catalogue(tmp_path: Path) -> None:
    catalog_text = CATALOG.read_text(encoding="utf-8")
    try:
        packed = archive(tmp_path, RTX, head={"simulated": True})
        code, output = measured(packed, "--write", "--catalog", CATALOG.relative_to(ROOT))
        assert (code, "sandbox run's output" in output) == (1, True), output
        assert CATALOG.read_text(encoding="utf-8") == catalog_text
    finally:
        CATALOG.write_text(catalog_text, encoding="utf-8")


def two(folder: Path, second: dict[str, Any], machine: str = RTX) -> tuple[int, str]:
    texts = {"nvidia-smi.xml": healthy(RTX)["nvidia-smi.xml"]}
    bundle(texts).write(folder / "evidence" / "node-1")
    return measured(archive(folder, RTX, head={"nodes": [OK, second]}))


def test_what_one_of_two_nodes_shows_is_not_confirmed(tmp_path: Path) -> None:
    code, output = two(tmp_path, OK)
    assert code == 0 and "not every node shows" in output and "numa_nodes" in output.partition("not every")[2], output


def test_a_node_of_another_type_proves_nothing_of_this_one(tmp_path: Path) -> None:
    code, output = two(tmp_path, {**OK, "machine": "dgx-h100"})
    assert code == 0 and "node 1 is dgx-h100: it proves nothing" in output and "not every node" not in output, output


def test_what_a_node_printed_reaches_no_terminal_as_it_is(tmp_path: Path) -> None:
    texts = edit(str(healthy(RTX)["nvidia-smi.xml"]), 0, product_name="\u202eRTX \u009b31m 4090")
    code, output = measured(archive(tmp_path, RTX, **{"nvidia-smi.xml": texts}))
    assert code == 1 and "\u202e" not in output and "\u009b" not in output, output


def test_lists_of_nothing_confirm_nothing() -> None:
    texts = healthy("azure-nd96isr-h100-v5" if "azure-nd96isr-h100-v5" in ALL else "dgx-h100")
    texts["lsblk.json"] = '{"blockdevices": []}'
    texts["lspci.txt"] = "00:00.0 0600: 8086:1237 (rev 02)\n"
    assert (
        not {"local_nvme.count", "nvlink.nvswitch_count", "fabric_manager_required"}
        & agreement_by_key("dgx-h100", texts).keys()
    )


def test_a_confirmed_key_of_an_unverified_mapping_is_measured() -> None:
    text = CATALOG.read_text(encoding="utf-8")
    name = next(row.name for row in KNOWN.listed.values() if "network" in row.basis.unverified)
    row = rows(rewritten(text, name, ["network.ports"], "seen"))[name]
    assert (row.basis.of("network.ports"), row.basis.of("network.kind")) == ("measured", "unverified")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    basis: {", "    basis: # a word\n      {"),
        ("    source:\n", "    source: []\n    notes:\n"),
    ],
)
def test_a_row_that_is_written_otherwise_is_left_alone(old: str, new: str) -> None:
    text = CATALOG.read_text(encoding="utf-8")
    start = text.index(f"  - name: {RTX}\n")
    odd = text[:start] + text[start:].replace(old, new, 1)
    assert odd != text
    with pytest.raises(ValueError, match="basis"):
        rewritten(odd, RTX, ["gpu_count"], "seen")
