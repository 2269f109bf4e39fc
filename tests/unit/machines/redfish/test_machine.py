"""Power, boot and virtual media of each vendor's BMC: only on the machine that is meant, and put back in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from provisioner.machines.installer import serve
from provisioner.machines.redfish.accounts import Account
from provisioner.machines.redfish.client import Bmc
from provisioner.machines.redfish.errors import BmcError
from provisioner.machines.redfish.machine import Controlled
from provisioner.machines.redfish.trust import Pins
from tests.support import bmc as fake

pytestmark = pytest.mark.heavy

Start = Callable[..., fake.Bmc]
TOKEN = "ab" * 16
SERIALS = {
    "nvidia-dgx-h100": "1662923610124",
    "dell-poweredge-r750-h100pcie": "CNIVC0014M0388",
    "hpe-apollo6500-xl675d-a100": "JS05NP0896",
    "lenovo-sr670v2-l40": "J105958B",
    "nvidia-gb200-nvl": "1333024020524",
    "supermicro-sys-821ge-tnhr": "S889914X3710910",
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[serve.Images]:
    folder = tmp_path_factory.mktemp("images")
    image = folder / "x.iso"
    image.write_bytes(b"\0" * 32768 + b"\x01CD001\x01" + b"\0" * 4096)
    with serve.serving("127.0.0.1", 0, folder) as served:
        served.files[TOKEN] = image
        yield served


def controlled(bmc: fake.Bmc, folder: Path, serial: str) -> Controlled:
    connection = Bmc(
        "dgx01", "127.0.0.1", Account(bmc.user, bmc.password), Pins(folder / "p"), time.monotonic() + 30, bmc.port
    )
    return Controlled(connection, serial, pause=lambda _: None)


@pytest.mark.parametrize("name", SERIALS)
def test_a_machine_is_booted_from_an_image_once(start: Start, tmp_path: Path, images: serve.Images, name: str) -> None:
    started: list[str] = []
    bmc = start(name, booted=lambda _, image: started.append(image))
    machine = controlled(bmc, tmp_path, SERIALS[name])
    url = images.url(TOKEN)
    with machine.bmc:
        order = machine.boot().order
        machine.power_off()
        machine.attach(url)
        assert bmc.inserted == [url]
        target = machine.boot().cd
        assert target is not None
        machine.boot_once(target)
        machine.power_on()
        assert started == [url]
        machine.attach(url)  # again: it is there
        machine.detach(url)
        machine.boot_as_ever()
        boot = machine.boot()
        assert (bmc.inserted, boot.overridden, boot.order) == ([], False, order)
        machine.power_off()
        machine.power_on()
    assert started == [url, ""], "the second start is from its own disk"
    assert bmc.sessions == {}


@pytest.mark.parametrize("name", SERIALS)
@pytest.mark.parametrize("serial", ["SOMEBODY", "", "  "])
def test_another_machine_is_never_touched(
    start: Start, tmp_path: Path, images: serve.Images, name: str, serial: str
) -> None:
    bmc = start(name)
    url = images.url(TOKEN)
    if not serial.strip():
        with pytest.raises(BmcError, match="no serial number"):
            controlled(bmc, tmp_path, serial)
        return
    machine = controlled(bmc, tmp_path, serial)
    with machine.bmc:
        for change in (
            lambda: machine.reset("ForceOff"),
            machine.power_off,
            lambda: machine.boot_once("Cd"),
            lambda: machine.attach(url),
            lambda: machine.detach(url),
        ):
            with pytest.raises(BmcError, match="Nothing was changed") as refused:
                change()
            assert refused.value.kind == "identity"
    assert bmc.changes == []


def test_a_machine_that_was_swapped_between_two_calls_is_not_touched(start: Start, tmp_path: Path) -> None:
    bmc = start()
    machine = controlled(bmc, tmp_path, SERIALS["dell-poweredge-r750-h100pcie"])
    with machine.bmc:
        machine.boot_once("Pxe")
        bmc.system["SerialNumber"] = "OTHER"
        bmc.known["/redfish/v1/Chassis/System.Embedded.1"]["SerialNumber"] = "OTHER"
        change_count = len(bmc.changes)
        with pytest.raises(BmcError, match="that of the machine OTHER"):
            machine.power_off()
        assert len(bmc.changes) == change_count and bmc.system["PowerState"] == "On"


def test_media_of_somebody_else_stays(start: Start, tmp_path: Path, images: serve.Images) -> None:
    bmc = start()
    theirs = "https://192.0.2.7/rescue.iso"
    slots = [resource for uri, resource in bmc.known.items() if "/Systems/System.Embedded.1/VirtualMedia/" in uri]
    slots[0].update(Image=theirs, Inserted=True, ConnectedVia="URI")
    machine = controlled(bmc, tmp_path, SERIALS["dell-poweredge-r750-h100pcie"])
    with machine.bmc:
        with pytest.raises(BmcError, match=f"another virtual drive has an image.*{theirs}"):
            machine.attach(images.url(TOKEN))
        machine.detach(images.url(TOKEN))
        assert bmc.inserted == [theirs]
        for slot in slots:
            slot.update(Image=theirs, Inserted=True, ConnectedVia="URI")
        with pytest.raises(BmcError, match=f"every virtual drive is taken: {theirs}"):
            machine.attach(images.url(TOKEN))


def test_media_that_never_attaches_is_told(
    start: Start, tmp_path: Path, images: serve.Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("provisioner.machines.redfish.machine.MEDIA_S", 0.2)
    bmc = start("hpe-apollo6500-xl675d-a100", faults=fake.Faulty(never_attaches=True))
    machine = controlled(bmc, tmp_path, "JS05NP0896")
    with machine.bmc, pytest.raises(BmcError, match="not showing the image as attached") as caught:
        machine.attach(images.url(TOKEN))
    assert "must reach this computer" in caught.value.hint


def test_an_image_that_can_not_be_fetched_is_told(start: Start, tmp_path: Path, images: serve.Images) -> None:
    machine = controlled(start(), tmp_path, SERIALS["dell-poweredge-r750-h100pcie"])
    with machine.bmc, pytest.raises(BmcError, match="can't fetch the image") as caught:
        machine.attach(images.url("cd" * 16))
    assert caught.value.kind == "media-unreachable"


def test_a_bmc_without_media_says_why(start: Start, tmp_path: Path, images: serve.Images) -> None:
    bmc = start("supermicro-x10sdv-tln4f")
    machine = controlled(bmc, tmp_path, "00000000-0000-0000-0000-AC1F6B18A45A")
    with machine.bmc, pytest.raises(BmcError, match="Windows shares only"):
        machine.attach(images.url(TOKEN))


def test_a_reset_whose_answer_is_lost_is_not_sent_twice(start: Start, tmp_path: Path) -> None:
    bmc = start()
    machine = controlled(bmc, tmp_path, SERIALS["dell-poweredge-r750-h100pcie"])
    original = bmc.post

    def lost(uri: str, body: dict[str, object]) -> tuple[int, object]:
        original(uri, body)
        bmc.changes.append(("POST", uri, body))
        raise ConnectionResetError

    with machine.bmc:
        bmc.post = lost  # type: ignore[method-assign]
        machine.power_off()
    assert bmc.system["PowerState"] == "Off"
    assert len(bmc.changes) == 1


@pytest.mark.parametrize(
    ("header", "part"),
    [
        (None, (0, 99)),
        ("bytes=0-", (0, 99)),
        ("bytes=10-19", (10, 19)),
        ("bytes=-5", (95, 99)),
        ("bytes=90-500", (90, 99)),
        ("bytes=100-", None),
        ("bytes=-0", None),
        ("bytes=5-4", None),
        ("bytes=-", (0, 99)),
        ("lines=1-2", (0, 99)),
        ("bytes=0-1,5-6", (0, 99)),
    ],
)
def test_parts_of_an_image(header: str | None, part: tuple[int, int] | None) -> None:
    assert serve.part(header, 100) == part


@pytest.mark.parametrize(
    "path", ["/", "/x", f"/{TOKEN}", f"/{TOKEN}/../p", f"/{'0' * 32}/install.iso", f"/{TOKEN}/install.iso/"]
)
def test_nothing_else_is_served(images: serve.Images, path: str) -> None:
    import urllib3

    with urllib3.PoolManager(cert_reqs="CERT_NONE") as web:
        assert web.request("GET", f"https://127.0.0.1:{images.port}{path}", retries=False).status == 404
        assert web.request("POST", images.url(TOKEN), body=b"x", retries=False).status == 404
        full_response = web.request("GET", images.url(TOKEN), retries=False)
        assert (full_response.status, len(full_response.data)) == (200, 32768 + 7 + 4096)
