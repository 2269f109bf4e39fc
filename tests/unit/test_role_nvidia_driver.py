"""Role nvidia_driver: which other drivers it keeps off, and persistence mode with whichever unit the vendor brings."""

from __future__ import annotations

import configparser
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from provisioner.catalog import load
from provisioner.configure import inventory
from provisioner.gpu_drivers import OTHER_DRIVERS
from provisioner.sandbox.sources import unit_file
from provisioner.verify.pytest_runner import Case
from tests.support import plans
from tests.support.healthy_bundle import bundle, expected, healthy
from tests.support.judging import judge
from tests.support.rehearsal import ROOT

MACHINE = "p4d.24xlarge"


def role(name: str, **changes: Any) -> Any:
    """A default of the role, as a node of that machine gets it."""
    loader = DataLoader()
    defaults = loader.load_from_file(str(ROOT / "ansible/roles/nvidia_driver/defaults/main.yml"))
    trusted = {key: trusted_deep(value) for key, value in defaults.items()}
    plan = plans.plan(plans.cluster_spec(MACHINE, count=1))
    variables = {**trusted, **inventory.group_variables(plan.groups[0].name, plan), **changes}
    return Templar(loader=loader, variables=variables).template(trusted[name])


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
    found = next(check for check in judged.checks if check.id == "driver.nouveau_absent")
    assert (found.status, found.message) == ("fail", f"{name} is loaded")


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
