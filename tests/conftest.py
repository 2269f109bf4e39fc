"""Several processes for the tests (`pytest -n 3`): which tests stay together, and which come first, by marks at the
tests. And what saves every one of them time."""

from __future__ import annotations

import gc
import os
import re
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

ROOT = Path(__file__).parent.parent
LAST, UNRANKED = 1000, 999


def group(nodeid: str) -> str:
    """Tests with the same group run in the same process, in their order: those of a file, or those of all files with
    the same mark `shares`. With the mark `apart` each test is one by itself."""
    file = nodeid.partition("::")[0]
    return nodeid if is_apart(file) else shared_name(file) or file


@cache
def shared_name(file: str) -> str:
    """What the mark `shares` of a file names; empty without it. Read from the text: the process that hands the tests
    out imports none, and knows their ids alone."""
    match = re.search(r'pytest\.mark\.shares\("(\w+)"\)', (ROOT / file).read_text(encoding="utf-8"))
    return match[1] if match else ""


@cache
def is_apart(file: str) -> bool:
    """Whether a file has the mark `apart`."""
    return re.search(r"pytest\.mark\.apart\b", (ROOT / file).read_text(encoding="utf-8")) is not None


def turn(item: pytest.Item) -> int:
    """Groups that take minutes begin first, by their mark `begins`: with a long one left for the end, one process works
    and two wait. Single tests come last, so nobody waits long for the others in the end."""
    if item.get_closest_marker("apart"):
        return LAST
    marker = item.get_closest_marker("begins")
    return int(marker.args[0]) if marker else UNRANKED


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring them into their order."""
    items.sort(key=turn)


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
    # Not the mark xdist_group: pytest 9.2 and pytest-xdist 3.8 together pass over it.
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    config.option.loadscopereorder = False
    return ByGroup(config, log)
