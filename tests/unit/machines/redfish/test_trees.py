"""Real trees of Dell, HPE, Supermicro, Lenovo and NVIDIA BMCs read right, whatever their ids and places are called."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.machines.redfish import devices, inventory, logs, tree
from provisioner.machines.redfish.errors import BmcError
from provisioner.machines.redfish.inventory import Inventory
from provisioner.machines.redfish.tree import Tree

HERE = Path(__file__).parent
TREES: list[dict[str, Any]] = yaml.safe_load((HERE / "trees.yaml").read_text())

READ: dict[str, Callable[[Inventory], object]] = {
    "vendor": lambda i: i.vendor,
    "systems": lambda i: sorted(i.systems),
    "host_system": lambda i: i.system,
    "system_model": lambda i: i.model,
    "manufacturer": lambda i: i.manufacturer,
    "serial": lambda i: i.identity.serial,
    "power_state": lambda i: i.power,
    "health": lambda i: i.health,
    "cpu_count": lambda i: i.cpus,
    "memory_gib": lambda i: i.memory_gib,
    "bios": lambda i: i.bios,
    "gpus": lambda i: len(i.gpus.read),
    "gpus_complete": lambda i: i.gpus.complete,
    "gpu_model": lambda i: _only_model({gpu.model for gpu in i.gpus.read}),
    "boot_override_targets": lambda i: _list(i.boot.targets),
    "boot_override_enabled_allowed": lambda i: _list(i.boot.enables),
    "boot_mode": lambda i: i.boot.mode,
    "boot_at": lambda i: i.boot.uri,
    "overridden": lambda i: i.boot.overridden,
    "cd": lambda i: i.boot.cd,
    "virtual_media_slots": lambda i: len(i.media.slots),
    "slot": lambda i: slot.uri if (slot := i.media.choose()) else "",
    "why": lambda i: i.media.why,
    "reset_types": lambda i: _list(i.resets),
    "session_timeout": lambda i: i.session_s,
    "boot_progress": lambda i: i.progress,
    "fans": lambda i: len(i.fans.present),
    "supplies": lambda i: len(i.supplies.present),
    "supplies_health": lambda i: sorted({supply.health for supply in i.supplies.present}, key=str),
    "leaks": lambda i: len(i.leaks.present),
    "licence": lambda i: i.licences.media,
    "conditions": lambda i: len(i.conditions.read),
}


def _only_model(values: set[str | None]) -> str | None:
    """The model that is named; some trees lack the resources that name the others'."""
    models = sorted(filter(None, values))
    assert len(models) <= 1, models
    return models[0] if models else None


def _list(values: tuple[str, ...] | None) -> list[str] | None:
    return None if values is None else list(values)


def load(name: str) -> Tree:
    return tree.saved(HERE / "trees" / f"{name}.redfish.json.gz")


def changed(name: str, *edits: tuple[str, Callable[[dict[str, Any]], object]]) -> Tree:
    """A tree with some resources altered: an address with `resource → anything`."""
    known = json.loads(gzip.decompress((HERE / "trees" / f"{name}.redfish.json.gz").read_bytes()))
    for uri, edit in edits:
        edit(known[uri])
    return Tree(known.get)


@pytest.mark.parametrize("row", TREES, ids=lambda row: str(row["tree"]))
def test_a_real_tree_reads_as_a_person_reads_it(row: dict[str, Any]) -> None:
    machine_facts = inventory.read(load(row["tree"]))
    expected = {**row["expect"], "systems": sorted(row["expect"].get("systems", machine_facts.systems))}
    logged = expected.pop("logs", None)
    assert {key: READ[key](machine_facts) for key in expected} == expected
    if logged is not None:
        known = load(row["tree"])
        host = inventory.find_host(known)
        assert [log.name for log in logs.event_logs(known, host.system, host.systems, host.managers)] == logged


@pytest.mark.parametrize("row", TREES, ids=lambda row: str(row["tree"]))
def test_ids_mean_nothing(row: dict[str, Any]) -> None:
    """Every address under another name, links and all: the machine reads the same."""
    known = json.loads(gzip.decompress((HERE / "trees" / f"{row['tree']}.redfish.json.gz").read_bytes()))
    if "/redfish/v1" not in known:
        pytest.skip("a part of a tree, whose collections are told from its addresses")

    def elsewhere(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: elsewhere(item) for key, item in value.items()}
        if isinstance(value, list):
            return [elsewhere(item) for item in value]
        if isinstance(value, str) and value.startswith("/redfish/v1/"):
            segments = value.removeprefix("/redfish/v1/").split("/")
            return "/redfish/v1/" + "/".join(
                f"x{segment}" if segment and not segment.startswith("#") else segment for segment in segments
            )
        return value

    moved = {elsewhere(uri): elsewhere(resource) for uri, resource in known.items()}
    original, after = inventory.read(load(row["tree"])), inventory.read(Tree(moved.get))
    for key in row["expect"]:
        if key not in ("boot_at", "slot", "logs"):
            assert READ[key](after) == READ[key](original), key


def test_collections_are_counted_by_what_can_be_read() -> None:
    """The number that a collection says counts for nothing: a member that is gone is not there."""
    complete_gpus = inventory.read(load("nvidia-dgx-h100")).gpus
    missing_uri = "/redfish/v1/Systems/HGX_Baseboard_0/Processors/GPU_SXM_3"
    cut = changed("nvidia-dgx-h100")
    known = dict(cut.saved())
    original = cut._fetch
    less = inventory.read(Tree(lambda uri: None if uri == missing_uri else original(uri))).gpus
    assert (len(complete_gpus.read), complete_gpus.complete) == (8, True)
    assert (len(less.read), less.complete) == (7, False), known


def test_a_machine_that_is_off_shows_nothing_for_sure() -> None:
    off_tree = changed("nvidia-dgx-h100", ("/redfish/v1/Systems/DGX", lambda system: system.update(PowerState="Off")))
    assert not inventory.read(off_tree).gpus.complete


@pytest.mark.parametrize(
    ("resource", "healthy"),
    [
        ({"Status": {"Health": "OK"}}, "OK"),
        ({"Status": {"Health": "OK", "HealthRollup": "Critical"}}, "Critical"),
        ({"Status": {"State": "Enabled"}}, None),
        ({"Status": {"Health": None}}, None),
        ({"Status": {"Health": "Fine"}}, None),
        ({"Status": "OK"}, None),
        ({}, None),
    ],
)
def test_health_that_is_not_said_is_unknown(resource: dict[str, Any], healthy: str | None) -> None:
    assert devices.health(resource) == healthy


def test_two_hosts_that_can_not_be_told_apart_are_no_host() -> None:
    first = {
        "@odata.id": "/redfish/v1/Systems/a",
        "Id": "a",
        "Boot": {"x": 1},
        "Actions": {"#ComputerSystem.Reset": {}},
    }
    two = {**first, "@odata.id": "/redfish/v1/Systems/b", "Id": "b"}
    known = {
        "/redfish/v1": {"Systems": {"@odata.id": "/redfish/v1/Systems"}},
        "/redfish/v1/Systems": {
            "Members": [{"@odata.id": "/redfish/v1/Systems/a"}, {"@odata.id": "/redfish/v1/Systems/b"}]
        },
        "/redfish/v1/Systems/a": first,
        "/redfish/v1/Systems/b": two,
    }
    with pytest.raises(BmcError, match="cannot tell which of the systems a, b boots the machine"):
        inventory.read(Tree(known.get))
    two["SystemType"] = "DPU"
    assert inventory.read(Tree(known.get)).system == "a"


def test_a_slot_that_keeps_its_image_after_eject_is_free() -> None:
    """Supermicro does; ConnectedVia decides."""
    uri = "/redfish/v1/Managers/1/VirtualMedia/VirtualMedia1"
    ejected = changed(
        "supermicro-sys-821ge-tnhr", (uri, lambda slot: slot.update(Image="https://old/x.iso", Inserted=True))
    )
    taken = changed(
        "supermicro-sys-821ge-tnhr", (uri, lambda slot: slot.update(Image="https://old/x.iso", ConnectedVia="URI"))
    )
    free, next_one = inventory.read(ejected).media.choose(), inventory.read(taken).media.choose()
    assert free and free.uri == uri
    assert next_one and next_one.id == "VirtualMedia2"


def test_rubbish_is_read_without_an_exception() -> None:
    """Fields of any type anywhere: what can't be read is unknown."""
    for rubbish in (None, 7, "x", [], [1], {"Members": 3}, {"Members": [3, None]}, True):
        for name in ("nvidia-dgx-h100", "hpe-apollo6500-xl675d-a100"):
            known = json.loads(gzip.decompress((HERE / "trees" / f"{name}.redfish.json.gz").read_bytes()))
            system = next(uri for uri in known if uri.count("/") == 4 and "/Systems/" in uri and known[uri].get("Boot"))
            for key in list(known[system]):
                if key not in ("@odata.id", "Actions", "Boot", "SystemType"):
                    broken = {**known, system: {**known[system], key: rubbish}}
                    inventory.read(Tree(broken.get))


@pytest.mark.parametrize("text", ["9" * 400, "-" + "9" * 400, "1e400", "-1e400", "NaN", "true", '"3"'])
def test_a_number_that_is_none_is_unknown(text: str) -> None:
    assert tree.number(json.loads(text)) is None


def test_a_service_without_an_end_is_left() -> None:
    def endless(uri: str) -> dict[str, Any] | None:
        if uri == "/redfish/v1":
            return {"Systems": {"@odata.id": "/redfish/v1/Systems"}}
        return {"Members": [{"@odata.id": f"{uri}/m"}], "Members@odata.nextLink": uri + "x"}

    with pytest.raises(BmcError):
        inventory.read(Tree(endless))


@pytest.mark.parametrize("form", ["flat", "nested", "one file"])
def test_a_saved_tree_may_lie_in_folders_or_one_file(tmp_path: Path, form: str) -> None:
    known = json.loads(gzip.decompress((HERE / "trees" / "lenovo-sr670v2-l40.redfish.json.gz").read_bytes()))
    location = tmp_path / "saved.redfish.json"
    if form == "one file":
        location.write_text(json.dumps(known))
    else:
        location = tmp_path / "tree"
        location.mkdir()
        for uri, resource in known.items():
            file = location / f"{uri.strip('/').replace('/', '_')}.json"
            if form == "nested":
                file = location / uri.strip("/") / "index.json"
                file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(resource))
    assert tree.is_saved(location)
    assert len(inventory.read(tree.saved(location)).gpus.read) == 8


def test_what_is_no_tree_is_said(tmp_path: Path) -> None:
    (tmp_path / "x.redfish.json").write_text("[1]")
    for path in (tmp_path / "x.redfish.json", tmp_path / "none.json", tmp_path):
        with pytest.raises(BmcError, match="Redfish"):
            tree.saved(path)


GPU = "/redfish/v1/Systems/HGX_Baseboard_0/Processors/GPU_{}"


@pytest.mark.parametrize("uuids", [True, False])
def test_two_gpus_of_one_board_are_two(uuids: bool) -> None:
    """Serial numbers of a GB300 tray as nvidia-smi prints them (capture gb300-4gpu-580): one for each board."""

    def name(number: int) -> Callable[[dict[str, Any]], object]:
        uuid = {"UUID": f"0000000{number}-0000-0000-0000-00000000000{number}"} if uuids else {}
        return lambda gpu: gpu.update(SerialNumber=f"165000000000{1 + number // 2}", **uuid)

    gpus = inventory.read(changed("nvidia-gb200-nvl", *((GPU.format(n), name(n)) for n in range(4)))).gpus
    assert [(gpu.id, gpu.serial) for gpu in gpus.read] == [
        ("GPU_0", "1650000000001"), ("GPU_1", "1650000000001"), ("GPU_2", "1650000000002"), ("GPU_3", "1650000000002"),
    ]  # fmt: skip


def test_gpus_that_two_systems_show_are_counted_once() -> None:
    known = json.loads(gzip.decompress((HERE / "trees" / "nvidia-gb200-nvl.redfish.json.gz").read_bytes()))
    listed = known["/redfish/v1/Systems/System_0/Processors"]["Members"]
    for number in range(4):
        gpu = known[GPU.format(number)]
        gpu["SerialNumber"] = f"165000000000{1 + number // 2}"
        second_uri = GPU.format(number).replace("HGX_Baseboard_0", "System_0")
        known[second_uri] = {**gpu, "@odata.id": second_uri}
        listed.append({"@odata.id": second_uri})
    assert len(inventory.read(Tree(known.get)).gpus.read) == 4


def test_a_bios_that_the_system_leaves_out_is_read_from_the_firmware() -> None:
    system = "/redfish/v1/Systems/System.Embedded.1"
    machine_facts = inventory.read(
        changed("dell-poweredge-r750-h100pcie", (system, lambda resource: resource.update(BiosVersion="")))
    )
    assert machine_facts.bios == "1.8.2"


@pytest.mark.parametrize(("kind", "known"), [("RackMount", False), ("Blade", True)])
def test_a_server_that_lists_no_fan_and_no_supply_is_not_known_to_be_well(kind: str, known: bool) -> None:
    raw = (HERE / "trees" / "dell-poweredge-r750-h100pcie.redfish.json.gz").read_bytes()
    known_tree = json.loads(gzip.decompress(raw))
    for uri, resource in known_tree.items():
        if resource.get("ChassisType") == "RackMount":
            resource["ChassisType"] = kind
        if uri.endswith(("/ThermalSubsystem/Fans", "/PowerSubsystem/PowerSupplies")):
            resource["Members"] = []
        for name in ("Fans", "PowerSupplies"):
            if uri.endswith(("/Thermal", "/Power")) and name in resource:
                resource[name] = []
    machine_facts = inventory.read(Tree(known_tree.get))
    assert (machine_facts.fans.known, machine_facts.supplies.known) == (known, known)
