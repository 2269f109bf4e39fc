"""What a node carries of each role: digests that change with the role and with what it uses, and with nothing else."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.common import paths
from provisioner.configure import playbook, stamps
from provisioner.configure.inventory import group_variables
from provisioner.plan import roles
from provisioner.plan.models import Plan
from provisioner.stack.models import Stack
from tests.support import plans

ANSIBLE = Path(__file__).parents[3] / "ansible"


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Makes a copy of ansible/ and has gpuprov read it from there; gives its folder."""
    real_data, folders = paths.data, [ANSIBLE]
    monkeypatch.setattr(paths, "data", lambda name: folders[-1] if name == "ansible" else real_data(name))

    def copy() -> Path:
        folders.append(Path(shutil.copytree(folders[-1], tmp_path / f"ansible-{len(folders)}")))
        return folders[-1]

    yield copy


def desired_stamps(plan: Plan) -> dict[str, Any]:
    return stamps.desired(plan, "train", {})


def changed(previous: dict[str, Any], after: dict[str, Any]) -> set[str]:
    assert previous.keys() == after.keys()
    return {role for role in previous if previous[role] != after[role]}


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plans.plan(plans.cluster_spec("p4d.24xlarge", monitoring={"health_check": {"every": "5m"}}))


@pytest.mark.parametrize(
    ("file", "old", "new", "roles_changed"),
    [
        ("roles/nccl/tasks/configure.yml", "Write NCCL's", "Write the", {"nccl"}),
        ("roles/nccl/defaults/main.yml", "1200", "1201", {"nccl"}),
        ("roles/nccl/defaults/main.yml", "# Seconds", "# Some seconds", set()),
        ("roles/nccl/README.md", "NCCL", "nccl", set()),
        ("roles/mig/files/gpuprov_mig.py", "import sys", "import sys  # all of it", {"mig"}),
        ("plugins/modules/nccl_conf.py", "def main", "def  main", {"nccl"}),
        ("plugins/module_utils/gpuprov_rdma.py", "import os", "import os ", {"nccl"}),
        ("roles/pytorch_images/library/locked_images.py", "import os", "import os ", {"pytorch_images"}),
        ("playbooks/site.yml", "    - name: Install NCCL", "    # faster\n    - name: Install  NCCL", {"nccl"}),
        ("playbooks/site.yml", "# Brings every", "# Now brings every", set()),
        ("playbooks/site.yml", "Record the roles", "Write down the roles", set()),
    ],
)
def test_a_change_concerns_the_roles_that_use_it(
    copies: Any, plan: Plan, file: str, old: str, new: str, roles_changed: set[str]
) -> None:
    previous = desired_stamps(plan)
    path = copies() / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert changed(previous, desired_stamps(plan)) == roles_changed


def test_a_module_of_several_roles_concerns_each_of_them(copies: Any, plan: Plan) -> None:
    previous = desired_stamps(plan)
    path = copies() / "plugins/modules/locked_packages.py"
    path.write_text(path.read_text() + "\n# more\n")
    using = {
        role for role in previous
        if "locked_packages" in (ANSIBLE / "roles" / role / "tasks" / "install.yml").read_text()
    }  # fmt: skip
    assert {"base", "nvidia_driver", "nccl"} < using < previous.keys()
    assert changed(previous, desired_stamps(plan)) == using


def test_what_concerns_the_whole_play_concerns_all_roles(copies: Any, plan: Plan) -> None:
    previous = desired_stamps(plan)
    path = copies() / "playbooks/site.yml"
    path.write_text(path.read_text().replace("become: true", "become: true\n  become_method: su"))
    assert changed(previous, desired_stamps(plan)) == set(previous)


def with_stack(plan: Plan, **changes: Any) -> Plan:
    from dataclasses import replace

    group = plan.group("train")
    return replace(plan, groups=(replace(group, stack=group.stack.model_copy(update=changes)),))


def moved(stack: Stack, part: str) -> Any:
    """The packages with those of one part at another version."""
    return tuple(p.model_copy(update={"version": "9.9-1"}) if p.part == part else p for p in stack.packages)


@pytest.mark.parametrize(("part", "role"), [("nccl", "nccl"), ("cuda", "cuda"), ("dcgm", "dcgm_exporter")])
def test_another_version_concerns_the_role_that_installs_it(part: str, role: str) -> None:
    plan = plans.plan(plans.cluster_spec("p4d.24xlarge"))
    after = with_stack(plan, packages=moved(plan.group("train").stack, part))
    assert changed(desired_stamps(plan), desired_stamps(after)) == {role}


def test_a_package_less_concerns_the_role_that_removes_it() -> None:
    plan = plans.plan(plans.cluster_spec("p4d.24xlarge"))
    after = with_stack(plan, packages=tuple(p for p in plan.group("train").stack.packages if p.part != "cuda"))
    assert changed(desired_stamps(plan), desired_stamps(after)) == {"base", "nvidia_driver", "cuda"}


def test_another_wish_concerns_its_role() -> None:
    first, other = (
        plans.plan(plans.cluster_spec("p4d.24xlarge", monitoring={"health_check": {"every": every}}))
        for every in ("5m", "6m")
    )
    assert changed(desired_stamps(first), desired_stamps(other)) == {"health"}


@pytest.mark.parametrize(
    ("machine", "has", "has_not"),
    [
        ("p4d.24xlarge", {"efa", "nvidia_driver", "mig"}, {"infiniband", "rocm", "scratch", "mounts", "interruption"}),
        ("dgx-h100", {"infiniband", "gpudirect"}, {"efa", "rocm"}),
    ],
)
def test_only_roles_that_apply_are_recorded(machine: str, has: set[str], has_not: set[str]) -> None:
    recorded_stamps = stamps.desired(plans.plan(plans.cluster_spec(machine)), "train", {})
    assert has <= recorded_stamps.keys()
    assert not has_not & recorded_stamps.keys()


def test_every_condition_of_the_playbook_can_be_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition that only Ansible understands counts as true: no error shows it. One that reads what no inventory has
    fails on every node."""
    import jinja2

    plan = plans.plan(plans.cluster_spec("p4d.24xlarge"))
    variables = group_variables("train", plan)
    reader = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    for entry in playbook.load().entries:
        if entry.when:
            try:
                result = reader.compile_expression(entry.when, undefined_to_none=False)(**variables)
            except jinja2.UndefinedError as error:
                pytest.fail(f"site.yml, role {entry.role}: its `when` reads what no role's module gives: {error}")
            assert isinstance(result, bool), entry.role


def test_the_packages_that_a_role_reads_are_those_of_its_parts() -> None:
    """A role that reads packages of another part would not run again when they change."""
    for role in playbook.load().roles:
        text = "\n".join(file.read_text() for file in (ANSIBLE / "roles" / role).rglob("*.yml"))
        known = roles.get(role)
        unread = [part for part in known.parts if f"'{part}'" not in text and "map(attribute='part')" not in text]
        assert not unread, f"plan/roles/{role}.py has parts that nothing in ansible/roles/{role} reads: {unread}"
        for filter_text in re.findall(r"gpuprov_stack\.packages \| (.{0,90})", text):
            if filter_text.startswith("map(attribute='name')"):
                assert known.all_package_names, role
            elif filter_text.startswith("map(attribute='part')"):
                assert set(known.parts) >= {"lustre", "mount_s3"}, role
            else:
                picked = re.match(r"selectattr\('part', '(?:in|equalto)', (\[[^]]*\]|'[^']*')\)", filter_text)
                assert picked, (role, filter_text)
                assert set(re.findall(r"'([a-z_0-9]+)'", picked[1])) <= set(known.parts), role
        assert "gpuprov_obsolete" not in text or known.all_package_names, role


def test_no_role_runs_another_one() -> None:
    """The digest of a role follows modules, not roles."""
    for file in (ANSIBLE / "roles").rglob("*.yml"):
        assert "import_role" not in file.read_text(), file
        assert "include_role" not in file.read_text(), file
    for meta in (ANSIBLE / "roles").glob("*/meta/main.yml"):
        assert not yaml.safe_load(meta.read_text()).get("dependencies"), meta


def test_the_stamp_is_written_and_the_facts_are_read_whatever_roles_run() -> None:
    play = yaml.safe_load((ANSIBLE / "playbooks/site.yml").read_text())[0]
    plain = [task for task in play["tasks"] if playbook.IMPORT_ROLE not in task]
    assert [task["tags"] for task in plain] == [["always"]] * 3
    assert plain[1:] == play["tasks"][-2:]
    role_tasks = [(task["tags"], task[playbook.IMPORT_ROLE]["name"]) for task in play["tasks"][1:-2]]
    wrong = [f"role {role}: its tags are {tags}, they must be [{role}]" for tags, role in role_tasks if tags != [role]]
    assert not wrong, f"ansible/playbooks/site.yml: {'; '.join(wrong)}"
