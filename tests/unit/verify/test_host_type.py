"""`verify --host` without --machine: the outputs tell the type, and what needs none is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioner.cli import one_machine, verify
from provisioner.cli.main import run
from provisioner.common.errors import GpuprovError
from provisioner.verify import facts
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.parsers import dmesg
from tests.support.healthy_bundle import bundle, healthy

P4D = "p4d.24xlarge"
OFF = "[ 10.5] NVRM: Xid (PCI:0000:17:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"


assert verify.probe is one_machine.probe, "it is imported before anything is put in its place"


def answering(monkeypatch: pytest.MonkeyPatch, answer: Bundle) -> list[str]:
    hosts: list[str] = []
    monkeypatch.setattr(one_machine, "probe", lambda host, request: hosts.append(host) or answer)
    return hosts


def test_a_host_tells_its_type(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    probed_hosts = answering(monkeypatch, bundle(healthy(P4D)))
    subjects, _ = one_machine.of_no_fleet(None, "local", None, "quick")
    assert [subject.machine for subject in subjects] == [P4D] and len(probed_hosts) == 2
    assert f"machine: {P4D}, from " in capsys.readouterr().err


def test_a_host_of_no_known_type_is_judged_on_what_needs_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    probed_hosts = answering(monkeypatch, Bundle({"dmesg.txt": Output(OFF, rc=0)}))
    assert run(["verify", "--host", "local"]) == 1
    output = capsys.readouterr()
    assert "Xid 79" in output.out and "NOT HEALTHY" in output.out
    assert "machine: not known" in output.err and "nothing is started on a machine of no known type" in output.err
    assert probed_hosts == ["local"], "it is asked once"


def test_a_range_of_no_known_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, Bundle({"dmesg.txt": Output(OFF, rc=0)}))
    with pytest.raises(GpuprovError, match="machine: not known") as caught:
        one_machine.of_no_fleet(None, "me@dgx[01-02]", None, "quick")
    assert "--machine TYPE" in caught.value.hint


def test_a_gpu_of_an_xid_79_has_fallen_off_in_the_facts_too() -> None:
    document = dmesg.TOOLS[0].document
    assert document["fallen_off"](dmesg.parse(OFF)) == ["0000:17:00"]
    assert facts.read(Bundle({"dmesg.txt": Output(OFF, rc=0)})).log is not None


def test_what_was_read_is_called_by_its_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "messages").write_text(OFF)
    run(["verify", "--bundle", str(tmp_path / "messages")])
    assert "read as dmesg: messages" in capsys.readouterr().err
