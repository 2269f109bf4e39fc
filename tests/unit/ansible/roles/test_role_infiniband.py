"""What the infiniband role takes from the distribution: tools, perftest, modules that the kernel package lacks."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

from tests.support.sandbox_cluster import ROOT

ROLE = ROOT / "ansible/roles/infiniband"
EXTRA = "linux-modules-extra-6.8.0-1044-azure"


def present(lacking: list[str], ofed: str | None) -> list[str]:
    """The packages of the distribution on a node whose kernel lacks these modules."""
    loader = DataLoader()
    defaults = loader.load_from_file(str(ROLE / "defaults/main.yml"))
    trusted = {name: trust_as_template(value) if isinstance(value, str) else value for name, value in defaults.items()}
    # A task that was skipped registers no lines.
    register = {"stdout_lines": lacking} if ofed is None else {"skipped": True}
    variables = {
        **trusted,
        "infiniband_lacking": register,
        "ansible_facts": {"kernel": "6.8.0-1044-azure"},
        "gpuprov_stack": {"ofed": ofed, "packages": [], "repositories": []},
    }
    packages: list[str] = Templar(loader=loader, variables=variables).template(trusted["infiniband_present"])
    return packages


@pytest.mark.parametrize(("lacking", "extra"), [([], False), (["ib_umad"], True), (["ib_umad", "rdma_ucm"], True)])
def test_extra_modules_are_installed_where_the_kernel_lacks_one(lacking: list[str], extra: bool) -> None:
    assert (EXTRA in present(lacking, None)) == extra


def test_perftest_comes_from_the_distribution_or_with_doca() -> None:
    assert "perftest" in present([], None)
    assert present([], "3.2.1") == []


def test_the_role_looks_before_it_installs() -> None:
    """The packages are chosen by a task that runs on the node before them."""
    tasks: list[dict[str, Any]] = DataLoader().load_from_file(str(ROLE / "tasks/install.yml"))
    names = [task["name"] for task in tasks]
    look = next(i for i, task in enumerate(tasks) if task.get("register") == "infiniband_lacking")
    install = next(i for i, task in enumerate(tasks) if "locked_packages" in task)
    assert look < install, names
    assert tasks[install]["locked_packages"]["present"] == "{{ infiniband_present }}"
    assert "modinfo" in tasks[look]["ansible.builtin.shell"]["cmd"]
