"""Several processes for the tests (`pytest -n 3`): which tests stay together, and which come first, by marks at the
tests. And what saves every one of them time."""

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

LAST, UNRANKED = 1000, 999


def group(item: pytest.Item) -> str:
    """Tests with the same group run in the same process, in their order: those of a file, or those of all files with
    the same mark `shares`. With the mark `apart` each test is one by itself."""
    if item.get_closest_marker("apart"):
        return item.nodeid
    marker = item.get_closest_marker("shares")
    return str(marker.args[0]) if marker else item.nodeid.partition("::")[0]


def turn(item: pytest.Item) -> int:
    """Groups that take minutes begin first, by their mark `begins`: with a long one left for the end, one process works
    and two wait. Single tests come last, so nobody waits long for the others in the end."""
    if item.get_closest_marker("apart"):
        return LAST
    marker = item.get_closest_marker("begins")
    return int(marker.args[0]) if marker else UNRANKED


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bring them into their order. A process of several hands each one's group to the scheduler, which knows of a test
    nothing but its id: as pytest-xdist does for the mark xdist_group, which pytest 9.2 and pytest-xdist 3.8 together
    pass over."""
    items.sort(key=turn)
    if hasattr(config, "workerinput"):
        for item in items:
            item._nodeid = f"{item.nodeid}@{group(item)}"


def pytest_collection_finish() -> None:
    """What is collected stays as long as this process."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a file that would make a shared fleet once more in another process."""
    marker = item.get_closest_marker("shares")
    if missing := shared_fleets(item) - ({*marker.args} if marker else set()):
        pytest.fail(f"it shares a fleet: its file needs the mark shares({missing.pop()!r})", pytrace=False)


def shared_fleets(item: pytest.Item) -> set[str]:
    """Which of the fleets of tests/sandbox/conftest.py it uses."""
    return {"p4d", "lone"} & {*getattr(item, "fixturenames", ())} if item.get_closest_marker("sandbox") else set()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid.rpartition("@")[2]

    config.option.loadscopereorder = False
    return ByGroup(config, log)
