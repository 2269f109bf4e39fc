"""What a node, an archive or a scanner wrote reaches a terminal: on lines of its own it could forge ours, and endless
it fills memory."""

from __future__ import annotations

import contextlib
import io
import json
import re
import tarfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from provisioner.cli.main import run
from provisioner.cli.one_machine import origin, supplied_at
from provisioner.common.paths import ClusterPaths
from provisioner.common.text import one_line
from provisioner.lifecycle import remote_exec
from provisioner.lifecycle.images.vulnerabilities import NotScannedError, parse
from provisioner.output.report import QuarantineOutput
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Mount
from provisioner.transport import ssh
from provisioner.verify.bundle import Bundle
from provisioner.verify.report.terminal import in_quarantine
from provisioner.verify.support_bundle import Supplied
from tests.support.healthy_bundle import bundle, healthy
from tests.unit.security.test_hostile_lock import NODE, ROW


def test_a_name_in_a_bundle_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = b"[    0.0] Linux version 6.1\n[    1.0] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.14\n"
    names = ["x/smi.xml\n[PASS] fake", "y\r\x1b[2J\u2028z", "dmesg\nnot used", "n" * 400]
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        for name in [*names, *(f"more/{number}" for number in range(40))]:
            info = tarfile.TarInfo(name)
            info.size = len(log)
            archive.addfile(info, io.BytesIO(log))
    supplied_at(tmp_path / "b.tar")
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith(("read as ", "not used: ", "read: ")) for line in lines)
    assert len(lines) <= 42 and max(map(len, lines)) < 700
    assert any(r"smi.xml\n[PASS] fake" in line for line in lines)


def test_a_reason_of_a_quarantine_is_one_line() -> None:
    entry = {"owner": "gpuprov", "since": "now", "reason": "Xid 79\ntrain-1: healthy", "problem": "x\r\ny"}
    assert len(in_quarantine("train-0", QuarantineOutput.model_construct(**entry)).splitlines()) == 1


@pytest.mark.parametrize("text", ["[" * 200_000, '{"matches": ' + "[" * 200_000, "[" * 200_000 + "]" * 200_000])
def test_a_scanners_report_without_an_end_is_none(text: str) -> None:
    with pytest.raises(NotScannedError, match="not JSON"):
        parse(text, "debian-12")


@pytest.mark.parametrize("path", ["/../../etc", "/efs/..", "/efs/./x", "/.", "/..", "//etc", "/efs//x", "efs"])
def test_a_mount_leads_nowhere_else(path: str) -> None:
    row = ROW | {"mounts": [asdict(Mount("nfs4", "fs-1:/", path, "hard"))]}
    with pytest.raises(ValueError, match="which is no folder"):
        fleet.parse([row])


def test_a_mount_is_one() -> None:
    assert fleet.parse([ROW])[0] == NODE
    for path in ("/efs/a.b/..c", "/data/"):
        assert fleet.parse([ROW | {"mounts": [asdict(Mount("nfs4", "fs-1:/", path, "hard"))]}])


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterPaths:
    monkeypatch.setattr(ssh, "argv", lambda paths, node: ["sh", "-c"])
    return ClusterPaths(tmp_path / "cluster.yaml", "test", sandbox=False)


def outputs(paths: ClusterPaths, command: str, nodes: int = 1) -> list[tuple[str, int, str]]:
    answers: list[tuple[str, int, str]] = []
    names = [f"train-{number}" for number in range(nodes)]
    remote_exec.run_on(paths, names, [command], lambda *answer: answers.append(answer), timeout_s=60)
    return answers


def test_output_without_an_end_is_cut_and_the_command_goes_on(paths: ClusterPaths, tmp_path: Path) -> None:
    ((_, status, text),) = outputs(paths, f"head -c 20000000 /dev/zero | tr '\\0' x; touch {tmp_path}/end; exit 3")
    assert status == 3 and (tmp_path / "end").exists()
    assert len(text) < remote_exec.MOST_OUTPUT + 200
    assert f"\n[{20_000_000 - remote_exec.MOST_OUTPUT} bytes more were left out: " in text[-200:]


def test_what_all_nodes_may_print_is_bounded_together(paths: ClusterPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_exec, "TOTAL_OUTPUT", 400_000)
    answers = outputs(paths, "head -c 300000 /dev/zero | tr '\\0' x", nodes=4)
    assert [len(text.partition("\n")[0]) for _, _, text in answers] == [100_000] * 4


def test_short_output_is_whole(paths: ClusterPaths) -> None:
    assert outputs(paths, "echo a; echo é >&2; printf '\\377'") == [("train-0", 0, "a\né\n\ufffd")]


def test_one_line() -> None:
    assert one_line("a\nb\tc\x1b[0m\u202e") == r"a\nb\tc\u202e"
    assert len(one_line("x" * 1000)) == 301


OWN_LINE = "x\nFAKE 1 of 1 nodes healthy\n"


def spoiled(value: Any) -> Any:
    """A document of JSON with a line of its own in each text."""
    if isinstance(value, dict):
        return {key: spoiled(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [spoiled(inner) for inner in value]
    return value + OWN_LINE if isinstance(value, str) else value


def spoil_the_probes_error(folder: Path) -> None:
    document = json.loads((folder / "probe.json").read_text())
    (folder / "probe.json").write_text(json.dumps(document | {"error": OWN_LINE}))


def spoil_the_files_errors(folder: Path) -> None:
    document = json.loads((folder / "probe.json").read_text())
    for file in document["files"].values():
        file.update(missing=True, error=OWN_LINE)
    (folder / "probe.json").write_text(json.dumps(document))


def spoil_values(folder: Path) -> None:
    for file in folder.glob("*.json"):
        if file.name != "probe.json":
            with contextlib.suppress(ValueError):
                file.write_text(json.dumps(spoiled(json.loads(file.read_text()))))
    smi = folder / "nvidia-smi.xml"
    tags = "product_name|vbios_version|driver_version|serial|uuid|persistence_mode|current_ecc"
    line = OWN_LINE.replace("\n", "&#10;")
    smi.write_text(re.sub(rf"(<(?:{tags})>)[^<]*", lambda value: value[1] + line, smi.read_text()))


@pytest.mark.parametrize("spoil", [spoil_the_probes_error, spoil_the_files_errors, spoil_values])
@pytest.mark.parametrize("command", ["verify", "facts"])
def test_a_bundle_writes_no_line_of_its_own(
    spoil: Callable[[Path], None], command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle(healthy("dgx-h100")).write(tmp_path / "n")
    spoil(tmp_path / "n")
    machine = ["--machine", "dgx-h100"] if command == "verify" else []
    run([command, "--bundle", str(tmp_path / "n"), *machine])
    captured = capsys.readouterr()
    assert [line for line in (captured.out + captured.err).splitlines() if line.strip().startswith("FAKE")] == []


@pytest.mark.parametrize("is_known", [True, False])
def test_the_name_of_a_bundle_is_one_line(is_known: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "n\nFAKE 1 of 1 nodes healthy\n"
    if is_known:
        bundle(healthy("dgx-h100")).write(folder)
    else:
        folder.mkdir()
        (folder / "a.txt").write_text("nothing\n")
    run(["verify", "--bundle", str(folder), "--machine", "dgx-h100", "--report", str(tmp_path / "report")])
    run(["facts", "--bundle", str(folder)])
    captured = capsys.readouterr()
    assert [line for line in (captured.out + captured.err).splitlines() if line.strip().startswith("FAKE")] == []
    assert re.search(r"^\s*FAKE", (tmp_path / "report" / "report.html").read_text(), re.M) is None


def test_a_bundle_of_hundreds_of_thousands_of_pieces_is_counted_in_json() -> None:
    pieces = tuple((f"session:{number}", "no tool") for number in range(200_000))
    supplied = Supplied(Bundle(), placed=(("a", "dmesg.txt"),), unplaced=pieces)
    output = origin(supplied)
    assert output is not None
    document = output.to_json()
    assert (len(document["unplaced"]), document["unplaced_omitted"]) == (1000, 199_000)
    assert "placed_omitted" not in document
