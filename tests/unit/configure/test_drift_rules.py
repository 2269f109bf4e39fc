"""Differences in detail: what makes a node reboot, what configuring alone mends, and what is no difference."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from provisioner.configure import drift
from provisioner.configure.drift import DesiredState, Difference, differences
from provisioner.plan import roles
from provisioner.plan.models import PlannedGroup
from provisioner.verify.expectations import INTERRUPTION
from tests.support.plans import cluster_spec, plan
from tests.unit.configure.test_drift import KERNEL, STAMPS, group, lock, node, spot, unit

__all__ = ["group", "lock"]


def test_a_terminal_is_not_commanded_by_what_a_node_says() -> None:
    actual = Difference("unit", "a\x1b[2J", "b\x07", None, "c\x9b", "nccl")
    assert (actual.subject, actual.wanted, actual.found, actual.message) == ("a\\x1b[2J", "b\\x07", None, "c\\x9b")


@pytest.mark.parametrize("part", ["driver", "nccl"])
def test_a_package_of_the_driver_reboots_the_node_and_no_other_does(lock: DesiredState, part: str) -> None:
    first = next(package for package in lock.packages if package.part == part)
    text = (
        node(lock).files["packages.txt"].text.replace(f"\n{first.name}\t{first.version}\t", f"\n{first.name}\t1\t", 1)
    )
    text = text.replace(f"{first.name}\t{first.version}\t", f"{first.name}\t1\t", 1)
    actual = differences(node(lock, packages_txt=text), lock)
    assert [(d.subject, d.reboots, d.configures) for d in actual if d.kind == "package"] == [
        (first.name, part == "driver", False)
    ]


@pytest.mark.parametrize("simulated", [True, False])
def test_the_kernel_of_the_lock_is_not_asked_of_a_simulated_node(group: PlannedGroup, simulated: bool) -> None:
    spec = plan(cluster_spec("p4d.24xlarge"))
    locked = replace(group, stack=group.stack.model_copy(update={"kernel": "6.8"}))
    state = drift.desired_state(replace(spec, simulated=simulated), locked, STAMPS, ())
    assert state.kernel == (None if simulated else "6.8")


@pytest.mark.parametrize(
    ("nccl", "configures"),
    [
        ({"configured": None}, True),
        ({"configured": "x"}, True),
        ({"configured": None, "installed": "an image's"}, False),
        ({"configured": "x", "installed": "an image's"}, False),
        ({"digest": "x"}, False),
    ],
)
def test_a_role_whose_installation_is_as_locked_is_only_configured(
    lock: DesiredState, nccl: dict[str, str | None], configures: bool
) -> None:
    stamps = {role: stamp.to_json() for role, stamp in STAMPS.items()}
    stamps["nccl"] |= nccl
    (actual,) = differences(node(lock, stamp_json=json.dumps({"roles": stamps})), lock)
    assert (actual.kind, actual.role, actual.configures) == ("stamp", "nccl", configures)


@pytest.mark.parametrize(
    ("name", "changed", "configures"),
    [
        ("nvidia-fabricmanager.service", {"ActiveState": "inactive"}, True),
        ("nvidia-fabricmanager.service", {"LoadState": "not-found"}, False),
        ("nvidia-fabricmanager.service", {"Id": "other.service"}, False),
        ("nobodys.service", {"ActiveState": "inactive"}, False),
    ],
)
def test_a_loaded_unit_of_a_role_is_mended_by_configuring_it(
    lock: DesiredState, name: str, changed: dict[str, str], configures: bool
) -> None:
    desired = replace(lock, units=(name,))
    (actual,) = differences(node(desired, units_txt=unit(name, **changed)), desired)
    assert (actual.kind, actual.role, actual.configures) == ("unit", roles.of_unit(name), configures)


def test_what_the_lock_does_not_have_need_not_be_readable(lock: DesiredState) -> None:
    """No unit, no image and no driver is locked: a node where they cannot be read has no difference."""
    bare = replace(lock, packages=(), images=(), units=())
    assert differences(node(bare, units_txt=None, container_images_json=None, unattended_txt=None), bare) == ()


def test_file_systems_are_read_only_where_one_is_to_be_mounted(lock: DesiredState) -> None:
    assert differences(node(lock, shared_json=None), lock) == ()
    mounted = replace(lock, units=("efs.mount", "docker.service"))
    actual = differences(node(mounted, shared_json=None), mounted)
    assert [(d.kind, d.subject) for d in actual] == [("unknown", "shared.json")]


def test_a_kernel_that_cannot_be_read_is_compared_with_nothing(lock: DesiredState) -> None:
    actual = differences(node(lock, kernel_txt=None), replace(lock, kernel="6.8"))
    assert [(d.kind, d.subject) for d in actual] == [("unknown", "kernel.txt")]


def test_a_kernel_that_no_package_installed_waits_for_no_reboot(lock: DesiredState) -> None:
    assert differences(node(lock, kernel_txt="6.5.0-custom\n"), lock) == ()


def test_a_reboot_that_is_waited_for_is_a_reboot(lock: DesiredState) -> None:
    text = node(lock).files["packages.txt"].text + "linux-image-6.8.0-1030-aws\t6.8.0-1030.32\tii \n"
    actual = differences(node(lock, packages_txt=text, reboot_txt="*** required ***\nlibc6\n"), lock)
    assert [(d.kind, d.subject, d.wanted, d.found, d.reboots, d.mended) for d in actual] == [
        ("reboot", "kernel", KERNEL, "6.8.0-1030-aws", True, False),
        ("reboot", "system", None, "libc6", True, False),
    ]


@pytest.mark.parametrize(
    ("on_the_node", "desired", "message"),
    [
        ("a", "b", "hooks.interrupted on the node differs from cluster.yaml"),
        (None, "b", "hooks.interrupted is missing on the node"),
        ("a", None, "a hook is on the node, but cluster.yaml has no hooks.interrupted"),
    ],
)
def test_a_hook_that_differs_is_named_with_both_digests(
    lock: DesiredState, on_the_node: str | None, desired: str | None, message: str
) -> None:
    locked = spot(desired)
    state = drift.desired_state(locked, locked.groups[0], STAMPS, (INTERRUPTION,))
    node_digest = drift.digest(spot(on_the_node))
    record = json.dumps({"record": None, "hook": node_digest})
    actual = next(d for d in differences(node(state, interruption_json=record), state) if d.kind == "hook")
    assert (actual.message, actual.wanted, actual.found) == (message, drift.digest(locked) or None, node_digest or None)
