"""File systems of a site: from cluster.yaml and Terraform's output to what a node mounts and is held to."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.configure import drift, stamps
from provisioner.machines import mounts
from provisioner.machines.providers.aws.module import Ec2Module
from provisioner.plan.models import Plan
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Mount, Node
from provisioner.spec.models import ClusterSpec
from provisioner.verify.expectations import expect
from tests.support import plans

OPTIONS = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,_netdev"
SOURCE = "fs-0123456789abcdef0.efs.us-east-1.amazonaws.com:/"
EFS = Mount("nfs4", SOURCE, "/efs", OPTIONS)
NODE = Node("train-0", "train", "here", "p4d.24xlarge", "i-0", "us-east-1a", "203.0.113.5", "10.0.0.5", (EFS,))


def plan(storage: dict[str, Any] | None = None, *, simulated: bool = False) -> Plan:
    site = {**plans.SITES["aws"], "storage": {"efs": {}} if storage is None else storage}
    document = plans.cluster_spec("p4d.24xlarge").model_dump() | {"stack": {"kernel": "6.8.0-1066-aws"}}
    offline_plan = plans.plan(ClusterSpec.model_validate({**document, "sites": {"here": site}}))
    return replace(offline_plan, simulated=simulated)


def row(path: str, kind: str, source: str, options: str = "", **changed: str) -> dict[str, str]:
    """A file system as the role and the check are given it."""
    return {
        "path": path, "unit": mounts.unit(path), "type": kind, "source": source, "options": options,
        "shows_type": kind, "shows_source": source, "access": "rw", "part": "", **changed,
    }  # fmt: skip


def test_a_path_has_the_unit_that_systemd_wants() -> None:
    for path in ("/efs", "/data/my-set", "/a_b/c.d", "/.hidden/x"):
        result = subprocess.run(["systemd-escape", "--path", "--suffix=mount", path], capture_output=True, text=True,
                              check=False)  # fmt: skip
        if result.returncode == 0:
            assert mounts.unit(path) == result.stdout.strip()
    assert mounts.unit("/data/my-set") == "data-my\\x2dset.mount"
    assert mounts.unit("/.hidden/x") == "\\x2ehidden-x.mount"


def test_a_nodes_file_systems_come_from_terraforms_output_and_are_remembered(tmp_path: Path) -> None:
    output = {"type": "nfs4", "source": SOURCE, "path": "/efs", "options": OPTIONS}
    node_output = {
        "id": "i-0",
        "group": "train",
        "zone": "us-east-1a",
        "machine": "p4d.24xlarge",
        "private_ip": "10.0.0.5",
    }
    outputs = {"train-0": {**node_output, "public_ip": "203.0.113.5", "mounts": [output]}}
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
    assert mounts.expected(plan(), NODE) == (row("/efs", "nfs4", SOURCE, OPTIONS),)
    assert mounts.expected(plan(), replace(NODE, mounts=())) == (row("/efs", "nfs4", ""),)
    assert mounts.expected(plan({"efs": {"path": "/data"}}), NODE) == (row("/data", "nfs4", ""),)
    assert mounts.expected(plan({}), NODE) == ()
    assert mounts.expected(plan(simulated=True), NODE) == ()


def test_the_roles_are_given_what_was_made_and_is_wanted() -> None:
    without = replace(NODE, name="train-1", mounts=())
    efs = row("/efs", "nfs4", SOURCE, OPTIONS)
    assert mounts.variables(plan(), [without, NODE]) == {"gpuprov_mounts": {"here": [efs]}}
    # It goes from cluster.yaml, or was never made: the role still runs, to take away what it once mounted.
    assert mounts.variables(plan({}), [NODE]) == {"gpuprov_mounts": {"here": []}}
    assert mounts.variables(plan(), [without]) == {"gpuprov_mounts": {"here": []}}
    assert mounts.variables(plan(simulated=True), [NODE]) == {}


LUSTRE = Mount(
    "lustre", "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com@tcp:/4gb3nbem", "/fsx", "noatime,flock,_netdev"
)
READ = Mount("s3", "my-data/sets/", "/data", "ro")
WRITE = Mount("s3", "my-results/", "/results", "rw")
ALL = {
    "fsx": {"capacity_gib": 2400},
    "s3": ({"bucket": "my-data", "prefix": "sets/", "path": "/data"},
           {"bucket": "my-results", "path": "/results", "write": True}),
}  # fmt: skip
BUCKET = {"shows_type": "fuse", "shows_source": "mountpoint-s3", "part": "mount_s3"}
EVERYBODY = "allow-delete,allow-overwrite,dir-mode=0777,file-mode=0666"


def test_lustre_and_buckets_are_mounted_as_their_clients_want_it() -> None:
    node = replace(NODE, mounts=(LUSTRE, READ, WRITE))
    expected = (
        row("/fsx", "lustre", LUSTRE.source, LUSTRE.options, shows_source="*@tcp:/4gb3nbem", part="lustre"),
        row("/data", "mount-s3", "s3://my-data/sets/", "_netdev,nosuid,nodev,allow-other,ro", access="ro", **BUCKET),
        row("/results", "mount-s3", "s3://my-results/", f"_netdev,nosuid,nodev,allow-other,rw,{EVERYBODY}", **BUCKET),
    )
    assert mounts.expected(plan(ALL), node) == expected
    assert mounts.variables(plan(ALL), [node]) == {"gpuprov_mounts": {"here": list(expected)}}
    assert [mount["source"] for mount in mounts.expected(plan(ALL), NODE)] == ["", "", ""]
    # What a bucket may be changed for goes by cluster.yaml, also where Terraform has not followed yet.
    (data,) = mounts.expected(plan({"s3": ({"bucket": "my-data", "path": "/data", "write": True},)}), node)
    assert (data["access"], data["options"].endswith(EVERYBODY)) == ("rw", True)


def test_a_node_on_an_older_lock_is_not_asked_for_what_it_can_t_mount() -> None:
    newest_plan = plan({**ALL, "efs": {}})
    stack = newest_plan.groups[0].stack
    older = stack.model_copy(
        update={"packages": tuple(p for p in stack.packages if p.part not in ("lustre", "mount_s3"))}
    )
    older_plan = replace(newest_plan, groups=(replace(newest_plan.groups[0], stack=older),))
    node = replace(NODE, mounts=(LUSTRE, EFS, READ, WRITE))
    assert [mount["path"] for mount in mounts.expected(newest_plan, node)] == ["/fsx", "/efs", "/data", "/results"]
    assert [mount["path"] for mount in mounts.expected(older_plan, node)] == ["/efs"]


def test_a_sandbox_installs_their_packages_and_mounts_nothing() -> None:
    node = replace(NODE, mounts=(LUSTRE, READ, WRITE))
    assert mounts.variables(plan(ALL, simulated=True), [node]) == {"gpuprov_mounts": {"here": []}}
    assert mounts.expected(plan(ALL, simulated=True), node) == ()


def test_another_file_system_at_the_same_path_is_a_reason_to_configure() -> None:
    other = replace(NODE, mounts=(replace(EFS, source="fs-1.efs.us-east-1.amazonaws.com:/"),))
    role_stamps = [stamps.desired(plan(), "train", mounts.variables(plan(), nodes)) for nodes in ([NODE], [other], [])]
    assert len({stamp_by_role["mounts"] for stamp_by_role in role_stamps}) == 3
    assert (
        len(
            {tuple(stamp for role, stamp in stamp_by_role.items() if role != "mounts") for stamp_by_role in role_stamps}
        )
        == 1
    )


HOLDERS = Ec2Module.data_resources


@pytest.mark.parametrize("address", ["aws_efs_file_system.shared[0]", "aws_fsx_lustre_file_system.scratch[0]"])
@pytest.mark.parametrize("action", ["delete", "replace"])
def test_no_plan_removes_a_file_system(action: str, address: str) -> None:
    mounts.refuse_loss([(f"module.site.{address}", "create")], "here", HOLDERS)
    mounts.refuse_loss([('module.site.aws_efs_mount_target.shared["us-east-1a"]', action)], "here", HOLDERS)
    with pytest.raises(ProviderError, match="would be removed with its data") as caught:
        mounts.refuse_loss([(f"module.site.{address}", action)], "here", HOLDERS)
    assert "put sites.*.storage back" in caught.value.hint


def test_a_mount_that_is_gone_is_mended_by_its_role_alone() -> None:
    from provisioner import catalog
    from provisioner.verify.bundle import Bundle, Output

    group = plan().groups[0]
    shared = mounts.expected(plan(), NODE)
    expectations = expect(group.machine, group.gpu, group.stack, group.spec, catalog.load(), shared=shared)
    assert "efs.mount" in (expectations.units or ())
    lock = drift.DesiredState({}, (), (), ("efs.mount",), group.stack.os)
    text = (
        "Id=efs.mount\nLoadState=loaded\nActiveState=failed\nSubState=failed\nUnitFileState=enabled\nResult=timeout\n"
    )
    differences = [d for d in drift.differences(Bundle({"units.txt": Output(text, 0)}), lock) if d.kind == "unit"]
    assert [d.message for d in differences] == ["efs.mount is failed"]
    assert drift.passes(differences) == [drift.Pass(frozenset({"mounts"}), "configure")]


@pytest.mark.parametrize(
    ("error", "is_reported"),
    [
        ("stat: cannot read file system information for '/data': Transport endpoint is not connected", True),
        ("stat: cannot read file system information for '/data': Permission denied", False),
        ("", False),
    ],
)
def test_a_bucket_whose_process_has_ended_is_mended_by_its_role_alone(error: str, is_reported: bool) -> None:
    from provisioner.verify.bundle import Bundle, Output

    bucket_plan = plan({"s3": ({"bucket": "my-data", "path": "/data"},)})
    lock = drift.DesiredState({}, (), (), ("data.mount",), bucket_plan.groups[0].stack.os)
    row = {"mounted": "mountpoint-s3 /data fuse ro", "serves": None,
           "answers": {"rc": int(bool(error)), "timed_out": False, "seconds": 0.1, "error": error}}  # fmt: skip
    state = (
        "Id=data.mount\nLoadState=loaded\nActiveState=active\nSubState=mounted\nUnitFileState=enabled\nResult=success\n"
    )
    bundle = Bundle({"units.txt": Output(state, 0), "shared.json": Output(json.dumps({"/data": row}), 0)})
    differences = [d for d in drift.differences(bundle, lock) if d.kind == "unit"]
    assert [d.message for d in differences] == (["the process that serves /data has ended"] if is_reported else [])
    assert not is_reported or drift.passes(differences) == [drift.Pass(frozenset({"mounts"}))]
