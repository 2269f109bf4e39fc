"""Which nodes the base role refuses: another distribution, or another kernel, than the lock is for."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from tests.support.sandbox_cluster import ROOT

AWS = "6.8.0-1066-aws"


def refusals(distribution: str, version: str, kernel: str, lock: dict[str, Any], **more: Any) -> list[str]:
    """What the role says of a node with these facts of Ansible's, in its own words."""
    loader = DataLoader()
    defaults = loader.load_from_file(str(ROOT / "ansible/roles/base/defaults/main.yml"))
    facts = {"distribution": distribution, "distribution_version": version, "kernel": kernel}
    trusted = {name: trust_as_template(value) if isinstance(value, str) else value for name, value in defaults.items()}
    variables = {**trusted, "base_image_brings": {"stdout": ""}, "ansible_facts": facts, "gpuprov_stack": lock, **more}
    messages: list[str] = Templar(loader=loader, variables=variables).template(trusted["base_refusals"])
    return messages


@pytest.mark.parametrize(
    ("distribution", "version", "os"),
    [
        ("Ubuntu", "24.04", "ubuntu-24.04"),
        ("Ubuntu", "22.04", "ubuntu-22.04"),
        ("Debian", "12.11", "debian-12"),  # Ansible knows the point release
        ("Debian", "12", "debian-12"),
    ],
)
def test_the_distribution_of_the_lock(distribution: str, version: str, os: str) -> None:
    assert refusals(distribution, version, AWS, {"os": os, "kernel": None}) == []


@pytest.mark.parametrize(
    ("distribution", "version", "os"),
    [
        ("Ubuntu", "22.04", "ubuntu-24.04"),
        ("Ubuntu", "24.04", "debian-12"),
        ("Debian", "12.11", "ubuntu-24.04"),
        ("Debian", "13.1", "debian-12"),
        ("Debian", "120", "debian-12"),
        ("Rocky", "9.4", "ubuntu-22.04"),
    ],
)
def test_another_distribution_is_refused_with_both_names(distribution: str, version: str, os: str) -> None:
    (message,) = refusals(distribution, version, AWS, {"os": os, "kernel": None})
    assert message.startswith(f"this node is {distribution.lower()}-{version}, the lock is for {os}, ")


def test_a_deep_learning_ami_is_refused() -> None:
    """Its NVMe disks are in LVM at /opt/dlami/nvme, its driver, EFA and docker are others."""
    brings = {"stdout": "/opt/dlami", "stdout_lines": ["/opt/dlami"]}
    (message,) = refusals("Ubuntu", "24.04", AWS, {"os": "ubuntu-24.04", "kernel": None}, base_image_brings=brings)
    assert message.startswith("the image brings GPU software of its own (/opt/dlami, a Deep Learning AMI)")
    lock = {"os": "ubuntu-24.04", "kernel": None, "vendor": {"name": "a Deep Learning AMI", "parts": {}}}
    assert refusals("Ubuntu", "24.04", AWS, lock, base_image_brings=brings) == []
    assert "Start from the plain image of ubuntu-24.04, or adopt what it brings" in message


@pytest.mark.parametrize("kernel", [AWS, "6.8", "6.8.0", None])
def test_a_kernel_that_the_lock_names(kernel: str | None) -> None:
    assert refusals("Ubuntu", "24.04", AWS, {"os": "ubuntu-24.04", "kernel": kernel}) == []


@pytest.mark.parametrize("kernel", ["6.8.0-1066", "6.8.0-1067-aws", "6.80", "6.17", "6.1", "5.15"])
def test_another_kernel_is_refused(kernel: str) -> None:
    (message,) = refusals("Ubuntu", "24.04", AWS, {"os": "ubuntu-24.04", "kernel": kernel})
    assert message.startswith(f"kernel {AWS} runs, the lock names {kernel}, ")


def test_every_reason_is_said() -> None:
    assert len(refusals("Debian", "12.1", AWS, {"os": "ubuntu-24.04", "kernel": "5.15"})) == 2
