"""Hosts of a bare-metal site: ranges, inventories, known_hosts."""

from __future__ import annotations

import socket
import subprocess
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from provisioner import spec
from provisioner.cli.main import app
from provisioner.common.errors import GpuprovError
from provisioner.machines.providers.baremetal import inventory
from provisioner.machines.providers.baremetal.known_hosts import host_key
from provisioner.machines.providers.baremetal.listing import listed
from provisioner.machines.providers.baremetal.provider import BareMetal
from provisioner.machines.providers.baremetal.site import BareMetalSite
from provisioner.machines.providers.base import Place
from provisioner.machines.providers.hosts import Host
from provisioner.spec.ranges import expand
from tests.support.plans import cluster_spec, plan

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "A" * 43
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + "B" * 43


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("desk", ["desk"]),
        ("dgx[08-11].lab", ["dgx08.lab", "dgx09.lab", "dgx10.lab", "dgx11.lab"]),
        ("n[1:2]", ["n1", "n2"]),  # Ansible's spelling
        ("n[1-2,7]", ["n1", "n2", "n7"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[99-101]", ["n99", "n100", "n101"]),
    ],
)
def test_a_range_stands_for_hosts(pattern: str, names: list[str]) -> None:
    assert expand(pattern) == names


@pytest.mark.parametrize(
    "pattern", ["n[1-", "n1]", "n[]", "n[a-c]", "n[3-1]", "n[1-99999]", "a[1-999]b[1-999]", "[[1]]"]
)
def test_what_is_no_range_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        expand(pattern)


def site(**keys: object) -> BareMetalSite:
    return BareMetalSite.model_validate({"provider": "baremetal", **keys})


def test_a_host_has_what_it_says_or_what_its_site_says() -> None:
    hosts = {"dgx[01-02].lab": {"group": "a", "address": "10.0.0.[1-2]"}, "x": {"port": 23, "user": "me", "jump": "j"}}
    machines = site(hosts=hosts, port=2222).machines(["a"])
    assert machines == [
        Host("dgx01.lab", "a", "10.0.0.1", 2222), Host("dgx02.lab", "a", "10.0.0.2", 2222),
        Host("x", "a", "x", 23, "me", "j"),
    ]  # fmt: skip
    assert not site(hosts=hosts).this_machine()
    assert site(hosts={"localhost": {}}).this_machine()


def test_machines_are_not_told_of_a_list_that_cannot_be_read() -> None:
    with pytest.raises(GpuprovError, match="listed twice"):
        site(hosts={"a[1-2]": {}, "a2": {}}).machines(["train"])


def test_an_inventory_is_found_beside_cluster_yaml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hosts.ini").write_text(
        "# lab\n[a]\nn[1:2].lab ansible_user=me # two\n\n[all]\nn3 ansible_port=23 jump=bastion\n"
    )
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "name: lab\nsites: { rack: { provider: baremetal, inventory: hosts.ini } }\n"
        "groups: { a: { machine: dgx-h100, count: 3 } }\n"
    )
    monkeypatch.chdir("/")
    (loaded,) = spec.load(file).sites.values()
    assert isinstance(loaded, BareMetalSite)
    assert loaded.machines(["a"]) == [
        Host("n1.lab", "a", "n1.lab", user="me"), Host("n2.lab", "a", "n2.lab", user="me"),
        Host("n3", "a", "n3", 23, jump="bastion"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "root:$6$salt$secret:19000:0:99999:7:::\n",
        "n1 ansible_password=secret\n",
        "n1 secret\n",
        "n1 ansible_user='secret",
    ],
)
def test_what_is_no_inventory_is_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(inventory.InventoryError, match="hosts:1") as caught:
        inventory.read(str(tmp_path / "hosts"))
    assert "secret" not in str(caught.value)


def test_a_line_of_an_inventory_has_a_limit(tmp_path: Path) -> None:
    """shlex takes the square of its length: a file of one line within LIMIT took `validate` minutes."""
    (tmp_path / "hosts").write_text("[g]\nn1 " + "x" * 300_000 + "\n")
    with pytest.raises(inventory.InventoryError, match="hosts:2: the line is longer than 4096 characters"):
        inventory.read(str(tmp_path / "hosts"))


@pytest.mark.parametrize("serial", ["A1\x1b[2J", "{{ lookup('file','x') }}", "a" * 65, "ä1"])
def test_a_serial_number_of_an_inventory_is_one(tmp_path: Path, serial: str) -> None:
    (tmp_path / "hosts.ini").write_text(f'n1.lab "serial={serial}"\n')
    problems = listed(site(inventory=str(tmp_path / "hosts.ini")), ["g"])[1]
    assert ["hosts.ini:1: serial is not a serial number" in problem.message for problem in problems] == [True]


def test_a_host_key_is_found_as_ssh_finds_it(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(
        f"# ours\ndgx01.lab,10.0.0.1 {KEY} comment\n[dgx02.lab]:2222 {KEY}\n*.pod {OTHER}\n"
        f"@revoked dgx04.lab {KEY}\ndgx05.lab ssh-rsa AAAAB3NzaC1yc2E=\n"
    )
    assert host_key(str(file), ("dgx01.lab",), 22) == KEY
    assert host_key(str(file), ("other", "10.0.0.1"), 22) == KEY
    assert host_key(str(file), ("dgx02.lab",), 2222) == KEY
    assert host_key(str(file), ("n.pod",), 22) == OTHER
    for name, port in (("dgx02.lab", 22), ("dgx03.lab", 22), ("dgx05.lab", 22)):
        with pytest.raises(GpuprovError, match="has no ed25519 key"):
            host_key(str(file), (name,), port)
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert host_key(str(file), ("dgx01.lab",), 22) == KEY
    with pytest.raises(GpuprovError, match="there is no file"):
        host_key(str(tmp_path / "none"), ("dgx01.lab",), 22)


@pytest.mark.parametrize("pattern", ["dgx01.lab", "10.0.0.1", "*", "[dgx01.lab]:2222"])
@pytest.mark.parametrize("hashed", [False, True])
def test_a_revoked_host_key_is_never_pinned(tmp_path: Path, pattern: str, hashed: bool) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"@revoked {pattern} {KEY}\n[dgx01.lab]:2222 {KEY}\nother {OTHER}\n")
    if hashed:
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    with pytest.raises(GpuprovError, match="revokes the ed25519 key") as caught:
        host_key(str(file), ("dgx01.lab", "10.0.0.1"), 2222)
    assert str(file) in str(caught.value)
    assert host_key(str(file), ("other",), 22) == OTHER


def test_a_key_that_follows_a_revoked_one_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"dgx01.lab {KEY}\ndgx01.lab {OTHER}\n@revoked dgx01.lab {KEY}\n@revoked elsewhere {OTHER}\n")
    assert host_key(str(file), ("dgx01.lab",), 22) == OTHER


def provider(folder: Path, **keys: object) -> BareMetal:
    return BareMetal(Place("lab", "here", site(**keys), folder))


def test_what_is_missing_on_this_computer_is_said_before_anybody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of host keys, the installer's image, the BMCs' account."""
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: pytest.fail("somebody was asked"))
    with pytest.raises(GpuprovError, match="there is no file"):
        provider(tmp_path, hosts={"a": {}}, host_keys=str(tmp_path / "none")).refuse_missing_files()
    monkeypatch.delenv("BMC_USER", raising=False)
    managed = {"hosts": {"a": {"bmc": "b"}}, "credentials": "env:BMC"}
    provider(tmp_path, **managed).refuse_missing_files()
    installed = managed | {"method": "redfish", "install": {"iso": str(tmp_path / "none.iso"), "sha256": "0" * 64}}
    with pytest.raises(GpuprovError, match="BMC_USER and BMC_PASSWORD are not set"):
        provider(tmp_path, **installed).refuse_missing_files()
    monkeypatch.setenv("BMC_USER", "admin")
    monkeypatch.setenv("BMC_PASSWORD", "x")
    with pytest.raises(GpuprovError, match="is not there") as caught:
        provider(tmp_path, **installed).refuse_missing_files()
    assert caught.value.where == str(tmp_path / "none.iso")


def test_what_only_a_sandbox_does_without_is_refused_at_its_place(tmp_path: Path) -> None:
    """No hosts, and a file of host keys that is not there: `validate` exits with 2, `validate --sandbox` with 0."""
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "name: lab\nsites:\n  rack: { provider: baremetal }\n"
        "  desk:\n    provider: baremetal\n    host_keys: known\n    hosts: { a: {} }\n"
        "groups:\n  g: { machine: dgx-h100, site: rack }\n  h: { machine: dgx-h100, site: desk }\n"
    )
    loaded = spec.load(file)
    places = [(problem.line, problem.column, problem.path) for problem in spec.unready(file, loaded)]
    assert places == [(3, 3, "sites.rack"), (6, 16, "sites.desk.host_keys")]
    assert [problem.path for problem in spec.unready(file, loaded, ["desk"])] == ["sites.desk.host_keys"]
    (tmp_path / "known").touch()
    assert [problem.path for problem in spec.unready(file, loaded)] == ["sites.rack"]
    runner = CliRunner()
    refused = runner.invoke(app, ["validate", str(file)])
    assert (refused.exit_code, refused.output.splitlines()[0].partition(" ")[0]) == (2, f"{file}:3:3:")
    assert runner.invoke(app, ["validate", "--sandbox", str(file)]).exit_code == 0


def test_preflight_says_which_hosts_do_not_answer(tmp_path: Path) -> None:
    """And which BMCs, where machines are installed by them; they may be starting, so it warns."""
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as sshd:
        threading.Thread(target=lambda: sshd.accept()[0].sendall(b"SSH-2.0-x\r\n"), daemon=True).start()
        port, sshd_port = silent.getsockname()[1], sshd.getsockname()[1]
        hosts = {"up.lab": {"address": "127.0.0.1", "port": sshd_port}, "far.lab": {"jump": "bastion"}, "local": {}}
        hosts["no.lab"] = {"address": "127.0.0.1", "port": 1}
        site_plan = plan(cluster_spec("dgx-h100", count=4))
        answers = [
            finding
            for finding in provider(tmp_path, hosts=hosts).preflight(site_plan, ())
            if finding.subject == "answers"
        ]
        assert [(finding.status, finding.message) for finding in answers] == [
            ("warning", "no.lab (127.0.0.1 port 1) does not answer: Connection refused")
        ]
        bmc_hosts = {"m.lab": {"bmc": "127.0.0.1:1"}, "n.lab": {"bmc": f"127.0.0.1:{port}"}}
        installed = provider(tmp_path, hosts=bmc_hosts, method="redfish", install={"iso": "none.iso"})
        messages = [finding.message for finding in installed.preflight(site_plan, ()) if finding.subject == "answers"]
        assert messages == ["the BMC of m.lab (127.0.0.1 port 1) does not answer: Connection refused"]


def test_a_machine_that_is_to_start_from_the_network_is_told_how(tmp_path: Path) -> None:
    """What does not answer yet may not be installed yet: the command that does it stands beside the warning."""
    hosts = {"n.lab": {"address": "127.0.0.1", "port": 1, "mac": "52:54:00:00:00:01"}}
    site_provider = provider(
        tmp_path, hosts=hosts, method="pxe", pxe={"interface": "eth1"}, install={"os": "debian-12", "iso": "netboot"}
    )
    site_plan = plan(cluster_spec("dgx-h100", count=1))
    (unanswered,) = [finding for finding in site_provider.preflight(site_plan, ()) if finding.subject == "answers"]
    assert (unanswered.status, unanswered.action) == ("warning", "`gpuprov netboot FILE` installs it")
    assert site_provider.netboot is not None
    assert (site_provider.netboot.interface, site_provider.netboot.proxy, site_provider.management.installation) == (
        "eth1",
        False,
        None,
    )
    inventory_file = tmp_path / "hosts.ini"
    inventory_file.write_text("[g]\nn1.lab mac=52-54-00-00-00-0A serial=A1\n")
    assert site(inventory=str(inventory_file), method="pxe").machines(["g"])[0].mac == "52:54:00:00:00:0a"
    inventory_file.write_text("n1.lab mac=52:54\n")
    with pytest.raises(GpuprovError, match="mac is not a MAC address"):
        site(inventory=str(inventory_file), method="pxe").machines(["g"])


def test_a_sandbox_says_what_it_leaves_out() -> None:
    assert "answers no machine" in site(hosts={"a": {}}, method="pxe").not_in_sandbox()[0]
    assert "asks no BMC" in site(hosts={"a": {"bmc": "b"}}, method="redfish").not_in_sandbox()[0]
    assert site(hosts={"a": {}}).not_in_sandbox() == ()


def test_preflight_refuses_an_installer_that_is_not_the_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without install.os it is the group's stack that says what is installed."""
    monkeypatch.setenv("BMC_USER", "u")
    monkeypatch.setenv("BMC_PASSWORD", "p")
    for name in ("linux", "initrd.gz"):
        (tmp_path / name).write_bytes(b"x")
    hosts = {"n.lab": {"bmc": "127.0.0.1:1"}}
    site_provider = provider(
        tmp_path, hosts=hosts, method="redfish", credentials="env:BMC", install={"iso": str(tmp_path)}
    )
    site_plan = plan(cluster_spec("dgx-h100", count=1))
    (refused,) = [finding for finding in site_provider.preflight(site_plan, ()) if finding.subject == "install.iso"]
    assert refused.status == "blocks"
    assert "is a folder, and ubuntu-" in refused.message


def test_a_slip_in_the_file_of_passwords_is_told_by_validate_and_that_it_is_elsewhere_is_none(tmp_path: Path) -> None:
    file, secret = tmp_path / "cluster.yaml", tmp_path / "bmc.yaml"
    file.write_text(
        "name: lab\nsites:\n  desk:\n    provider: baremetal\n    credentials: file:bmc.yaml\n"
        "    hosts: { a: { bmc: 10.0.0.1 }, b: { bmc: 10.0.0.2 } }\n"
        "groups:\n  g: { machine: dgx-h100, count: 2 }\n"
    )
    loaded = spec.load(file)
    assert spec.unready(file, loaded) == []
    secret.write_text("a: {user: admin, password: hunter2}\n")
    secret.chmod(0o600)
    (problem,) = spec.unready(file, loaded)
    assert (problem.line, problem.column, problem.path) == (5, 18, "sites.desk.credentials")
    assert "has no user and password for b" in problem.message
    assert "hunter2" not in problem.message + problem.hint
    secret.chmod(0o644)
    assert "others may read this file" in spec.unready(file, loaded)[0].message
    secret.write_text("all: {user: admin, password: hunter2}\n")
    secret.chmod(0o600)
    assert spec.unready(file, loaded) == []
