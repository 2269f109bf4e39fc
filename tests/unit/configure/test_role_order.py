"""The order of the roles: each pair that must not be turned round, and why."""

from __future__ import annotations

import pytest
import yaml

from tests.support.sandbox_cluster import ROOT

ORDER = {
    ("base", "nvidia_driver"): "DKMS wants the kernel's headers and a compiler, apt the lock's repositories",
    ("base", "efa"): "the same",
    ("base", "gpudirect"): "the same",
    ("base", "rocm"): "the same",
    ("nvidia_driver", "cuda"): "libcuda is the driver's",
    ("nvidia_driver", "gpudirect"): "its modules stand on the driver's",
    ("nvidia_driver", "mig"): "MIG is the driver's",
    ("nvidia_driver", "container_runtime"): "the description of the GPUs names the driver's libraries",
    ("nvidia_driver", "dcgm_exporter"): "DCGM opens the GPUs when it starts",
    ("infiniband", "nccl"): "nccl.conf names the devices and ports that are active, which the network's driver brings",
    ("efa", "nccl"): "the same",
    ("infiniband", "gpudirect"): "nvidia-peermem binds to the RDMA stack that is there when it is loaded",
    ("efa", "mounts"): "Lustre takes EFA's devices when its module is loaded",
    ("infiniband", "mounts"): "Lustre's and NFS's modules for RDMA are those of the network's driver",
    ("mig", "container_runtime"): "the description of the GPUs has their slices",
    ("mig", "dcgm_exporter"): "DCGM lists the slices that are there when it starts",
    ("container_runtime", "pytorch_images"): "docker pulls them",
    ("nccl", "pytorch_images"): "containers get nccl.conf",
    ("efa", "pytorch_images"): "containers get AWS's libfabric and NCCL plugin",
}


def roles() -> list[str]:
    tasks = yaml.safe_load((ROOT / "ansible/playbooks/site.yml").read_text(encoding="utf-8"))[0]["tasks"]
    return [task["ansible.builtin.import_role"]["name"] for task in tasks if "ansible.builtin.import_role" in task]


@pytest.mark.parametrize(("first", "then"), list(ORDER))
def test_a_role_comes_before_what_stands_on_it(first: str, then: str) -> None:
    order = roles()
    assert order.index(first) < order.index(then), ORDER[first, then]


def test_base_is_first_and_nothing_comes_twice() -> None:
    assert roles()[0] == "base"
    assert len(set(roles())) == len(roles())
