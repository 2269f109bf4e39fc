"""`gpuprov netboot`: what it needs, what it writes, and how it ends; the web server is real, dnsmasq is not started."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from provisioner.cli.main import app
from provisioner.common.errors import GpuprovError
from provisioner.lifecycle import netboot
from provisioner.lifecycle.session import open_cluster
from provisioner.lifecycle.sharing.shared_files import is_shared
from provisioner.machines.journal import Installation, Journal
from provisioner.machines.netboot import dnsmasq

CLUSTER = """name: rack
sites:
  lab:
    provider: baremetal
    method: pxe
    pxe: {{ interface: {interface}{gateway} }}
    install: {{ os: debian-12, iso: netboot, serve: "{serve}", reinstall: [GPU-0002] }}
    hosts:
      n1.lab: {{ mac: "52:54:00:00:00:01", serial: GPU-0001, address: {address} }}
      n2.lab: {{ mac: "52:54:00:00:00:02", serial: GPU-0002, address: 127.0.0.12 }}
groups: {{ train: {{ machine: dgx-h100, count: 2 }} }}
"""


class Daemon:
    """A dnsmasq that runs."""

    returncode = 0

    def poll(self) -> None:
        """It never ends."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(dnsmasq, "missing", list)
    (tmp_path / "netboot").mkdir()
    for name in ("linux", "initrd.gz"):
        (tmp_path / "netboot" / name).write_bytes(b"x" * 1000)
    return tmp_path


def cluster(
    folder: Path, interface: str = "lo", serve: str = "127.0.0.1:0", address: str = "127.0.0.11", gateway: str = ""
) -> Path:
    file = folder / "cluster.yaml"
    via = f", gateway: {gateway}" if gateway else ""
    file.write_text(CLUSTER.format(interface=interface, serve=serve, address=address, gateway=via))
    return file


def journal(folder: Path) -> Journal:
    return Journal(folder / ".gpuprov/rack/sites/lab/netboot.json")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"interface": "nosuch0"}, "no network interface nosuch0"),
        ({"serve": "127.7.7.7:80"}, "has no IPv4 address 127.7.7.7: it has 127.0.0.1/8"),
        ({"address": "10.9.9.9"}, "which is not one of 127.0.0.0/8"),
        ({"address": "127.0.0.1"}, "which is this computer's own"),
        ({"address": "127.0.0.0"}, "127.0.0.0, which is that of the network 127.0.0.0/8 itself"),
        ({"address": "127.255.255.255"}, "127.255.255.255, which is the broadcast address of 127.0.0.0/8"),
        ({"gateway": "10.9.9.1"}, "pxe.gateway is 10.9.9.1, which is not one of 127.0.0.0/8"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(
    folder: Path, keys: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dnsmasq, "running", lambda *_: pytest.fail("dnsmasq was started"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    done = CliRunner().invoke(app, ["netboot", str(cluster(folder, **keys)), "--run", "--yes"])
    assert isinstance(done.exception, GpuprovError)
    assert message in str(done.exception)


def test_what_is_missing_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dnsmasq, "missing", lambda: ["dnsmasq-base"])
    done = CliRunner().invoke(app, ["netboot", str(cluster(folder))])
    assert "dnsmasq-base is not installed" in str(done.exception)
    (folder / "netboot").rename(folder / "gone")
    monkeypatch.setattr(dnsmasq, "missing", list)
    assert "is not there" in str(CliRunner().invoke(app, ["netboot", str(folder / "cluster.yaml")]).exception)
    other = folder / "other.yaml"
    other.write_text("name: o\nsites: { a: { provider: baremetal, hosts: { b: {} } } }\n"
                     "groups: { g: { machine: dgx-h100 } }\n")  # fmt: skip
    assert "no site has method: pxe" in str(CliRunner().invoke(app, ["netboot", str(other)]).exception)


def test_without_run_it_only_writes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dnsmasq, "running", lambda *_: pytest.fail("dnsmasq was started"))
    done = CliRunner().invoke(app, ["netboot", str(cluster(folder, serve="127.0.0.1:8077"))])
    assert done.exit_code == 0, done.output
    written = folder / ".gpuprov/rack/sites/lab/netboot/dnsmasq.conf"
    assert f"wrote {written}" in done.output
    assert "n1.lab: would be installed" in done.output
    assert "dhcp-boot=tag:ipxe,http://127.0.0.1:8077/boot.ipxe" in written.read_text()
    assert journal(folder).load() == {}


def test_a_run_ends_when_every_machine_is_installed_or_has_failed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n1 asks, gets all of its installer and answers by ssh with its own mark; n2, which failed before and is named
    under `reinstall`, is given another one, refuses it, and is not given a third."""
    journal(folder).file.parent.mkdir(parents=True)
    failed = Installation("n2.lab", "GPU-0002")
    journal(folder).note(failed, "failed")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    ssh_checks: list[tuple[str, str]] = []

    def came_up(_: Any, host: Any, user: str, carried: str | None, token: str, host_key: str) -> bool:
        ssh_checks.append((host.name, token))
        assert (user, carried, host_key) == ("ubuntu", None, "")
        return host.name == "n1.lab"

    monkeypatch.setattr(netboot, "came_up", came_up)
    scripts: list[str] = []

    def boot(url: str) -> None:
        for number in (1, 2):
            query = f"mac=52-54-00-00-00-0{number}&serial=GPU-000{number}"
            script = get(f"{url}/machine?{query}")
            base = script.split("kernel ")[1].split("/linux")[0]
            get(f"{base}/initrd.gz")
            if number == 2:
                get(f"{base}/refused/data")
                scripts.append(get(f"{url}/machine?{query}"))

    @contextlib.contextmanager
    def running(file: Path, _: object) -> Iterator[Daemon]:
        url = file.read_text().split("dhcp-boot=tag:ipxe,")[1].split("/boot.ipxe")[0]
        threading.Thread(target=boot, args=(url,), daemon=True).start()
        yield Daemon()

    monkeypatch.setattr(dnsmasq, "running", running)
    server = netboot.ready(open_cluster(cluster(folder), sandbox=False), None)
    assert [host.name for host in server.overwritten()] == ["n2.lab"]
    ended = netboot.run(server, pause_s=0.05)
    assert ended["n1.lab"] == ("installed", "")
    assert ended["n2.lab"].step == "failed"
    known = journal(folder).load()
    assert ("n1.lab", known["n1.lab"].token) in ssh_checks
    assert known["n2.lab"].token != failed.token
    assert "install.reinstall" in scripts[0]
    preseed = subprocess.run(
        ["zcat"], input=(server.folder / known["n2.lab"].token / "initrd.gz").read_bytes()[1000:], capture_output=True,
        check=True,
    ).stdout.decode()  # fmt: skip
    assert "reinstall='yes'" in preseed
    assert "serials='GPU-0002'" in preseed
    assert "netcfg/get_ipaddress string 127.0.0.12" in preseed


def test_who_does_not_come_up_in_time_has_failed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was started; one that never asked is left as it is."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(netboot, "came_up", lambda *_: False)
    monkeypatch.setattr(dnsmasq, "running", lambda *_: contextlib.nullcontext(Daemon()))
    journal(folder).file.parent.mkdir(parents=True)
    journal(folder).note(Installation("n1.lab", "GPU-0001"), "started")
    file = cluster(folder)
    file.write_text(file.read_text() + "timeouts: { machine_s: 60 }\n")
    clock = iter(range(0, 100_000, 20))
    monkeypatch.setattr(netboot.time, "monotonic", lambda: float(next(clock)))
    server = netboot.ready(open_cluster(file, sandbox=False), "lab")
    ended = netboot.run(server, pause_s=0.01)
    assert {host: each.step for host, each in ended.items()} == {"n1.lab": "failed", "n2.lab": ""}
    assert ended["n1.lab"].why == (
        "it did not answer by ssh within 60 s (timeouts.machine_s) of having its installer; look at its console, "
        "add GPU-0001 to install.reinstall, and run this again"
    )
    assert ended["n2.lab"].why == (
        "it did not ask for its installer within 60 s (timeouts.machine_s); is it on, and does it start from the "
        "network with 52:54:00:00:00:02?"
    )


def test_a_run_that_is_cut_short_forgets_no_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its next start would be into the installer once more."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    @contextlib.contextmanager
    def running(file: Path, _: object) -> Iterator[Daemon]:
        url = file.read_text().split("dhcp-boot=tag:ipxe,")[1].split("/boot.ipxe")[0]
        script = get(f"{url}/machine?mac=52-54-00-00-00-01&serial=GPU-0001")
        get(script.split("kernel ")[1].split("/linux")[0] + "/initrd.gz")
        raise KeyboardInterrupt
        yield Daemon()

    monkeypatch.setattr(dnsmasq, "running", running)
    done = CliRunner().invoke(app, ["netboot", str(cluster(folder)), "--run", "--yes"])
    assert done.exit_code != 0
    assert journal(folder).load()["n1.lab"].step == "started"


@pytest.mark.parametrize(
    "changed", [{"token": "../../../etc"}, {"token": "AB" * 16}, {"step": "reboot"}, {"serial": 7}, {"token": None}]
)
def test_a_journal_that_another_operator_has_sent_is_read_with_care(folder: Path, changed: dict[str, object]) -> None:
    """With a shared state it comes from a bucket, and without it another operator would begin anew."""
    assert is_shared("sites/lab/netboot.json")
    site_journal = journal(folder)
    site_journal.file.parent.mkdir(parents=True)
    site_journal.note(Installation("n1.lab", "GPU-0001"), "started")
    rows = json.loads(site_journal.file.read_text())
    rows["hosts"]["n1.lab"].update(changed)
    site_journal.file.write_text(json.dumps(rows))
    with pytest.raises(GpuprovError, match="is damaged"):
        site_journal.load()


def test_root_is_needed_to_answer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = netboot.ready(open_cluster(cluster(folder), sandbox=False), None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(GpuprovError, match="needs root"):
        netboot.run(server)


def test_a_dnsmasq_that_cannot_start_says_why(tmp_path: Path) -> None:
    file = tmp_path / "dnsmasq.conf"
    file.write_text("no-such-option\n")
    with pytest.raises((GpuprovError, FileNotFoundError), match=r"dnsmasq"), dnsmasq.running(file, lambda _: None):
        pass


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        return str(answer.read().decode(errors="replace"))


def test_an_installer_that_cannot_work_stops_it_before_anything_is_written(folder: Path) -> None:
    (folder / "netboot/initrd.gz").unlink()
    done = CliRunner().invoke(app, ["netboot", str(cluster(folder))])
    assert "has no linux beside an initrd.gz" in str(done.exception)
    assert "would be installed" not in done.output
    assert not (folder / ".gpuprov/rack/sites/lab/netboot").exists()


def test_a_site_that_is_not_there_is_named(folder: Path) -> None:
    done = CliRunner().invoke(app, ["netboot", str(cluster(folder)), "--site", "lba"])
    assert "there is no site lba" in str(done.exception)
    assert "did you mean lab?" in str(done.exception)


def test_nobody_is_asked_what_they_may_not_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    file = cluster(folder)
    done = CliRunner().invoke(app, ["netboot", str(file), "--run"], input="y\n")
    assert "needs root" in str(done.exception)
    assert f"netboot {file} --run" in str(done.exception)
    assert "Answer" not in done.output


def test_the_end_repeats_why_a_machine_was_not_installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """n1 has the serial number of another machine; n2 takes its installer and is never heard of again."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(netboot, "came_up", lambda *_: False)
    file = cluster(folder)
    file.write_text(file.read_text() + "timeouts: { machine_s: 60 }\n")

    @contextlib.contextmanager
    def running(conf: Path, _: object) -> Iterator[Daemon]:
        url = conf.read_text().split("dhcp-boot=tag:ipxe,")[1].split("/boot.ipxe")[0]
        get(f"{url}/machine?mac=52-54-00-00-00-01&serial=GPU-0007")
        script = get(f"{url}/machine?mac=52-54-00-00-00-02&serial=GPU-0002")
        get(script.split("kernel ")[1].split("/linux")[0] + "/initrd.gz")
        clock = iter(range(0, 100_000, 20))
        monkeypatch.setattr(netboot.time, "monotonic", lambda: float(next(clock)))
        yield Daemon()

    monkeypatch.setattr(dnsmasq, "running", running)
    monkeypatch.setattr(netboot.run, "__kwdefaults__", {"pause_s": 0.01})
    done = CliRunner().invoke(app, ["netboot", str(file), "--run", "--yes"])
    assert done.exit_code != 0
    assert "n1.lab: starts from its own disk: it is the machine GPU-0007, and cluster.yaml says GPU-0001" in done.output
    assert (
        "n2.lab: failed: it did not answer by ssh within 60 s (timeouts.machine_s) of having its installer; look at "
        "its console and run this again" in done.output
    )


def test_what_failed_before_is_said_to_have(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(dnsmasq, "running", lambda *_: contextlib.nullcontext(Daemon()))
    journal(folder).file.parent.mkdir(parents=True)
    journal(folder).note(Installation("n1.lab", "GPU-0001"), "failed")
    journal(folder).note(Installation("n2.lab", "GPU-0002"), "installed")
    ended = netboot.run(netboot.ready(open_cluster(cluster(folder), sandbox=False), None), pause_s=0.01)
    assert ended["n1.lab"].why.startswith("was not installed by an earlier run; look at its console, add GPU-0001 to")
