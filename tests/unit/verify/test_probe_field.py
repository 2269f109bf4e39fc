"""What the probe asks of transceivers, RoCE cards, switches, GPUDirect Storage and NCCL, with stand-ins for each."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioner.verify.parsers import ethtool_modules as modules_parser
from provisioner.verify.parsers import ib_switches as switches_parser
from provisioner.verify.parsers import lspci
from provisioner.verify.parsers import nccl_ras as ras_parser
from provisioner.verify.parsers import roce_qos as qos_parser
from provisioner.verify.probe import ethtool_modules, gds, ib_switches, nccl_ras, node, roce_qos, runner
from provisioner.verify.probe.runner import result
from tests.support.healthy_bundle import capture

Program = Callable[[str, str], None]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts a shell script into the probe's PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setattr(runner, "PATH", f"{folder}:/usr/bin:/bin")

    def write(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return write


def tree(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


def text_of(answer: dict[str, Any]) -> str:
    assert answer["rc"] == 0
    return str(answer["text"])


def test_transceivers_of_ports_that_are_up(tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"net/{name}/operstate": state for name, state in (("ens1", "up\n"), ("ens2", "down\n"), ("lo", "up\n"))}
    files |= {f"net/{name}/device/vendor": "x" for name in ("ens1", "ens2")}
    monkeypatch.setattr(ethtool_modules, "NET", tree(tmp_path, files) + "/net")
    sfp = json.loads(capture("ethtool_modules/sfp-lr-no-light.json"))["ports"]["enp134s0f0"]["text"]
    (tmp_path / "sfp").write_text(sfp)
    program("ethtool", f'[ "$1 $2" = "-m ens1" ] && cat {tmp_path}/sfp')
    (module,) = modules_parser.parse(text_of(ethtool_modules.ethtool_modules(5.0, {})))
    assert (module.port, module.part, len(module.readings)) == ("ens1", "TN-SFP-10G-LR", 5)


def test_without_ethtool_no_port_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"net/ens1/operstate": "up\n", "net/ens1/device/vendor": "x"}
    monkeypatch.setattr(ethtool_modules, "NET", tree(tmp_path, files) + "/net")
    monkeypatch.setattr(runner, "PATH", str(tmp_path))
    assert modules_parser.parse(text_of(ethtool_modules.ethtool_modules(5.0, {}))) == ()


def test_without_lspci_the_bus_is_read_from_sys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest without pciutils: no GPU is unknown for that. The second GPU answers no more."""
    monkeypatch.setattr(node, "run", lambda *_: result(missing=True, error="lspci is not installed"))
    header = bytes.fromhex("de10302307001000a10002030000800000000000000000000000000000000000") + bytes(224)
    devices = {
        "0000:00:00.0": ("0x060000", "0x8086", "0x0d57", "0x00", header),
        "0000:00:06.0": ("0x030200", "0x10de", "0x2330", "0xa1", header),
        "0000:00:07.0": ("0x030200", "0x10de", "0x2330", "0xa1", b"\xff" * 256),
    }
    for slot, (code, vendor, device, revision, config) in devices.items():
        (tmp_path / slot).mkdir()
        for name, text in {"class": code, "vendor": vendor, "device": device, "revision": revision}.items():
            (tmp_path / slot / name).write_text(text + "\n")
        (tmp_path / slot / "config").write_bytes(config)
    (tmp_path / "0000:00:08.0").mkdir()  # taken out while the bus is read
    answer = node.pci_bus(5, str(tmp_path))
    assert answer["text"].startswith("0000:00:00.0 0600: 8086:0d57\n00: de 10 30 23 ")
    bus = lspci.parse(answer["text"])
    assert (bus.gpus, bus.dead, bus.excerpt) == (("0000:00:06", "0000:00:07"), ("0000:00:07",), False)
    assert node.pci_bus(5, str(tmp_path / "nothing"))["missing"]


def test_roce_cards_with_and_without_the_vendors_tool(
    tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"mlx5_0/tc/1/traffic_class": "Global tclass=106\n", "mlx5_0/device/net/ens1np0/operstate": "up\n"}
    monkeypatch.setattr(roce_qos, "ROCE_CARDS", tree(tmp_path, files | {"bnxt_re0/device/net/ens2/operstate": "up"}))
    monkeypatch.setattr(roce_qos, "lines_of", lambda _path: ["# x", "NCCL_IB_TC=106", "NCCL_SOCKET_IFNAME=ens1"])
    qos = json.loads(capture("roce_qos/class-106-priority-3.json"))["cards"]["mlx5_0"]["qos"]
    (tmp_path.parent / f"{tmp_path.name}-qos").write_text(qos)
    program("mlnx_qos", f'[ "$1 $2" = "-i ens1np0" ] && cat {tmp_path.parent}/{tmp_path.name}-qos')
    parsed = qos_parser.parse(text_of(roce_qos.roce_qos(5.0, {})))
    cards = {card.device: (card.trust, card.pfc, card.traffic_class) for card in parsed.cards if card.device != "bin"}
    assert cards == {"mlx5_0": ("dscp", (3,), 106), "bnxt_re0": (None, None, None)}
    assert parsed.nccl_class == 106


def ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "ib/mlx5_0/ports/1/state": "4: ACTIVE\n", "ib/mlx5_0/ports/1/link_layer": "InfiniBand\n",
        "ib/mlx5_1/ports/1/state": "1: DOWN\n", "ib/mlx5_1/ports/1/link_layer": "InfiniBand\n",
        "ib/mlx5_2/ports/1/state": "4: ACTIVE\n", "ib/mlx5_2/ports/1/link_layer": "Ethernet\n",
    }  # fmt: skip
    monkeypatch.setattr(ib_switches, "IB_CARDS", tree(tmp_path, files) + "/ib")


def test_the_switch_one_hop_away(tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    ports(tmp_path, monkeypatch)
    answers = json.loads(capture("ib_switches/switch-and-host.json"))["ports"]["mlx5_0/1"]
    for name, answer in answers.items():
        (tmp_path / name).write_text(answer)
    program("smpquery", f'[ "$1 $2 $3 $4 $5 $7" = "-C mlx5_0 -P 1 -D 0,1" ] && cat {tmp_path}/$6')
    (link,) = switches_parser.parse(text_of(ib_switches.ib_switches(5.0, {})))
    assert link == switches_parser.Link("mlx5_0/1", "0xe41d2d03004bef70", "SW400-P05F1IB32-e08r4u", "17")


def test_without_smpquery_the_file_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ports(tmp_path, monkeypatch)
    monkeypatch.setattr(runner, "PATH", str(tmp_path))
    answer = ib_switches.ib_switches(5.0, {})
    assert answer["missing"]
    assert answer["error"] == "smpquery is not installed"


def test_gdscheck_where_it_is_installed(tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gds, "GDSCHECK", (str(tmp_path / "none"), str(tmp_path / "bin" / "gdscheck")))
    assert gds.gds(5.0, {})["missing"]
    program("gdscheck", 'echo "GDS $1"')
    assert text_of(gds.gds(5.0, {})) == "GDS -p\n"


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[bytes, bool], list[bytes]]]:
    """A server in place of NCCL, which answers once with that and closes, or does not."""
    server = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(nccl_ras, "RAS_PORT", server.getsockname()[1])
    requests: list[bytes] = []
    clients: list[socket.socket] = []

    def serve(answer: bytes, closes: bool) -> list[bytes]:
        def run() -> None:
            client, _ = server.accept()
            requests.append(client.recv(100))
            client.sendall(answer)
            if closes:
                client.close()
            else:
                clients.append(client)

        threading.Thread(target=run, daemon=True).start()
        return requests

    yield serve
    server.close()
    for client in clients:
        client.close()


def test_nccl_is_asked_as_its_own_client_asks(job: Callable[[bytes, bool], list[bytes]]) -> None:
    requests = job(capture("nccl_ras/process-missing.txt").encode(), True)
    parsed = ras_parser.parse(text_of(nccl_ras.nccl_ras(5.0, {})))
    assert requests == [b"verbose status\n"]
    assert parsed.missing == (ras_parser.Process(3487984, "172.16.64.213", "5"),)


def test_a_job_that_does_not_end_its_answer_costs_the_deadline_alone(job: Callable[[bytes, bool], list[bytes]]) -> None:
    job(b"Job summary\n===========\n", False)
    answer = nccl_ras.nccl_ras(0.5, {})
    assert answer["seconds"] < 2.0
    assert ras_parser.parse(text_of(answer)).running


def test_without_a_job_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(nccl_ras, "RAS_PORT", server.getsockname()[1])
    assert ras_parser.parse(text_of(nccl_ras.nccl_ras(1.0, {}))) == ras_parser.NcclRas()
