"""docs/concepts/retries.md has the numbers that the code has."""

from __future__ import annotations

import re

import pytest
import yaml

from provisioner.lifecycle.sharing import lease
from provisioner.machines.providers import capacity
from provisioner.machines.providers.alicloud import client as alicloud
from provisioner.machines.providers.aws import client as aws
from provisioner.machines.providers.aws import module
from provisioner.machines.providers.azure import client as azure
from provisioner.machines.providers.tencent import client as tencent
from provisioner.spec.models import Timeouts
from provisioner.stack import fetch
from provisioner.verify import fabric, tool
from provisioner.verify.probe import runner
from tests.support.sandbox_cluster import ROOT

ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (ROOT / "docs/concepts/retries.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| ---")
][1:]


def documented(cause: str) -> list[float]:
    """The numbers of the columns "how often" and "pause" in the row that begins with `cause`."""
    (row,) = [row for row in ROWS if row[0].startswith(cause)]
    return [float(number) for number in re.findall(r"[0-9]+(?:\.[0-9]+)?", f"{row[2]} {row[3]}")]


def default_of(module_name: str, option: str) -> int:
    """The default of an Ansible module's option, by its documentation."""
    (file,) = (ROOT / "ansible").rglob(f"{module_name}.py")
    text = file.read_text(encoding="utf-8").split('DOCUMENTATION = r"""')[1].split('"""')[0]
    return int(yaml.safe_load(text)["options"][option]["default"])


@pytest.mark.parametrize(
    ("cause", "numbers"),
    [
        ("a file for the lock", [fetch.TRIES, fetch.TRIES_ALONE, fetch.DEADLINE, fetch.PAUSE]),
        ("Terraform's calls to AWS", [module.RETRIES]),
        ("gpuprov's calls to AWS", [aws.ATTEMPTS]),
        ("gpuprov's calls to Azure", [azure.RETRIES, azure.MOST_WAIT_S]),
        ("gpuprov's calls to Alibaba Cloud", [alicloud.ATTEMPTS, alicloud.PAUSE_S]),
        ("gpuprov's calls to Tencent Cloud", [tencent.ATTEMPTS, tencent.PAUSE_S]),
        ("an apply that was throttled", [capacity.MOST_AGAIN, capacity.PAUSE_S]),
        ("an apply that failed by", [capacity.PAUSE_S]),
        ("a new machine's sshd", [Timeouts().ssh_s]),
        ("apt on a node", [default_of("locked_packages", "attempts"), 5, 10, 15]),
        ("apt while another process", [default_of("locked_packages", "lock_timeout")]),
        ("a container image on a node", [default_of("locked_images", "attempts"), 5, 10]),
        ("what may be momentary", [tool.LOOKS, runner.LOOK_WAIT_S]),
        ("a pair of nodes", [fabric.AGAIN]),
        ("the lease", [lease.TAKE_ATTEMPTS]),
    ],
)
def test_the_page_has_the_numbers_of_the_code(cause: str, numbers: list[float]) -> None:
    assert documented(cause) == numbers


def test_the_pauses_of_roles_begin_with_five_seconds() -> None:
    names = ("locked_packages", "apt_repositories", "locked_images")
    assert [default_of(name, "pause") for name in names] == [5, 5, 5]


def test_ansible_connects_again_as_the_page_says() -> None:
    source = (ROOT / "provisioner" / "configure" / "run.py").read_text(encoding="utf-8")
    assert f'"ANSIBLE_SSH_RETRIES": "{documented("a task of Ansible")[0]:.0f}"' in source
