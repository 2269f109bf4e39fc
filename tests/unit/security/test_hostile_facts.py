"""What a node says about itself is never a variable of the roles: real Ansible, and a node whose Python adds to each
module's answer every name that a role, the inventory or Ansible's own connection knows."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.common import paths
from provisioner.common.events import Events
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.configure import inventory, run
from provisioner.rundir.fleet import Node
from tests.support import plans

ANSIBLE = Path(__file__).parents[3] / "ansible"
ROLES = sorted(folder.name for folder in (ANSIBLE / "roles").iterdir())
TEMPLATE = "{{ 6 * 7 }}"
LIE = "/control-machine/said-by-the-node"
CONNECTION = (
    "connection", "host", "port", "user", "ssh_common_args", "ssh_extra_args", "ssh_args", "ssh_executable",
    "ssh_private_key_file", "ssh_host_key_checking", "sftp_executable", "become", "become_exe", "become_flags",
    "become_method", "become_user", "python_interpreter", "shell_type", "shell_executable", "remote_tmp", "pipelining",
    "check_mode", "local_temp", "async_dir", "playbook_python", "config_file", "search_path", "role_names",
)  # fmt: skip
"""Names that Ansible itself reads, with ansible_ before them."""
MAGIC = (
    "inventory_hostname",
    "hostvars",
    "groups",
    "group_names",
    "playbook_dir",
    "role_path",
    "inventory_file",
    "omit",
)

HOSTILE = """\
#!{python}
import json, subprocess, sys

done = subprocess.run([{python!r}, *sys.argv[1:]], input=sys.stdin.buffer.read(), stdout=subprocess.PIPE)
try:
    answer = json.loads(done.stdout)
except ValueError:
    sys.stdout.buffer.write(done.stdout)
    sys.exit(done.returncode)
lies = json.load(open({lies!r}))
answer.setdefault("ansible_facts", {{}}).update(lies)
answer["add_host"] = {{"host_name": "train-0", "host_vars": lies, "groups": ["train"]}}
answer["add_group"] = "train"
answer["_ansible_facts_cacheable"] = True
answer["ansible_stats"] = {{"data": lies}}
answer.update({{name: lie for name, lie in lies.items() if name not in answer}})
print(json.dumps(answer))
"""


def names_of(role: str) -> set[str]:
    """Every variable of a role: its defaults, its arguments, what its tasks register, set and read."""
    folder = ANSIBLE / "roles" / role
    variables = set(yaml.safe_load((folder / "defaults/main.yml").read_text()) or ())
    variables |= set(
        yaml.safe_load((folder / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    )
    for file in (folder / "tasks").glob("*.yml"):
        for task in yaml.safe_load(file.read_text()):
            variables |= set(task.get("vars", ())) | {task.get("register", "")}
    return variables - {""}


def names() -> set[str]:
    return set().union(*map(names_of, ROLES))


@pytest.fixture(scope="module")
def role_variables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, dict[str, Any]]]:
    """Role → what its variables are on the hostile node, after two of the node's answers."""
    folder = tmp_path_factory.mktemp("hostile-facts")
    strange = folder / 'it\'s a "test", ünï $HOME %h'
    strange.mkdir()
    cluster = ClusterPaths(strange / "cluster.yaml", "test", sandbox=True)
    private_dir(cluster.root)
    copied = folder / "ansible"
    shutil.copytree(ANSIBLE, copied)
    plan = plans.plan(plans.cluster_spec("p4d.24xlarge", monitoring={"health_check": {}}))
    play = yaml.safe_load((ANSIBLE / "playbooks" / "site.yml").read_text())[0] | {"become": False}
    connection = {f"ansible_{name}" for name in CONNECTION} | {*MAGIC}
    tasks = [
        play["tasks"][0],
        {"name": "A module of ours", "node_files": {"files": []}},
        {
            "name": "Connection",
            "ansible.builtin.debug": {"msg": reading(connection)},
        },
    ]
    for role in ROLES:
        task = [{"name": "Look", "ansible.builtin.debug": {"msg": reading(names_of(role))}}]
        (copied / "roles" / role / "tasks" / "main.yml").write_text(yaml.safe_dump(task))
        tasks.append({"ansible.builtin.import_role": {"name": role, "rolespec_validate": False}})
    (copied / "playbooks" / "site.yml").write_text(yaml.safe_dump([play | {"tasks": tasks}]))
    node = Node("train-0", "train", "here", "p4d.24xlarge", "i-0", "", "127.0.0.1", "10.0.0.4")
    liar, lies = folder / "python3", folder / "lies.json"
    variables = {"ansible_connection": "local", "ansible_python_interpreter": str(liar), "gpuprov_registry": TEMPLATE}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inventory, "refuse_templates", lambda _: None)  # the wall before this one
        file = inventory.write(cluster, [node], plan, variables, {"train": {}})
    written = json.loads(file.read_text())
    group = written["all"]["children"]["train"]
    group["vars"]["gpuprov_interruption"] = {"hook": None, "metadata": "127.0.0.1:80", "textfile": None}
    file.write_text(json.dumps(written))
    lied_names = names() | {*group["vars"], *group["hosts"]["train-0"], *MAGIC, "gpuprov_strategy", "gpuprov_obsolete"}
    lied_names |= connection
    lies.write_text(json.dumps(dict.fromkeys(sorted(lied_names), LIE)))
    liar.write_text(HOSTILE.format(python=sys.executable, lies=str(lies)))
    liar.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            run.paths, "data", lambda name, real_data=paths.data: copied if name == "ansible" else real_data(name)
        )
        outcomes = run.configure(cluster, [node], file, private_dir(cluster.root / "run"), Events(), push=True)
    assert outcomes["train-0"].failed == []
    values_by_role = {}
    for event in cluster.root.glob("run/ansible/artifacts/*/job_events/*.json"):
        data = json.loads(event.read_text())
        if data["event"] == "runner_on_ok" and "msg" in data["event_data"]["res"]:
            values_by_role[data["event_data"].get("role", data["event_data"]["task"])] = data["event_data"]["res"][
                "msg"
            ]
    yield values_by_role


def reading(variables: set[str]) -> str:
    """A template that gives every one of these variables, "undefined" for one that is not there."""
    pairs = ", ".join(
        f"'{name}': lookup('ansible.builtin.vars', '{name}', default='undefined')" for name in sorted(variables)
    )
    return "{{ {" + pairs + "} }}"


@pytest.mark.parametrize("role", ROLES)
def test_no_variable_of_a_role_is_what_the_node_says(role: str, role_variables: dict[str, dict[str, Any]]) -> None:
    assert set(role_variables[role]) == names_of(role)
    assert {name: value for name, value in role_variables[role].items() if LIE in json.dumps(value)} == {}


def test_no_variable_of_the_connection_is_what_the_node_says(role_variables: dict[str, dict[str, Any]]) -> None:
    overridden = {name: value for name, value in role_variables["Connection"].items() if LIE in json.dumps(value)}
    # of the node's own answers `hostvars` has the facts, under ansible_facts and nowhere else
    assert overridden.keys() <= {"hostvars"}
    answers = overridden.get("hostvars", {}).get("train-0", {})
    assert [key for key, value in answers.items() if LIE in json.dumps(value)] in ([], ["ansible_facts"])


def test_the_archive_of_the_checks_is_the_one_that_gpuprov_made(role_variables: dict[str, dict[str, Any]]) -> None:
    from provisioner.verify import archive

    assert role_variables["health"]["health_archive"] == str(archive.write_archive())


def test_no_text_of_the_inventory_is_a_template(role_variables: dict[str, dict[str, Any]]) -> None:
    assert role_variables["container_runtime"]["container_runtime_registry"] == TEMPLATE


def test_facts_are_no_variables_wherever_ansible_runs(tmp_path: Path) -> None:
    """Each of the two by itself: gpuprov's own call, and ansible-playbook by hand."""
    cluster = ClusterPaths(tmp_path / "cluster.yaml", "test", sandbox=True)
    assert run.environment(cluster)["ANSIBLE_INJECT_FACT_VARS"] == "False"
    assert "\ninject_facts_as_vars = False\n" in (ANSIBLE / "ansible.cfg").read_text()


def test_no_role_reads_what_ansible_promotes_of_the_facts_whatever_it_is_told() -> None:
    """`ansible_local` stays a variable also where facts are none."""
    for file in ANSIBLE.rglob("*.yml"):
        assert "ansible_local" not in file.read_text()
