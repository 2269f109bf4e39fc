"""`gpuprov bmc` as a person calls it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

from provisioner.cli.main import run
from provisioner.machines.redfish import inventory, tree
from provisioner.spec import schema
from tests.support import bmc as fake

Start = Callable[..., fake.Bmc]


@pytest.fixture
def cluster(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, fake.Bmc]]:
    """Two R750 of a file, one of them with its serial number, and one that is not in it."""
    monkeypatch.setenv("BMC_USER", "admin")
    monkeypatch.setenv("BMC_PASSWORD", "not-a-real-one")
    bmcs = {name: start("dell-poweredge-r750-h100pcie") for name in ("a", "b", "other")}
    bmcs["b"].system["SerialNumber"] = "SECOND"
    bmcs["b"].known["/redfish/v1/Chassis/System.Embedded.1"]["SerialNumber"] = "SECOND"
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "name: lab\nsites:\n  lab:\n    provider: baremetal\n    credentials: env:BMC\n    hosts:\n"
        f"      a.lab: {{bmc: '{bmcs['a'].address}', serial: CNIVC0014M0388}}\n"
        f"      b.lab: {{bmc: '{bmcs['b'].address}'}}\n"
        "groups: {train: {machine: dgx-h100, count: 2}}\n"
    )
    return file, bmcs


def test_status_as_json_has_its_schema(
    cluster: tuple[Path, dict[str, fake.Bmc]], capsys: pytest.CaptureFixture[str]
) -> None:
    file, bmcs = cluster
    assert run(["bmc", str(file), "status", "--json"]) == 1, "a DGX H100 has eight GPUs"
    captured = capsys.readouterr()
    assert "train-0: BMC's certificate pinned: SHA256:" in captured.err
    document = json.loads(captured.out)
    jsonschema.validate(document, schema.schema("bmc"), cls=jsonschema.Draft202012Validator)
    first, two = document["machines"]
    assert (first["host"], first["serial"], first["gpus"], first["power"]) == ("a.lab", "CNIVC0014M0388", 1, "On")
    assert any(f["check"] == "gpus" and f["status"] == "fail" for f in first["findings"])
    assert two["serial"] == "SECOND"
    assert all(not bmc.changes and not bmc.sessions for bmc in bmcs.values()) and bmcs["other"].asked == 0


def test_a_password_that_its_maker_has_published_is_told_and_not_shown(
    cluster: tuple[Path, dict[str, fake.Bmc]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, bmcs = cluster
    for bmc in bmcs.values():
        bmc.user, bmc.password = "root", "calvin"
    monkeypatch.setenv("BMC_USER", "root")
    monkeypatch.setenv("BMC_PASSWORD", "calvin")
    assert run(["bmc", str(file), "status", "--json"]) == 1
    captured = capsys.readouterr()
    machines = json.loads(captured.out)["machines"]
    assert [f["status"] for machine in machines for f in machine["findings"] if f["check"] == "password"] == [
        "warn",
        "warn",
    ]
    assert "calvin" not in captured.out + captured.err


def test_one_that_fails_does_not_hide_the_others(
    cluster: tuple[Path, dict[str, fake.Bmc]], capsys: pytest.CaptureFixture[str]
) -> None:
    file, bmcs = cluster
    bmcs["a"].faults.wrong_password = True
    assert run(["bmc", str(file), "power"]) == 1
    out = capsys.readouterr().out
    assert "train-0: the BMC does not accept the user and password" in out and "SECOND" in out
    assert "not-a-real-one" not in out


def test_credentials_that_cannot_be_read_name_their_file(
    cluster: tuple[Path, dict[str, fake.Bmc]], capsys: pytest.CaptureFixture[str]
) -> None:
    file, bmcs = cluster
    file.write_text(file.read_text().replace("env:BMC", "file:bmc.yaml"))
    assert run(["bmc", str(file), "status", "a.lab"]) == 1
    out = capsys.readouterr().out
    assert f"train-0: {file.parent / 'bmc.yaml'}: the file of the BMCs' users and passwords" in out
    assert "No such file" in out and bmcs["a"].asked == 0
    (file.parent / "bmc.yaml").write_text("all: {user: admin, password: x}")
    (file.parent / "bmc.yaml").chmod(0o644)
    run(["bmc", str(file), "status", "a.lab"])
    assert f"{file.parent / 'bmc.yaml'}: others may read this file" in capsys.readouterr().out


def test_event_logs(cluster: tuple[Path, dict[str, fake.Bmc]], capsys: pytest.CaptureFixture[str]) -> None:
    file, _ = cluster
    assert run(["bmc", str(file), "sel", "b.lab"]) == 0
    out = capsys.readouterr().out
    assert "train-1: 2024-06-11T00:13:00-05:00 OK Sel: An OEM diagnostic event occurred." in out and "a.lab" not in out


def test_no_serial_number_is_cut_in_a_narrow_terminal(
    cluster: tuple[Path, dict[str, fake.Bmc]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, bmcs = cluster
    for key in ("/redfish/v1/Systems/System.Embedded.1", "/redfish/v1/Chassis/System.Embedded.1"):
        bmcs["b"].known[key]["SerialNumber"] = "SECOND OF THE TWO"
    monkeypatch.setattr("provisioner.cli.tables._width", lambda: 40)
    run(["bmc", str(file), "status", "b.lab"])
    out = capsys.readouterr().out
    assert "SECOND OF THE TWO" in out and "PowerEdge R750" in out and "b.lab" in out


def test_power_is_switched_on_what_is_named_alone(
    cluster: tuple[Path, dict[str, fake.Bmc]], capsys: pytest.CaptureFixture[str]
) -> None:
    file, bmcs = cluster
    assert run(["bmc", str(file), "power", "force-off", "--yes"]) == 2
    assert "needs the machines' names" in capsys.readouterr().err
    assert run(["bmc", str(file), "power", "force-off", "other.lab", "--yes"]) == 2
    assert "is not a machine with a BMC" in capsys.readouterr().err
    assert run(["bmc", str(file), "power", "force-off", "b.lab", "--yes"]) == 2
    assert "its BMC shows SECOND" in capsys.readouterr().err
    assert run(["bmc", str(file), "power", "force-off", "a.lab"]) == 2, "nobody can be asked"
    assert all(not bmc.changes for bmc in bmcs.values())
    assert run(["bmc", str(file), "power", "force-off", "a.lab", "--yes"]) == 0
    assert [len(bmc.changes) for bmc in bmcs.values()] == [1, 0, 0]
    assert bmcs["a"].system["PowerState"] == "Off"
    assert "a.lab: force-off sent; power is Off now" in capsys.readouterr().out


EVIL = "\x1b[2J\x9b31m[/b]\nx"


def test_what_a_bmc_says_moves_no_cursor(
    cluster: tuple[Path, dict[str, fake.Bmc]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor writes a line that looks like gpuprov's; brackets are no markup."""
    file, bmcs = cluster
    for field in ("SerialNumber", "Model", "PowerState"):
        bmcs["b"].system[field] = EVIL
    bmcs["b"].known["/redfish/v1/Chassis/System.Embedded.1"]["SerialNumber"] = EVIL
    entries = bmcs["b"].known["/redfish/v1/Managers/iDRAC.Embedded.1/LogServices/Sel/Entries"]
    entries["Members"][0]["Message"] = EVIL
    questions: list[str] = []
    monkeypatch.setattr(
        "provisioner.cli.confirm.confirmed", lambda question, **_: bool(questions.append(question)) or True
    )
    calls = [["status"], ["power"], ["sel"], ["power", "force-off", "b.lab"],
             ["power", "force-off", "b.lab", "--yes"]]  # fmt: skip
    for arguments in calls:
        assert run(["bmc", str(file), *arguments]) in (0, 1, 2, 3)
        captured = capsys.readouterr()
        assert "\\x1b[2J\\x9b31m[/b]" in captured.out + captured.err + "".join(questions), arguments
        assert not {"\x1b", "\x9b"} & set(captured.out + captured.err + "".join(questions)), arguments
        assert "\nx" not in captured.out + captured.err + "".join(questions), arguments
    run(["bmc", str(file), "status", "b.lab", "--json"])
    (row,) = json.loads(capsys.readouterr().out)["machines"]
    assert row["serial"] == "\\x1b[2J\\x9b31m[/b]\nx"


def test_power_of_another_machine_than_is_written_down(
    cluster: tuple[Path, dict[str, fake.Bmc]], capsys: pytest.CaptureFixture[str]
) -> None:
    file, bmcs = cluster
    file.write_text(file.read_text().replace("CNIVC0014M0388", "ELSEWHERE"))
    assert run(["bmc", str(file), "power", "force-off", "a.lab", "--yes"]) == 3
    assert "not of ELSEWHERE. Nothing was changed" in capsys.readouterr().err
    assert bmcs["a"].changes == []


def test_another_machine_than_is_written_down_fails(
    cluster: tuple[Path, dict[str, fake.Bmc]], capsys: pytest.CaptureFixture[str]
) -> None:
    file, _ = cluster
    file.write_text(file.read_text().replace("CNIVC0014M0388", "ELSEWHERE"))
    assert run(["bmc", str(file), "status", "train-0"]) == 1
    out = capsys.readouterr().out
    assert "train-0: FAIL: serial number: the BMC is that of the machine CNIVC0014M0388, not of ELSEWHERE" in out


def test_what_a_bmc_showed_is_kept_and_read_again(
    cluster: tuple[Path, dict[str, fake.Bmc]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, bmcs = cluster
    run(["bmc", str(file), "status", "a.lab", "--save", str(tmp_path / "kept")])
    machine_facts = inventory.read(tree.saved(tmp_path / "kept" / "a.lab.redfish.json"))
    assert (machine_facts.model, len(machine_facts.gpus.read)) == ("PowerEdge R750", 1)
    request_counts = {name: bmc.asked for name, bmc in bmcs.items()}
    capsys.readouterr()
    assert run(["bmc", str(file), "status", "a.lab", "--from", str(tmp_path / "kept"), "--json"]) == 1
    (saved_machine,) = json.loads(capsys.readouterr().out)["machines"]
    assert saved_machine["serial"] == "CNIVC0014M0388" and any(f["status"] == "fail" for f in saved_machine["findings"])
    assert run(["bmc", str(file), "power", "--from", str(tmp_path / "kept")]) == 1, "of b.lab nothing was kept"
    assert "b.lab.redfish.json: no Redfish tree was saved" in capsys.readouterr().out
    assert request_counts == {name: bmc.asked for name, bmc in bmcs.items()}


def test_the_power_of_one_machine_says_nothing_of_the_budget(
    cluster: tuple[Path, dict[str, fake.Bmc]], capsys: pytest.CaptureFixture[str]
) -> None:
    file, _ = cluster
    file.write_text(file.read_text().replace("    hosts:\n", "    power_budget_w: 1000\n    hosts:\n"))
    run(["bmc", str(file), "status", "a.lab"])
    assert "train-0: unknown: conditions, power budget" in capsys.readouterr().out
    run(["bmc", str(file), "status"])
    assert "train-0: warning: power budget: the machines of the site draw 1228 W" in capsys.readouterr().out


def test_a_bmc_with_endless_parts_is_not_understood(
    cluster: tuple[Path, dict[str, fake.Bmc]], capsys: pytest.CaptureFixture[str]
) -> None:
    file, bmcs = cluster
    thermal = bmcs["a"].known["/redfish/v1/Chassis/System.Embedded.1/Thermal"]
    thermal["Temperatures"] = thermal["Temperatures"][:1] * 5000
    run(["bmc", str(file), "status"])
    out = capsys.readouterr().out
    assert "train-0: unknown: facts" in out and "train-1: FAIL: gpus" in out


def test_new_events_are_those_since_the_last_look(
    cluster: tuple[Path, dict[str, fake.Bmc]], capsys: pytest.CaptureFixture[str]
) -> None:
    file, bmcs = cluster
    run(["bmc", str(file), "status", "a.lab"])
    capsys.readouterr()
    entries = bmcs["a"].known["/redfish/v1/Managers/iDRAC.Embedded.1/LogServices/Sel/Entries"]
    entries["Members"].insert(
        0, {**entries["Members"][0], "Created": "2026-01-01", "Severity": "Critical", "Message": "PSU lost"}
    )
    run(["bmc", str(file), "status", "a.lab"])
    assert "train-0: warning: events: 1 since the last look: PSU lost" in capsys.readouterr().out
    run(["bmc", str(file), "status", "a.lab"])
    assert "since the last look" not in capsys.readouterr().out
    (seen_file,) = file.parent.rglob("bmc_seen.json")
    seen_file.write_text("[" * 5000)
    run(["bmc", str(file), "status", "a.lab"])
    assert "since the last look" in capsys.readouterr().out, "a damaged file: everything is new"


def test_a_file_with_method_redfish_has_machines_that_are_installed(tmp_path: Path) -> None:
    """And `install` is what chooses them; with method ssh they are machines that exist."""
    from provisioner.lifecycle import machines
    from provisioner.lifecycle.session import open_cluster
    from provisioner.machines.bmc import RedfishMachines
    from provisioner.machines.hosts import HostMachines

    file = tmp_path / "cluster.yaml"
    text = (
        "name: lab\nsites:\n  lab:\n    provider: baremetal\n    method: redfish\n    credentials: env:BMC\n"
        "    install: {iso: netboot, serve: '10.0.0.5:8443', reinstall: [A12]}\n"
        "    hosts: {'dgx[1-2].lab': {bmc: 'bmc[1-2]:444', serial: [A12, B12]}}\n"
        "groups: {train: {machine: dgx-h100, count: 2}}\n"
    )
    file.write_text(text)
    cluster = open_cluster(file, sandbox=False)
    site_machines = machines.of_site(cluster, "lab", None)  # type: ignore[arg-type]
    assert isinstance(site_machines, RedfishMachines)
    hosts = cluster.providers.at("lab").hosts
    assert hosts is not None
    assert [(host.management, host.serial) for host in hosts.listed(["train"])] == [
        (("bmc1", 444), "A12"),
        (("bmc2", 444), "B12"),
    ]
    assert site_machines._installation.source == tmp_path / "netboot"
    file.write_text(text.replace("method: redfish", "method: ssh").replace("    install:", "    #"))
    plain = machines.of_site(open_cluster(file, sandbox=False), "lab", None)  # type: ignore[arg-type]
    assert isinstance(plain, HostMachines) and not isinstance(plain, RedfishMachines)


def test_preflight_says_what_an_installation_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from provisioner.lifecycle.session import open_cluster
    from provisioner.machines.providers.baremetal.provider import BareMetal
    from provisioner.machines.providers.base import Place
    from tests.support.plans import cluster_spec, plan

    file = tmp_path / "cluster.yaml"
    file.write_text(
        "name: lab\nsites:\n  here:\n    provider: baremetal\n    method: redfish\n    credentials: env:NOWHERE\n"
        "    install: {iso: netboot}\n    hosts: {n1: {bmc: b1}}\ngroups: {train: {machine: dgx-h100}}\n"
    )
    settings = open_cluster(file, sandbox=False).spec.sites["here"]
    provider = BareMetal(Place("lab", "here", settings, tmp_path))
    monkeypatch.setattr("shutil.which", lambda _: None)
    findings = {finding.subject: finding for finding in provider.preflight(plan(cluster_spec("dgx-h100")), ())}
    assert {name: finding.status for name, finding in findings.items()} == {
        "hosts": "ok",
        "answers": "warning",
        "install.iso": "blocks",
        "install": "blocks",
        "credentials": "blocks",
    }
    assert "NOWHERE_USER and NOWHERE_PASSWORD are not set" in findings["credentials"].message
