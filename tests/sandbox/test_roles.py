"""The roles on real nodes: a second run changes nothing, check mode is safe, Ubuntu's branches resolve."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.rehearsal import ROOT, Rehearsal

pytestmark = pytest.mark.sandbox

UBUNTU = {
    "22.04": 'NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID="22.04"\nVERSION_CODENAME=jammy\n',
    "24.04": 'NAME="Ubuntu"\nID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\n',
}


def playbook(rehearsal: Rehearsal, *options: str, limit: str = "all") -> dict[str, dict[str, int]]:
    """Run site.yml as gpuprov does; node → {"ok", "changed", "failures", …} of Ansible's own summary."""
    root = rehearsal.root
    done = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(root / "inventory.yml"), "--limit", limit,
         *options, str(ROOT / "ansible/playbooks/site.yml")],
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible" / "ansible.cfg"),
            "ANSIBLE_ROLES_PATH": str(ROOT / "ansible" / "roles"),
            "ANSIBLE_LIBRARY": str(ROOT / "ansible" / "plugins" / "modules"),
            "ANSIBLE_SSH_ARGS": f"-F {root / 'ssh' / 'config'}",
            "ANSIBLE_DEPRECATION_WARNINGS": "False",
        },
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )  # fmt: skip
    stats: dict[str, dict[str, int]] = {}
    for line in done.stdout.splitlines():
        if " : ok=" in line:
            name, _, rest = line.partition(":")
            stats[name.strip()] = {key: int(value) for key, value in (pair.split("=") for pair in rest.split())}
    assert stats, done.stdout + done.stderr
    return stats


def test_a_second_run_of_every_role_changes_nothing(p4d: Rehearsal) -> None:
    for node, counts in playbook(p4d, limit="train-0:train-1").items():
        assert counts["failed"] == counts["unreachable"] == 0, node
        assert counts["changed"] == 0, node
        assert counts["ok"] > 30, node


def test_check_mode_changes_nothing_and_fails_nowhere(p4d: Rehearsal) -> None:
    p4d.run("ssh", p4d.file, "train-0", "sudo rm /etc/profile.d/gpuprov-cuda.sh")
    checked = playbook(p4d, "--check", limit="train-0")["train-0"]
    assert checked["failed"] == 0
    assert checked["changed"] >= 1
    assert p4d.run("ssh", p4d.file, "train-0", "test -e /etc/profile.d/gpuprov-cuda.sh").status == 1
    assert playbook(p4d, limit="train-0")["train-0"]["changed"] >= 1
    assert p4d.run("ssh", p4d.file, "train-0", "test -e /etc/profile.d/gpuprov-cuda.sh").status == 0


@pytest.mark.parametrize("release", sorted(UBUNTU))
def test_ubuntu_resolves_in_check_mode(p4d: Rehearsal, release: str) -> None:
    """Not a run on Ubuntu: a node that says it is one, so that the roles take Ubuntu's branches."""
    text = UBUNTU[release].replace('"', '\\"')
    p4d.run("ssh", p4d.file, "train-1", f'printf "{text}" | sudo tee /run/os-release.ubuntu >/dev/null')
    p4d.run("ssh", p4d.file, "train-1", "sudo mount --bind /run/os-release.ubuntu /usr/lib/os-release")
    try:
        checked = playbook(p4d, "--check", "--diff", limit="train-1")["train-1"]
        assert checked["failed"] == checked["unreachable"] == 0
        assert checked["changed"] == 1  # docker's settings: CDI is switched on where docker knows it
    finally:
        p4d.run("ssh", p4d.file, "train-1", "sudo umount /usr/lib/os-release")


def test_an_unknown_release_is_refused(p4d: Rehearsal) -> None:
    text = UBUNTU["24.04"].replace("24.04", "26.04").replace('"', '\\"')
    p4d.run("ssh", p4d.file, "train-1", f'printf "{text}" | sudo tee /run/os-release.ubuntu >/dev/null')
    p4d.run("ssh", p4d.file, "train-1", "sudo mount --bind /run/os-release.ubuntu /usr/lib/os-release")
    try:
        assert playbook(p4d, "--check", limit="train-1")["train-1"]["failed"] == 1
    finally:
        p4d.run("ssh", p4d.file, "train-1", "sudo umount /usr/lib/os-release")


def test_a_key_with_another_fingerprint_is_refused(p4d: Rehearsal) -> None:
    """The repository's key is not the pinned one: the node is not configured, and the error shows both."""
    inventory = p4d.root / "inventory.yml"
    whole = inventory.read_text()
    wrong = json.loads(whole)
    repositories = wrong["all"]["children"]["train"]["vars"]["gpuprov_stack"]["repositories"]
    repositories[0]["fingerprint"] = "0" * 40
    inventory.write_text(json.dumps(wrong))
    try:
        assert playbook(p4d, limit="train-2")["train-2"]["failed"] == 1
    finally:
        inventory.write_text(whole)
    kept = p4d.run("ssh", p4d.file, "train-2", f"ls /etc/apt/keyrings/gpuprov-{repositories[0]['name']}.asc")
    assert kept.status == 0
    assert playbook(p4d, limit="train-2")["train-2"]["changed"] == 0
