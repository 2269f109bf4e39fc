"""Role node_exporter: where node_exporter and the DCGM exporter listen, and that the package's own unit never runs."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from provisioner.configure.inventory import group_variables
from tests.support.plans import cluster_spec, plan
from tests.support.sandbox_cluster import ROOT

ROLES = ROOT / "ansible/roles"


def variables_of(**monitoring: Any) -> dict[str, Any] | None:
    """gpuprov_node_exporter of a cluster with this block `monitoring`."""
    planned = plan(cluster_spec("p4d.24xlarge", monitoring=monitoring))
    value: dict[str, Any] | None = group_variables(planned.groups[0].name, planned)["gpuprov_node_exporter"]
    return value


@pytest.mark.parametrize(
    ("monitoring", "textfiles"),
    [
        ({}, None),
        ({"health_check": {}}, None),  # as before: the nodes may have one of their own
        ({"prometheus": {"at": "external"}}, "/var/lib/prometheus/node-exporter"),
        ({"prometheus": {"at": "external"}, "node_exporter": False}, None),
        ({"node_exporter": True}, "/var/lib/prometheus/node-exporter"),
        ({"node_exporter": True, "health_check": {"textfile": "/srv/m/x.prom"}}, "/srv/m"),
    ],
)
def test_where_it_is_installed_and_what_it_reads(monitoring: dict[str, Any], textfiles: str | None) -> None:
    assert variables_of(**monitoring) == ({"textfiles": textfiles} if textfiles else None)


def test_the_packages_own_unit_is_off_before_the_package_is_there() -> None:
    """Debian's postinst starts it on all addresses."""
    first, second = yaml.safe_load((ROLES / "node_exporter/tasks/install.yml").read_text(encoding="utf-8"))
    (drop_in,) = first["node_files"]["files"]
    assert drop_in["dest"] == "/etc/systemd/system/prometheus-node-exporter.service.d/gpuprov.conf"
    assert "\nConditionPathExists=/etc/gpuprov/" in drop_in["content"]
    assert second["locked_packages"]["present"] == ["prometheus-node-exporter"]


@pytest.mark.parametrize("address", ["10.0.0.4", "[fd00::4]", ""], ids=["IPv4", "IPv6", "unknown"])
@pytest.mark.parametrize(("role", "port"), [("node_exporter", 9100), ("dcgm_exporter", 9400)])
def test_exporters_listen_on_the_private_address(role: str, port: int, address: str) -> None:
    loader = DataLoader()
    template = loader.load_from_file(str(ROLES / role / "defaults/main.yml"))[f"{role}_listen"]
    templar = Templar(loader=loader, variables={"gpuprov_listen_address": address})
    assert templar.template(trust_as_template(template)) == f"{address}:{port}"


def test_an_image_has_no_address_of_the_machine_that_it_was_built_on() -> None:
    for role in ("node_exporter", "dcgm_exporter"):
        text = (ROLES / role / "tasks/install.yml").read_text(encoding="utf-8")
        assert f"{role}_listen" not in text
        assert f"{role}_listen" in (ROLES / role / "tasks/configure.yml").read_text(encoding="utf-8")
