"""cluster.yaml + cluster.lock + catalogue → what is to be made."""

from __future__ import annotations

import pytest

from provisioner import catalog
from provisioner.common.errors import GpuprovError
from provisioner.plan.models import build_plan
from provisioner.spec.models import ClusterSpec
from provisioner.stack.models import Lock
from tests.support import plans

SPEC = ClusterSpec.model_validate(
    {
        "name": "vision",
        "sites": {
            "here": {"provider": "aws", "region": "us-east-1"},
            "there": {"provider": "aws", "region": "us-west-2"},
        },
        "groups": {
            "train": {"machine": "p4d.24xlarge", "count": 2, "site": "here"},
            "infer": {"machine": "g5.xlarge", "count": 1, "site": "there"},
        },
    }
)
STACK = plans.plan(plans.cluster_spec("p4d.24xlarge")).groups[0].stack
LOCK = Lock(request={}, simulated=True, groups={"train": STACK, "infer": STACK.model_copy(update={"nccl": "2.0"})})


def test_a_group_is_the_files_the_catalogues_and_the_locks() -> None:
    plan = build_plan(SPEC, LOCK)
    assert [name for name, _ in plan.nodes()] == ["train-0", "train-1", "infer-0"]
    assert [(g.name, g.site, g.machine.name, g.gpu.model) for g in plan.groups] == [
        ("train", "here", "p4d.24xlarge", catalog.load().machine("p4d.24xlarge").gpu_model),
        ("infer", "there", "g5.xlarge", catalog.load().machine("g5.xlarge").gpu_model),
    ]
    assert [g.stack.nccl for g in plan.groups] == [STACK.nccl, "2.0"]
    assert plan.simulated
    assert plan.beside == ()


def test_the_stacks_of_other_locks_stand_beside() -> None:
    older = Lock(request={}, simulated=True, groups={"train": STACK.model_copy(update={"nccl": "1.0"})})
    assert [stack.nccl for stack in build_plan(SPEC, LOCK, beside=[older]).beside] == ["1.0"]


def test_a_group_that_the_lock_lacks_is_refused_or_left_out() -> None:
    older = Lock(request={}, simulated=True, groups={"train": STACK})
    with pytest.raises(GpuprovError, match=r"cluster\.lock has no group infer") as caught:
        build_plan(SPEC, older)
    assert "gpuprov lock" in caught.value.hint
    plan = build_plan(SPEC, older, partly=True)
    assert [group.name for group in plan.groups] == ["train"]
    with pytest.raises(GpuprovError, match="no group infer"):
        plan.group("infer")
