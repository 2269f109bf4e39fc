"""What a node's probe brought home against what the lock says: each difference is named, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from provisioner import catalog
from provisioner.configure import drift, playbook, stamps
from provisioner.configure.drift import DesiredState, Difference, differences
from provisioner.configure.inventory import group_variables
from provisioner.plan import roles
from provisioner.plan.models import Plan, PlannedGroup
from provisioner.plan.roles import health, interruption, node_exporter
from provisioner.plan.roles.interruption import digest
from provisioner.spec.models import ClusterSpec
from provisioner.stack.components import PARTS
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.expectations import HEALTH_TIMER, INTERRUPTION, expect
from provisioner.verify.parsers.stamp import RoleStamp
from provisioner.verify.request import drift_request
from provisioner.verify.tools import FILES
from tests.support.plans import cluster_spec, plan, planned_group

STAMPS = {"base": RoleStamp("b0", "b1", "b1"), "nccl": RoleStamp("n0", "n1", "n1")}
EARLIER = '{"fingerprint": "0123456789abcdef0123456789abcdef", "node": "train-0"}\n'
"""What playbooks/site.yml left on a node before it recorded each role."""
KERNEL = "6.8.0-1024-aws"
APT = 'APT::Periodic::Unattended-Upgrade "1";\nUnattended-Upgrade::Package-Blacklist:: "^(nvidia|lib|cuda)";\n'


@pytest.fixture(scope="module")
def group() -> PlannedGroup:
    return planned_group("p4d.24xlarge")


@pytest.fixture(scope="module")
def lock(group: PlannedGroup) -> DesiredState:
    units = ("docker.service", "nvidia-fabricmanager.service")
    return DesiredState(STAMPS, group.stack.packages, group.stack.images, units, group.stack.os)


def node(lock: DesiredState, **changed: str | Output | None) -> Bundle:
    """The bundle of a node that is what the lock says; `packages_txt="…"` replaces a file, None leaves it out."""
    images = [
        {"Id": f"sha256:{n}", "RepoTags": [i.reference], "RepoDigests": [i.pull]} for n, i in enumerate(lock.images)
    ]
    texts: dict[str, Any] = {
        "stamp.json": json.dumps({"roles": {role: stamp.to_json() for role, stamp in STAMPS.items()}}),
        "packages.txt": "".join(f"{p.name}\t{p.version}\thi \n" for p in lock.packages)
        + f"linux-image-{KERNEL}\t6.8.0-1024.26\tii \n",
        "holds.txt": "".join(f"{p.name}\n" for p in lock.packages),
        "units.txt": "\n".join(unit(name) for name in lock.units),
        "container-images.json": "\n".join(map(json.dumps, images)),
        "kernel.txt": KERNEL + "\n",
        "os-release.txt": 'ID=ubuntu\nVERSION_ID="24.04"\n',
        "reboot.txt": "",
        "unattended.txt": APT,
    }
    texts |= {key.replace("_txt", ".txt").replace("_json", ".json").replace("_", "-"): v for key, v in changed.items()}
    files = {
        name: Output(text, rc=0) if isinstance(text, str) else text for name, text in texts.items() if text is not None
    }
    return Bundle(files=files)


def unit(name: str, **changed: str) -> str:
    values = {"Id": name, "LoadState": "loaded", "ActiveState": "active", "SubState": "running",
              "UnitFileState": "enabled", "Result": "success", **changed}  # fmt: skip
    return "".join(f"{key}={value}\n" for key, value in values.items())


def messages_of(rows: tuple[Difference, ...]) -> list[str]:
    return [f"{d.kind}: {d.message}" for d in rows]


def test_a_node_as_locked_has_no_difference(lock: DesiredState) -> None:
    assert differences(node(lock), lock) == ()


def test_never_configured(lock: DesiredState) -> None:
    assert messages_of(differences(node(lock, stamp_json=""), lock)) == ["stamp: not configured yet"]


def runs(rows: Sequence[Difference]) -> Collection[str]:
    """The roles that run for these differences; all of them where there is none."""
    return frozenset().union(*(drift_pass.roles for drift_pass in drift.passes(rows)))


def test_a_node_of_an_earlier_gpuprov_runs_all_roles_once(lock: DesiredState) -> None:
    (difference_row,) = differences(node(lock, stamp_json=EARLIER), lock)
    assert (difference_row.kind, difference_row.message) == ("stamp", "configured by an earlier gpuprov")
    assert difference_row.mended
    assert runs([difference_row, *differences(node(lock, holds_txt=""), lock)]) == frozenset()


ROLE = {"digest": "n0", "installed": "n1", "configured": "n1"}


@pytest.mark.parametrize(
    ("nccl", "message"),
    [
        (ROLE, None),
        (ROLE | {"digest": "x"}, "role nccl has changed since it ran"),
        (ROLE | {"configured": "x"}, "role nccl ran with other variables"),
        (ROLE | {"installed": "an image's"}, None),
        (ROLE | {"configured": None}, "role nccl is installed and not configured yet"),
        (None, "role nccl has not run yet"),
    ],
)
def test_a_role_that_differs_runs_alone(lock: DesiredState, nccl: dict[str, str] | None, message: str | None) -> None:
    recorded_roles = {"base": STAMPS["base"].to_json(), "gone": ROLE} | ({"nccl": nccl} if nccl else {})
    actual = differences(node(lock, stamp_json=json.dumps({"node": "train-0", "roles": recorded_roles})), lock)
    assert messages_of(actual) == ([f"stamp: {message}"] if message else [])
    assert runs(actual) == ({"nccl"} if message else set())


def test_a_stamp_alone_proves_nothing(lock: DesiredState) -> None:
    bare = node(lock, packages_txt=f"linux-image-{KERNEL}\t6.8\tii \n", holds_txt="")
    assert [d.kind for d in differences(bare, lock)] == ["package"] * len(lock.packages)


def test_a_package_that_moved_is_named_with_both_versions(lock: DesiredState) -> None:
    first = lock.packages[0]
    moved = node(lock)
    text = moved.files["packages.txt"].text.replace(f"{first.name}\t{first.version}\t", f"{first.name}\t1.0-1\t", 1)
    (difference_row,) = differences(node(lock, packages_txt=text), lock)
    assert difference_row.to_json() == {
        "kind": "package",
        "subject": first.name,
        "wanted": first.version,
        "found": "1.0-1",
        "message": f"{first.name} is 1.0-1, locked {first.version}",
    }
    assert difference_row.role == roles.of_part(first.part)


@pytest.mark.parametrize(
    ("state", "state_text"),
    [("hF", "half-configured"), ("hH", "half-installed"), ("iU", "unpacked"), ("iHR", "half-inst")],
)
def test_a_package_half_installed(lock: DesiredState, state: str, state_text: str) -> None:
    first = lock.packages[0]
    text = node(lock).files["packages.txt"].text.replace(f"{first.version}\thi ", f"{first.version}\t{state} ", 1)
    (difference_row,) = differences(node(lock, packages_txt=text), lock)
    assert difference_row.found is not None
    assert state_text in difference_row.found


def test_a_package_that_was_removed_and_left_its_configuration(lock: DesiredState) -> None:
    first = lock.packages[0]
    text = node(lock).files["packages.txt"].text.replace(f"{first.version}\thi ", f"{first.version}\trc ", 1)
    (difference_row,) = differences(node(lock, packages_txt=text), lock)
    assert (difference_row.found, difference_row.message) == (
        None,
        f"{first.name} is not installed, locked {first.version}",
    )


def test_a_hold_that_is_gone(lock: DesiredState) -> None:
    names = [p.name for p in lock.packages]
    (difference_row,) = differences(node(lock, holds_txt="\n".join(names[1:])), lock)
    assert (difference_row.kind, difference_row.subject, difference_row.role) == (
        "hold",
        names[0],
        roles.of_part(lock.packages[0].part),
    )


def test_what_is_not_from_a_repository_of_ours_is_not_held(lock: DesiredState) -> None:
    loose = replace(lock, packages=(lock.packages[0].model_copy(update={"repository": None}),))
    assert differences(node(loose, holds_txt=""), loose) == ()


@pytest.mark.parametrize(
    ("changed", "state_text"),
    [
        ({"ActiveState": "inactive", "SubState": "dead"}, "inactive"),
        ({"ActiveState": "failed", "Result": "exit-code"}, "failed"),
        ({"UnitFileState": "disabled"}, "active, but disabled at boot"),
        ({"UnitFileState": ""}, "active, but unknown at boot"),
        ({"LoadState": "masked", "ActiveState": "inactive", "UnitFileState": "masked"}, "masked"),
        ({"LoadState": "not-found", "ActiveState": "inactive", "UnitFileState": ""}, "not-found"),
        ({"Id": "other.service"}, "unknown"),
    ],
)
def test_a_service_that_does_not_run(lock: DesiredState, changed: dict[str, str], state_text: str) -> None:
    text = unit("docker.service") + "\n" + unit("nvidia-fabricmanager.service", **changed)
    (difference_row,) = differences(node(lock, units_txt=text), lock)
    assert (difference_row.kind, difference_row.message) == ("unit", f"nvidia-fabricmanager.service is {state_text}")
    assert difference_row.role == "nvidia_driver"
    assert runs([difference_row]) == {"nvidia_driver"}


@pytest.mark.parametrize("state", ["static", "alias", "enabled-runtime", "indirect"])
def test_a_service_that_starts_at_boot_by_another_name(lock: DesiredState, state: str) -> None:
    text = "\n".join(unit(name, UnitFileState=state) for name in lock.units)
    assert differences(node(lock, units_txt=text), lock) == ()


def test_an_image_of_another_digest(lock: DesiredState) -> None:
    image = lock.images[0]
    other = {"Id": "sha256:9", "RepoTags": [image.reference], "RepoDigests": [f"mirror/x@sha256:{'f' * 64}"]}
    (difference_row,) = differences(node(lock, container_images_json=json.dumps(other)), lock)
    assert (difference_row.kind, difference_row.wanted, difference_row.found) == (
        "image",
        image.digest,
        f"sha256:{'f' * 64}",
    )


def test_an_image_that_is_there_under_another_name_only(lock: DesiredState) -> None:
    nameless = {"Id": "sha256:9", "RepoTags": [], "RepoDigests": [lock.images[0].pull]}
    (difference_row,) = differences(node(lock, container_images_json=json.dumps(nameless)), lock)
    assert difference_row.message.startswith(f"{lock.images[0].reference} is missing")


def test_an_image_that_is_named_by_its_digest(lock: DesiredState) -> None:
    image = lock.images[0].model_copy(update={"reference": f"mirror/x@{lock.images[0].digest}"})
    with_digest = replace(lock, images=(image,))
    image_row = {"Id": "sha256:9", "RepoTags": [], "RepoDigests": [f"mirror/x@{image.digest}"]}
    assert differences(node(with_digest, container_images_json=json.dumps(image_row)), with_digest) == ()


def test_unattended_upgrades_that_may_move_the_driver(lock: DesiredState) -> None:
    free = 'APT::Periodic::Unattended-Upgrade "1";\n'
    (difference_row,) = differences(node(lock, unattended_txt=free), lock)
    assert difference_row.kind == "updates"
    assert differences(node(lock, unattended_txt='APT::Periodic::Unattended-Upgrade "0";\n'), lock) == ()
    assert differences(node(lock, unattended_txt='APT::Architecture "amd64";\n'), lock) == ()


def test_another_kernel_than_is_locked(lock: DesiredState) -> None:
    (difference_row,) = differences(node(lock), replace(lock, kernel="6.8.0-1030-aws"))
    assert (difference_row.kind, difference_row.wanted, difference_row.found, difference_row.reboots) == (
        "kernel",
        "6.8.0-1030-aws",
        KERNEL,
        True,
    )


@pytest.mark.parametrize(
    ("series", "same"),
    [("6.8", True), ("6.8.0", True), ("6", True), ("6.80", False), ("6.8.0-10", False), ("5.15", False)],
)
def test_a_series_names_all_of_its_kernels(lock: DesiredState, series: str, same: bool) -> None:
    assert (differences(node(lock), replace(lock, kernel=series)) == ()) is same


def test_another_distribution_is_told_and_no_role_mends_it(lock: DesiredState) -> None:
    (difference_row,) = differences(node(lock, os_release_txt='ID=debian\nVERSION_ID="12"\n'), lock)
    assert (difference_row.kind, difference_row.wanted, difference_row.found, difference_row.mended) == (
        "system",
        "ubuntu-24.04",
        "debian-12",
        False,
    )
    assert difference_row.message == "debian-12 runs, the lock is for ubuntu-24.04"


def test_a_kernel_that_waits_for_a_reboot_is_told_and_not_mended(lock: DesiredState) -> None:
    text = node(lock).files["packages.txt"].text + "linux-image-6.8.0-1030-aws\t6.8.0-1030.32\tii \n"
    (difference_row,) = differences(node(lock, packages_txt=text), lock)
    assert (difference_row.kind, difference_row.subject, difference_row.found, difference_row.mended) == (
        "reboot",
        "kernel",
        "6.8.0-1030-aws",
        False,
    )


def test_an_older_kernel_beside_the_running_one_is_nothing(lock: DesiredState) -> None:
    text = node(lock).files["packages.txt"].text + "linux-image-6.8.0-999-aws\t1\tii \nlinux-image-aws\t1\tii \n"
    assert differences(node(lock, packages_txt=text), lock) == ()


def test_a_reboot_that_a_package_asks_for(lock: DesiredState) -> None:
    text = "*** System restart required ***\nlibc6\nlinux-base\n"
    (difference_row,) = differences(node(lock, reboot_txt=text), lock)
    assert (difference_row.kind, difference_row.found, difference_row.mended) == ("reboot", "libc6, linux-base", False)


def test_a_node_that_could_not_be_asked(lock: DesiredState) -> None:
    (difference_row,) = differences(Bundle(error="no answer within 20 s"), lock)
    assert (difference_row.kind, difference_row.mended) == ("unknown", True)


FILE_NAMES = (
    "stamp.json",
    "packages.txt",
    "holds.txt",
    "units.txt",
    "container-images.json",
    "kernel.txt",
    "os-release.txt",
    "reboot.txt",
)


@pytest.mark.parametrize("how", [None, "hung", "missing", "nonsense", "cut"])
@pytest.mark.parametrize("name", [*FILE_NAMES, "unattended.txt"])
def test_what_could_not_be_read_is_unknown_never_fine(lock: DesiredState, name: str, how: str | None) -> None:
    """Every file that drift is told by, in every way in which it can be lost."""
    broken = {
        None: None,
        "hung": Output("", timed_out=True),
        "missing": Output("", missing=True),
        "nonsense": "\x00\x01 ??? {",
        "cut": Output(APT, rc=0, truncated=True),
    }[how]
    actual = differences(node(lock, **{name.replace("-", "_").replace(".", "_"): broken}), lock)
    if name == "unattended.txt" and how == "missing":
        assert actual == ()  # without apt nothing moves a package
    elif name == "reboot.txt" and how == "nonsense":
        assert [d.kind for d in actual] == ["reboot"]
    else:
        assert any(d.kind == "unknown" and d.subject == name for d in actual), messages_of(actual)


def test_everything_that_drift_reads_is_asked_for(group: PlannedGroup) -> None:
    expected = expect(group.machine, group.gpu, group.stack, group.spec, catalog.load())
    request = drift_request(expected)
    assert set(request.files) == {*FILE_NAMES, "unattended.txt"}
    assert set(request.files) <= set(FILES)
    assert "nvidia-fabricmanager.service" in request.units
    assert request.deadline < 60


TIMER = "gpuprov-health.timer"


@pytest.mark.parametrize(
    ("changed", "unit_state"),
    [
        ({"ActiveState": "inactive"}, "inactive"),
        ({"LoadState": "masked", "ActiveState": "inactive", "UnitFileState": "masked"}, "masked"),
        ({"UnitFileState": "disabled"}, "active, but disabled at boot"),
        ({}, None),
    ],
)
def test_a_health_timer_that_was_stopped_is_drift_for_its_role_alone(
    changed: dict[str, str], unit_state: str | None
) -> None:
    on = plan(cluster_spec("p4d.24xlarge", monitoring={"health_check": {"every": "5m"}}))
    lock = drift.desired_state(on, on.groups[0], STAMPS, ("docker.service",))
    assert lock.units == ("docker.service", TIMER)
    units = "\n".join([unit("docker.service"), unit(TIMER, **changed)])
    actual = differences(node(lock, units_txt=units), lock)
    assert [(d.kind, d.subject, d.found) for d in actual] == ([("unit", TIMER, unit_state)] if unit_state else [])
    assert runs(actual) == ({"health"} if unit_state else set())


def test_without_a_health_check_no_timer_is_asked_for() -> None:
    off = plan(cluster_spec("p4d.24xlarge"))
    assert drift.desired_state(off, off.groups[0], STAMPS, ()).units == ()


def test_a_node_exporter_that_was_stopped_is_drift_for_its_role_alone() -> None:
    on = plan(cluster_spec("p4d.24xlarge", monitoring={"node_exporter": True}))
    lock = drift.desired_state(on, on.groups[0], STAMPS, ())
    assert lock.units == (node_exporter.UNIT,)
    stopped = differences(node(lock, units_txt=unit(node_exporter.UNIT, ActiveState="inactive")), lock)
    assert [(d.kind, d.subject, d.found) for d in stopped] == [("unit", node_exporter.UNIT, "inactive")]
    assert runs(stopped) == {"node_exporter"}


def test_the_timer_is_asked_for_and_condemns_nobody(group: PlannedGroup) -> None:
    expected = expect(
        group.machine, group.gpu, group.stack, group.spec, catalog.load(), monitoring_units=(HEALTH_TIMER,)
    )
    assert HEALTH_TIMER == TIMER
    assert TIMER in drift_request(expected).units
    assert TIMER not in (expected.units or ())


def spot(command: str | None) -> Plan:
    keys = {"hooks": {"interrupted": command}} if command is not None else {}
    spec = cluster_spec("p4d.24xlarge", **keys).model_dump(mode="json")
    spec["groups"]["train"]["capacity"] = {"kind": "spot"}
    return plan(ClusterSpec.model_validate_json(json.dumps(spec)))


@pytest.mark.parametrize(("on_the_node", "desired"), [("a", "a"), (None, None), ("a", "b"), (None, "b"), ("a", None)])
def test_another_hook_is_drift_for_its_role_alone(on_the_node: str | None, desired: str | None) -> None:
    previous, current = spot(on_the_node), spot(desired)
    assert stamps.desired(previous, "train", {}) == stamps.desired(current, "train", {})
    lock = drift.desired_state(current, current.groups[0], STAMPS, (INTERRUPTION,))
    record = json.dumps({"record": None, "hook": digest(previous)})
    actual = differences(node(lock, interruption_json=record), lock)
    right = on_the_node == desired
    assert [(d.kind, d.subject) for d in actual] == ([] if right else [("hook", "hooks.interrupted")])
    assert runs(actual) == (set() if right else {"interruption"})
    lost = differences(node(lock, interruption_json=None), lock)
    assert [(d.kind, d.subject) for d in lost] == [("unknown", "interruption.json")]


def test_where_no_machine_is_taken_away_no_hook_is_asked_for() -> None:
    ours = plan(cluster_spec("p4d.24xlarge", hooks={"interrupted": "true"}))
    assert group_variables("train", ours)["gpuprov_interruption"] is None
    lock = drift.desired_state(ours, ours.groups[0], STAMPS, ("docker.service",))
    assert differences(node(lock), lock) == ()
    without, on_spot = stamps.desired(ours, "train", {}), stamps.desired(spot("true"), "train", {})
    assert on_spot.keys() - without.keys() == {"interruption"}
    assert without["base"] != on_spot["base"]  # it stops the service where there is none to be


def difference(role: str | None, *, mended: bool = True) -> Difference:
    return Difference("package", "x", None, None, "x", role, mended)


def test_roles_are_picked_where_one_answers_for_all_of_it() -> None:
    assert runs([difference("nccl"), difference("cuda")]) == {"nccl", "cuda"}
    assert runs([difference("nccl"), difference(None, mended=False)]) == {"nccl"}


@pytest.mark.parametrize(
    "parts", [["nvidia_driver"], [None], ["nccl", None], ["nccl", "nvidia_driver"], ["no-such-role"], []]
)
def test_else_all_roles_run(parts: list[str | None]) -> None:
    assert runs([difference(part) for part in parts]) == frozenset()


def test_fabric_manager_that_nothing_needs_is_no_difference(lock: DesiredState) -> None:
    """A virtual machine with GPUs of an NVSwitch board, whose host keeps the switches."""
    stopped = "\n".join([unit("docker.service"), unit("nvidia-fabricmanager.service", ActiveState="inactive")])
    with_switch_units = replace(lock, switch_units=("nvidia-fabricmanager.service",))
    bus = "0000:00:00.0 Host bridge [0600]: Intel Corporation 440FX [8086:1237]\n"
    switch = "0000:05:01.0 Bridge [0680]: NVIDIA Corporation GA100 [A100 NVSwitch] [10de:1af1] (rev a1)\n"
    for state, lspci, expected_count in (
        (lock, bus, 1),
        (with_switch_units, bus, 0),
        (with_switch_units, bus + switch, 1),
        (with_switch_units, None, 1),
    ):
        actual = differences(node(state, units_txt=stopped, lspci_txt=lspci), state)
        assert [row.kind for row in actual] == ["unit"] * expected_count
    for machine, is_requested in (("ecs.gn7-c13g1.26xlarge", True), ("p4d.24xlarge", False)):
        group = planned_group(machine)
        want = expect(group.machine, group.gpu, group.stack, group.spec, catalog.load())
        assert ("lspci.txt" in drift_request(want).files) == is_requested


def test_every_part_and_unit_has_a_role_that_answers_for_it(group: PlannedGroup) -> None:
    """What has none costs a whole run each time."""
    expected = expect(group.machine, group.gpu, group.stack, group.spec, catalog.load())
    assert {part for part in PARTS if roles.of_part(part) is None} == set()
    assert {unit for unit in expected.units or () if roles.of_unit(unit) is None} == set()
    assert {*roles.registry()} == {*playbook.load().roles}


def test_the_checks_of_a_node_know_the_same_units() -> None:
    """They run on the node, where the roles' modules are not."""
    assert (HEALTH_TIMER, INTERRUPTION) == (health.TIMER, interruption.UNIT)


def test_each_part_and_unit_has_one_role() -> None:
    rows = roles.registry().values()
    units = [unit for row in rows for unit in row.units]
    assert len(units) == len(set(units))
    owned = [part for name, row in roles.registry().items() if name != "health" for part in row.parts]
    assert len(owned) == len(set(owned))
