"""File systems of a site: from cluster.yaml and Terraform's output to what a node mounts and is held to."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner import fleet, mounts
from provisioner.configure import drift
from provisioner.errors import GpuprovError, ProviderError
from provisioner.fleet import Node
from provisioner.mounts import Mount
from provisioner.paths import ClusterPaths, private_dir
from provisioner.plan import Plan
from provisioner.spec.models import ClusterSpec
from provisioner.verify.expectations import expect
from tests.support import plans

OPTIONS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,_netdev"
SOURCE = "fs-0123456789abcdef0.efs.us-east-1.amazonaws.com:/"
EFS = Mount("nfs4", SOURCE, "/efs", OPTIONS)
NODE = Node("train-0", "train", "here", "p4d.24xlarge", "i-0", "us-east-1a", "203.0.113.5", "10.0.0.5", (EFS,))


def plan(storage: dict[str, Any] | None = None, *, simulated: bool = False) -> Plan:
    site = {**plans.SITES["aws"], "storage": {"efs": {}} if storage is None else storage}
    made = plans.plan(ClusterSpec.model_validate({**plans.cluster_spec("p4d.24xlarge").model_dump(),
                                                  "sites": {"here": site}}))  # fmt: skip
    return replace(made, simulated=simulated)


def test_a_path_has_the_unit_that_systemd_wants() -> None:
    for path in ("/efs", "/data/my-set", "/a_b/c.d", "/.hidden/x"):
        told = subprocess.run(["systemd-escape", "--path", "--suffix=mount", path], capture_output=True, text=True,
                              check=False)  # fmt: skip
        if told.returncode == 0:
            assert mounts.unit(path) == told.stdout.strip()
    assert mounts.unit("/data/my-set") == "data-my\\x2dset.mount"
    assert mounts.unit("/.hidden/x") == "\\x2ehidden-x.mount"


def test_a_nodes_file_systems_come_from_terraforms_output_and_are_remembered(tmp_path: Path) -> None:
    row = {"type": "nfs4", "source": SOURCE, "path": "/efs", "options": OPTIONS}
    given = {"id": "i-0", "group": "train", "zone": "us-east-1a", "machine": "p4d.24xlarge", "private_ip": "10.0.0.5"}
    outputs = {"train-0": {**given, "public_ip": "203.0.113.5", "mounts": [row]}}
    nodes = fleet.from_outputs(plan(), "here", outputs)
    assert nodes == [NODE]
    paths = ClusterPaths(tmp_path / "cluster.yaml", "test", sandbox=False)
    private_dir(paths.root)
    fleet.save(paths, nodes)
    assert fleet.load(paths) == nodes


def test_nodes_that_were_remembered_before_there_were_file_systems_have_none(tmp_path: Path) -> None:
    paths = ClusterPaths(tmp_path / "cluster.yaml", "test", sandbox=False)
    private_dir(paths.root)
    fleet.save(paths, [NODE])
    rows = json.loads(paths.nodes.read_text())
    del rows[0]["mounts"]
    paths.nodes.write_text(json.dumps(rows))
    assert fleet.load(paths) == [replace(NODE, mounts=())]
    rows[0]["mounts"] = [{"type": "nfs4"}]
    paths.nodes.write_text(json.dumps(rows))
    with pytest.raises(GpuprovError, match="is damaged"):
        fleet.load(paths)


def test_what_is_expected_is_cluster_yamls_and_terraforms() -> None:
    wanted = {"path": "/efs", "type": "nfs4", "source": SOURCE, "unit": "efs.mount"}
    assert mounts.expected(plan(), NODE) == (wanted,)
    assert mounts.expected(plan(), replace(NODE, mounts=())) == ({**wanted, "source": ""},)
    elsewhere = {"path": "/data", "type": "nfs4", "source": "", "unit": "data.mount"}
    assert mounts.expected(plan({"efs": {"path": "/data"}}), NODE) == (elsewhere,)
    assert mounts.expected(plan({}), NODE) == ()
    assert mounts.expected(plan(simulated=True), NODE) == ()


def test_the_roles_are_given_what_was_made_and_is_wanted() -> None:
    row = {"type": "nfs4", "source": SOURCE, "path": "/efs", "options": OPTIONS, "unit": "efs.mount"}
    without = replace(NODE, name="train-1", mounts=())
    assert mounts.variables(plan(), [without, NODE]) == {"gpuprov_mounts": {"here": [row]}}
    # It goes from cluster.yaml, or was never made: the role still runs, to take away what it once mounted.
    assert mounts.variables(plan({}), [NODE]) == {"gpuprov_mounts": {"here": []}}
    assert mounts.variables(plan(), [without]) == {"gpuprov_mounts": {"here": []}}
    assert mounts.variables(plan(simulated=True), [NODE]) == {}


def test_another_file_system_at_the_same_path_is_a_reason_to_configure() -> None:
    other = replace(NODE, mounts=(replace(EFS, source="fs-1.efs.us-east-1.amazonaws.com:/"),))
    stamps = {drift.fingerprint(plan(), "train", mounts.variables(plan(), nodes)) for nodes in ([NODE], [other], [])}
    assert len(stamps) == 3


@pytest.mark.parametrize("action", ["delete", "replace"])
def test_no_plan_removes_a_file_system(action: str) -> None:
    mounts.refuse_loss([("module.site.aws_efs_file_system.shared[0]", "create")], "here")
    mounts.refuse_loss([('module.site.aws_efs_mount_target.shared["us-east-1a"]', action)], "here")
    with pytest.raises(ProviderError, match="would be removed with its data") as caught:
        mounts.refuse_loss([("module.site.aws_efs_file_system.shared[0]", action)], "here")
    assert "put sites.*.storage back" in caught.value.hint


def test_a_mount_that_is_gone_is_mended_by_its_role_alone() -> None:
    from provisioner import catalog
    from provisioner.verify.bundle import Bundle, Output

    group = plan().groups[0]
    shared = mounts.expected(plan(), NODE)
    wanted = expect(group.machine, group.gpu, group.stack, group.spec, catalog.load(), shared=shared)
    assert "efs.mount" in (wanted.units or ())
    lock = drift.Wanted("0", (), (), ("efs.mount",), group.stack.os)
    text = (
        "Id=efs.mount\nLoadState=loaded\nActiveState=failed\nSubState=failed\nUnitFileState=enabled\nResult=timeout\n"
    )
    found = [d for d in drift.differences(Bundle({"units.txt": Output(text, 0)}), lock) if d.kind == "unit"]
    assert [d.message for d in found] == ["efs.mount is failed"]
    assert drift.tags(found) == {"mounts"}
