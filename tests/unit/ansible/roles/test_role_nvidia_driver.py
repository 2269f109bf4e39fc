"""Role nvidia_driver: which other drivers it keeps off, and persistence mode with whichever unit the vendor brings."""

from __future__ import annotations

import configparser
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from provisioner.catalog import load
from provisioner.common.gpu_drivers import OTHER_DRIVERS
from provisioner.configure import inventory
from provisioner.sandbox.sources import unit_file
from provisioner.verify.pytest_runner import Case
from tests.support import plans
from tests.support.healthy_bundle import bundle, expected, healthy
from tests.support.judging import judge
from tests.support.sandbox_cluster import ROOT

MACHINE = "p4d.24xlarge"


def role(name: str, machine: str = MACHINE, **changes: Any) -> Any:
    """A default of the role, as a node of that machine gets it."""
    loader = DataLoader()
    defaults = loader.load_from_file(str(ROOT / "ansible/roles/nvidia_driver/defaults/main.yml"))
    trusted = {key: trusted_deep(value) for key, value in defaults.items()}
    plan = plans.plan(plans.cluster_spec(machine, count=1))
    variables = {**trusted, **inventory.group_variables(plan.groups[0].name, plan), **changes}
    return Templar(loader=loader, variables=variables).template(trusted[name])


SWITCHES = "05:01.0 0680: 10de:1af1 (rev a1)\n06:01.0 0680: 10de:1af1 (rev a1)"
IN_A_VM = "ecs.gn7-c13g1.26xlarge"


@pytest.mark.parametrize(("machine", "switch_lines", "runs"), [
    (MACHINE, "", True), (IN_A_VM, "", False), (IN_A_VM, SWITCHES, True), ("g6.48xlarge", SWITCHES, False),
])  # fmt: skip
def test_fabric_manager_follows_the_node_where_no_source_says_that_it_is_needed(
    machine: str, switch_lines: str, runs: bool
) -> None:
    """Without a switch it ends with NV_WARN_NOTHING_TO_DO (NVIDIA/gpu-operator#610), and the role with it."""
    services = role("nvidia_driver_services", machine, nvidia_driver_switches={"stdout": switch_lines})
    assert ("nvidia-fabricmanager" in services) == runs


def test_the_checks_and_what_up_looks_for_follow_the_node_too() -> None:
    texts, want = healthy(IN_A_VM), expected(IN_A_VM)
    assert "nvidia-fabricmanager.service" in (want.units or ())
    assert set(want.units or ()) - set(want.units_on(0)) == {"nvidia-fabricmanager.service"}
    assert want.units_on(6) == want.units_on(None) == want.units
    stopped = "\u25cb nvidia-fabricmanager.service\n   Loaded: loaded\n   Active: inactive (dead)\n"
    switch = "0000:05:01.0 Bridge [0680]: NVIDIA Corporation GA100 [A100 NVSwitch] [10de:1af1] (rev a1)\n"
    cases = {
        "none": Case(bundle(texts | {"fabricmanager.txt": stopped}), want),
        "six": Case(
            bundle(texts | {"fabricmanager.txt": stopped, "lspci.txt": f"{texts['lspci.txt']}{switch * 6}"}), want
        ),
    }
    checks_by_case = {name: {check.id: check for check in verdict.checks} for name, verdict in judge(cases).items()}
    assert checks_by_case["none"]["nvswitch.fabric"].status == "skip"
    assert (checks_by_case["six"]["nvswitch.fabric"].status, checks_by_case["six"]["nvswitch.fabric"].severity) == (
        "fail",
        "fatal",
    )


def trusted_deep(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: trusted_deep(item) for key, item in value.items()}
    if isinstance(value, list):
        return [trusted_deep(item) for item in value]
    return trust_as_template(value) if isinstance(value, str) else value


@pytest.mark.parametrize("name", OTHER_DRIVERS)
def test_a_driver_that_takes_the_gpus_is_denied_and_looked_for(name: str) -> None:
    (deny,) = [file["content"] for file in role("nvidia_driver_files") if file["dest"].startswith("/etc/modprobe.d")]
    assert f"blacklist {name}" in deny.splitlines()
    texts = healthy(MACHINE)
    texts["modules.txt"] = f"{name} 3 1 - Live 0x0\n{texts['modules.txt']}"
    judged = judge({"it": Case(bundle(texts), expected(MACHINE))})["it"]
    nouveau_check = next(check for check in judged.checks if check.id == "driver.nouveau_absent")
    assert (nouveau_check.status, nouveau_check.message) == ("fail", f"{name} is loaded")


@pytest.mark.parametrize("vendor", ["ubuntu", "nvidia"])
def test_persistence_mode_is_on_with_either_unit(vendor: str) -> None:
    """What systemd makes of the vendor's unit and the drop-in: later settings win, an empty ExecStart= takes back."""
    unit = merged(unit_file(f"nvidia-persistenced.{vendor}.service"), role("nvidia_driver_persistence_unit"))
    assert unit["Unit"].get("StopWhenUnneeded") == "no"
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    start = unit["Service"]["ExecStart"]
    assert "exec /usr/bin/nvidia-persistenced $${user:+--user $$user} --persistence-mode" in start
    assert "--no-persistence-mode" not in start
    assert unit["Service"]["ExecStopPost"] == "/bin/rm -rf /var/run/nvidia-persistenced"


def merged(*texts: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    for text in texts:
        parser.read_string(text.replace("\\\n", ""))
    return parser


def test_fabric_manager_comes_before_whatever_touches_the_gpus() -> None:
    assert load().machine(MACHINE).fabric_manager_required
    services = role("nvidia_driver_services")
    assert services == ["nvidia-fabricmanager", "nvidia-persistenced"]
    assert "After=nvidia-fabricmanager.service\n" in role("nvidia_driver_persistence_unit")
    assert "After=" not in role("nvidia_driver_persistence_unit", gpuprov_fabric_manager=False)


def test_persistence_that_is_not_asked_for_is_not_started() -> None:
    assert "nvidia-persistenced" not in role("nvidia_driver_services", gpuprov_persistence=False)
