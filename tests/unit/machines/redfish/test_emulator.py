"""gpuprov's client against a service that others have written: OpenStack's emulator (sushy-tools) with its `fake`
machine, over HTTPS and basic authentication."""

from __future__ import annotations

import random
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from provisioner.machines.installer import serve
from provisioner.machines.redfish import client, inventory
from provisioner.machines.redfish.accounts import Account
from provisioner.machines.redfish.client import Bmc
from provisioner.machines.redfish.document import document
from provisioner.machines.redfish.errors import BmcError
from provisioner.machines.redfish.machine import Controlled
from provisioner.machines.redfish.trust import Pins
from tests.support import bmc as fake

pytest.importorskip("sushy_tools", reason="the emulator comes with `make dev`")
bcrypt = pytest.importorskip("bcrypt")
UUID = "27946b59-9e44-4fa7-8e91-f3527a1ef094"
TOKEN = "cd" * 16


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    from sushy_tools.emulator import main
    from werkzeug.serving import WSGIRequestHandler, make_server

    folder, patch = tmp_path_factory.mktemp("emulator"), pytest.MonkeyPatch()
    hashed = bcrypt.hashpw(b"not-a-real-one", bcrypt.gensalt(4)).decode()
    (folder / "htpasswd").write_text(f"admin:{hashed}\n")
    system = {"uuid": UUID, "name": "dgx", "power_state": "Off", "external_notifier": False, "nics": []}
    main.app.configure(extra_config={
        "SUSHY_EMULATOR_FAKE_DRIVER": True, "SUSHY_EMULATOR_AUTH_FILE": str(folder / "htpasswd"),
        "SUSHY_EMULATOR_STATE_DIR": str(folder), "SUSHY_EMULATOR_VMEDIA_VERIFY_SSL": False,
        "SUSHY_EMULATOR_FAKE_SYSTEMS": [system],
    })  # fmt: skip
    patch.setattr(random, "randint", lambda *_: 0)  # machines take up to eleven seconds to be on
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(fake.certificate(folder))
    handler = type(
        "Handler",
        (WSGIRequestHandler,),
        {"protocol_version": "HTTP/1.1", "disable_nagle_algorithm": True, "wbufsize": -1},
    )
    server = make_server("127.0.0.1", 0, main.app, threaded=True, request_handler=handler, ssl_context=context)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    patch.undo()


def connected(port: int, folder: Path, password: str = "not-a-real-one") -> Bmc:
    return Bmc("dgx", "127.0.0.1", Account("admin", password), Pins(folder / "pins"), time.monotonic() + 30, port)


def test_the_emulator_is_read_switched_and_given_an_image(
    port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "READ_AGAIN", 1)  # it answers 500 for what its fake machine does not have
    image = tmp_path / "x.iso"
    image.write_bytes(b"\0" * 32768 + b"\x01CD001\x01" + b"\0" * 4096)
    with serve.serving("127.0.0.1", 0, tmp_path) as images, connected(port, tmp_path) as bmc:
        images.files[TOKEN] = image
        machine_facts = inventory.read(bmc.tree())
        assert (machine_facts.identity.uuid, machine_facts.power, machine_facts.boot.cd) == (UUID, "Off", "Cd")
        assert document(machine_facts, None)["gpus"] == []
        machine = Controlled(bmc, UUID, pause=lambda _: time.sleep(0.05))
        url = images.url(TOKEN)
        slot = machine.attach(url)
        assert machine.media().choose(url) is not None and images.fetched[TOKEN] >= image.stat().st_size
        # It ignores Once (its own note says so): a machine of it would install itself again and again.
        with pytest.raises(BmcError, match="shows Continuous Cd, not Once Cd"):
            machine.boot_once("Cd")
        assert machine.boot().target != "Cd", "what was there before is there again"
        machine.power_on()
        assert machine.power() == "On"
        machine.power_off()
        assert machine.detach(url, slot.uri)
        assert all(media_slot.free is not False for media_slot in machine.media().slots)
        other = Controlled(bmc, "another", pause=lambda _: None)
        with pytest.raises(BmcError, match="Nothing was changed"):
            other.power_on()
        assert machine.power() == "Off"


def test_the_emulator_refuses_another_password(port: int, tmp_path: Path) -> None:
    with pytest.raises(BmcError, match="does not accept the user and password"), connected(port, tmp_path, "wrong"):
        pass
