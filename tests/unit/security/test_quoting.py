"""The name of a folder is never read as anything else: by a shell, ssh, Ansible, testinfra, Terraform.

`up` itself runs in such a folder in tests/sandbox (fixture `p4d`), Ansible in test_hostile_facts.py, ssh in
tests/unit/transport/test_ssh.py, Terraform's values in tests/unit/machines/terraform/test_hcl.py.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import testinfra

from provisioner import stack
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.configure import run
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.subjects import subjects_of
from provisioner.rundir import fleet
from provisioner.stack import lockfile
from provisioner.stack.models import Lock
from tests.support import plans
from tests.unit.transport.test_ssh import FOLDERS

NODE = fleet.Node("train-0", "train", "here", "p4d.24xlarge", "i-0", "", "203.0.113.9", "10.0.0.9")


def paths_in(folder: Path) -> ClusterPaths:
    paths = ClusterPaths(folder / "cluster.yaml", "test", sandbox=True)
    private_dir(paths.ssh)
    (paths.ssh / "config").write_text("here")
    return paths


@pytest.mark.parametrize("name", FOLDERS)
def test_ansible_is_told_our_configuration_of_ssh_and_nothing_else(name: str, tmp_path: Path) -> None:
    paths = paths_in(tmp_path / name)
    arguments = shlex.split(run.environment(paths)["ANSIBLE_SSH_ARGS"])  # as its plugin for ssh does
    assert arguments[0] == "-F"
    assert [Path(argument).read_text() for argument in arguments[1:]] == ["here"]


@pytest.mark.parametrize("name", FOLDERS)
def test_no_path_that_ansible_is_told_has_anything_that_it_replaces(name: str, tmp_path: Path) -> None:
    paths = paths_in(tmp_path / name)
    ansible_paths = [
        value for value in run.environment(paths).values() if "gpuprov-" in value or str(tmp_path) in value
    ]
    assert ansible_paths
    assert not [value for value in ansible_paths if set(value) & set("$~,\"'\\%#")]


@pytest.mark.parametrize("name", [*FOLDERS, "a?b", "a&ssh_identity_file=x", "a+b"])
def test_checks_reach_nodes_by_our_configuration_of_ssh(name: str, tmp_path: Path) -> None:
    paths = paths_in(tmp_path / name)
    spec = plans.cluster_spec("p4d.24xlarge", name="test")
    plan = plans.plan(spec)
    lock = Lock(request=stack.request(spec), simulated=True, groups={g.name: g.stack for g in plan.groups})
    lockfile.write(paths.lock_file, lock)
    (subject,) = subjects_of(Cluster(paths.spec, spec, paths), [NODE])
    backend = testinfra.get_host(subject.host_spec).backend
    assert backend.ssh_config == str(paths.ssh / "config")
    assert backend.ssh_identity_file is None
