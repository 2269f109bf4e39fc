"""Several processes for the tests (`pytest -n 3`): which tests stay together, and which come first. And what saves
every one of them time."""

from __future__ import annotations

import gc
import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore.loaders import JSONFileLoader, Loader

# One image instead of moto's 1,300, which each test would make anew.
os.environ.setdefault("MOTO_AMIS_PATH", str(Path(__file__).parent / "support" / "moto_amis.json"))
os.environ.setdefault("GOGC", "400")  # Terraform reads 20 MB of schema in each command: a fifth less time
yaml.SafeLoader = yaml.CSafeLoader  # type: ignore[assignment,misc]  # of yaml.safe_load: ten times faster
signal.signal(signal.SIGINT, signal.default_int_handler)  # commands inherit it where it is ignored
gc.disable()  # while tests are collected: they all stay, and looking through them for garbage takes a third of the time


def _read_once() -> None:
    """botocore's description of AWS's APIs, 24 MB, which each of its sessions would read and look for again."""
    read, look = cache(JSONFileLoader().load_file), Loader.list_available_services
    services = cache(lambda kind: look(Loader(include_default_search_paths=True), kind))
    JSONFileLoader.load_file = lambda _, path: read(path)
    Loader.list_available_services = lambda _, type_name: services(type_name)


_read_once()

TOGETHER = {
    "aws": (
        "unit/terraform_aws/test_aws_cluster",
        "unit/terraform_aws/test_aws_forgotten",
        "unit/terraform_aws/test_aws_life",
        "unit/terraform_aws/test_aws_plan",
        "unit/terraform_aws/test_aws_storage",
    ),
    "p4d": (
        "sandbox/test_drift",
        "sandbox/test_fabric",
        "sandbox/test_faults",
        "sandbox/test_half_dead_nodes",
        "sandbox/test_quarantine",
        "sandbox/test_up",
    ),
    "lone": (
        "sandbox/test_carried",
        "sandbox/test_configured_again",
        "sandbox/test_driver",
        "sandbox/test_hostile_node",
        "sandbox/test_mounts",
        "sandbox/test_package_failures",
        "sandbox/test_testinfra_suite",
    ),
}
"""Group → files that share what takes long to make: a cloud with an initialised provider, four nodes, one node."""
GROUPS = {f"tests/{file}.py": group for group, files in TOGETHER.items() for file in files}
APART = {"tests/sandbox/test_broken_runs.py", "tests/sandbox/test_examples.py"}
"""Files whose tests share nothing."""
FIRST = (
    "aws",
    "p4d",
    "lone",
    "tests/sandbox/test_upgrade.py",
    "tests/sandbox/test_images.py",
    "tests/sandbox/test_aws.py",
    "tests/sandbox/test_roles_more.py",
    "tests/sandbox/test_baremetal.py",
    "tests/sandbox/test_healthy_stays.py",
)
"""Groups that take minutes, the longest first: with a long one left for the end, one process works and two wait."""


def group(nodeid: str) -> str:
    """Tests with the same group run in the same process, in their order."""
    file = nodeid.partition("::")[0]
    return nodeid if file in APART else GROUPS.get(file, file)


def turn(nodeid: str) -> int:
    """Long groups begin first and single tests come last: so nobody waits long for the others in the end."""
    if nodeid.partition("::")[0] in APART:
        return len(FIRST) + 1
    found = group(nodeid)
    return FIRST.index(found) if found in FIRST else len(FIRST)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring them into their order."""
    items.sort(key=lambda item: turn(item.nodeid))


def pytest_collection_finish() -> None:
    """What is collected stays as long as this process."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a file that would make a shared fleet once more in another process."""
    if not shared_fleets(item) <= {group(item.nodeid)}:
        pytest.fail("it shares a fleet: its file belongs into TOGETHER of tests/conftest.py", pytrace=False)


def shared_fleets(item: pytest.Item) -> set[str]:
    """Which of the fleets of tests/sandbox/conftest.py it uses."""
    return {"p4d", "lone"} & {*getattr(item, "fixturenames", ())} if item.get_closest_marker("sandbox") else set()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    # Not the mark xdist_group: pytest 9.2 and pytest-xdist 3.8 together pass over it.
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    config.option.loadscopereorder = False
    return ByGroup(config, log)
