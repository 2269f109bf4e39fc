"""Bundles on disk."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError
from provisioner.common.events import Events
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.facts import read
from provisioner.verify.facts_document import facts_document
from provisioner.verify.run import verify
from provisioner.verify.subject import Subject
from tests.support.healthy_bundle import bundle, expected, healthy


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    files = dict(bundle(healthy("p4d.24xlarge")).files)
    files["topo.txt"] = Output("", timed_out=True, seconds=30.0)
    files["ibstat.txt"] = Output("", missing=True, error="ibstat is not installed")
    files["services.txt"] = Output("", rc=0)
    written = Bundle(files, collected=12.5, seconds=3.0)
    written.write(tmp_path / "node")
    assert Bundle.read(tmp_path / "node") == written
    assert (tmp_path / "node").stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in (tmp_path / "node").iterdir())


def test_what_is_sent_to_the_checks_arrives() -> None:
    """Whatever a node wrote, halves of characters and line ends too, and whatever was known of it."""
    files = dict(bundle(healthy("p4d.24xlarge")).files)
    files["topo.txt"] = Output("GPU0\r\n\ud800 \u20ac\x00\n", rc=0, seconds=0.5, error="\udcff", partial="a part")
    files["ibstat.txt"] = Output("", missing=True, error="ibstat is not installed")
    complete, empty = Bundle(files, collected=12.5, seconds=3.0, received=13.0), Bundle(error="no route to host")
    stream = io.BytesIO()
    for index, sent in enumerate((complete, empty)):
        sent.send(stream, {"node": index})
    stream.seek(0)
    assert Bundle.receive(stream) == (complete, {"node": 0})
    assert Bundle.receive(stream) == (empty, {"node": 1})


def test_files_copied_by_hand_are_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_text(str(healthy("p4d.24xlarge")["topo.txt"]))
    (tmp_path / "notes.txt").write_text("mine")
    copied = Bundle.read(tmp_path)
    assert set(copied.files) == {"topo.txt"}
    document = facts_document(read(copied))
    assert document["topology"]["GPU0"]["GPU7"] == "NV12"
    assert document["gpus"] is None
    assert document["unreadable"] == []


def test_what_is_no_plain_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "dmesg.txt")
    (tmp_path / "topo.txt").mkdir()
    (tmp_path / "nvlink.txt").symlink_to(tmp_path / "nowhere")
    (tmp_path / "lspci.txt").symlink_to("/etc/passwd")
    (tmp_path / "ibstat.txt").symlink_to("/dev/zero")
    (tmp_path / "fi_info.txt").write_text("")
    statuses = {name: {"rc": 0} for name in ("dmesg.txt", "topo.txt", "nvlink.txt", "lspci.txt", "ibstat.txt")}
    (tmp_path / "probe.json").write_text(json.dumps({"files": statuses}))
    parsed = Bundle.from_json(Bundle.read(tmp_path).to_json())
    assert all(output.text == "" for output in parsed.files.values())
    sources = {name: (source.state, source.reason) for name, source in read(parsed).sources.items()}
    assert sources["dmesg.txt"] == ("unreadable", "dmesg.txt is no file: it is a pipe")
    assert sources["topo.txt"] == ("unreadable", "topo.txt is no file: it is a directory")
    for name in ("nvlink.txt", "lspci.txt", "ibstat.txt"):
        assert sources[name] == ("unreadable", f"{name} is no file: it is a symbolic link, which is not followed")
    assert sources["fi_info.txt"] == ("unreadable", "fi_info.txt is empty")


def test_a_status_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("{}")
    (tmp_path / "probe.json").symlink_to(tmp_path / "real.json")
    with pytest.raises(GpuprovError, match="symbolic link"):
        Bundle.read(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", "\x00", "[" * 100_000])
def test_a_broken_status_file_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "probe.json").write_text(content)
    with pytest.raises(GpuprovError):
        Bundle.read(tmp_path)


def test_a_status_of_wrong_types_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "probe.json").write_text(
        '{"files": {"topo.txt": {"rc": "0", "timed_out": 1, "error": 5}}, "collected": "x"}'
    )
    parsed = Bundle.read(tmp_path)
    assert parsed.files["topo.txt"] == Output("")
    assert parsed.collected is None


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(GpuprovError, match="no such directory"):
        Bundle.read(tmp_path / "none")


def test_a_machine_that_is_simulated_says_so_whoever_asks() -> None:
    real = bundle(healthy("p4d.24xlarge"))
    assert not real.simulated
    assert "simulated" not in facts_document(read(real))
    host = real.files["host.json"]
    processors = {"cpu": {"processors": 96, "models": {"simulated by gpuprov (p4d.24xlarge)": 96}}}
    in_sandbox = Bundle({**real.files, "host.json": Output(json.dumps(json.loads(host.text) | processors), rc=0)})
    assert in_sandbox.simulated
    assert facts_document(read(in_sandbox))["simulated"] is True
    subject = Subject("here", "", "", "p4d.24xlarge", in_sandbox, expected("p4d.24xlarge"))
    assert verify([subject], events=Events()).simulated
