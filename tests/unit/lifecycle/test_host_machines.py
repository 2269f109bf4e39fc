"""Machines that exist already: which host is which node, what a plan says, what is never done."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.events import Event, Events
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.lifecycle import machines, session
from provisioner.lifecycle.node_changes import node_changes
from provisioner.machines import existing
from provisioner.machines.hosts import HostMachines
from provisioner.machines.providers.baremetal.provider import BareMetalHosts
from provisioner.machines.providers.baremetal.site import BareMetalSite
from provisioner.machines.terraform.binary import Binary
from provisioner.plan.models import Plan
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.rundir.release import Ledger
from provisioner.spec.models import ClusterSpec
from provisioner.transport import ssh, ssh_config, ssh_pins
from tests.support import plans
from tests.unit.lifecycle.test_release import lock, node


@dataclass
class Lab:
    """A site of bare metal; `undone` has the hosts on which gpuprov's changes were undone."""

    paths: ClusterPaths
    undone: list[str] = field(default_factory=list)
    dead: set[str] = field(default_factory=set)

    def machines(
        self, hosts: dict[str, dict[str, object]], known: list[Node] | None = None, events: Events | None = None,
        users: dict[str, str] | None = None, elsewhere: frozenset[str] = frozenset(),
    ) -> HostMachines:  # fmt: skip
        settings = BareMetalSite.model_validate({"provider": "baremetal", "hosts": hosts})
        listed = frozenset(host.name for host in settings.machines(())) | elsewhere
        transport = existing.Way(
            self.paths, users or {}, {}, lambda: "ssh-ed25519 AAAA me", lambda: "abc", listed, listed
        )
        return HostMachines("here", BareMetalHosts(settings), known or [], transport, events or Events())


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    test_lab = Lab(ClusterPaths(tmp_path / "cluster.yaml", "lab", sandbox=False))

    def undo(transport: object, nodes: list[Node], report: object, **_: object) -> dict[str, ProviderError]:
        test_lab.undone += [node.id for node in nodes if node.id not in test_lab.dead]
        return {node.name: ProviderError("no answer", hint="look") for node in nodes if node.id in test_lab.dead}

    monkeypatch.setattr(existing, "undo", undo)
    return test_lab


def planned(count: int) -> Plan:
    spec: ClusterSpec = plans.cluster_spec("dgx-h100", count=count)
    return plans.plan(spec)


def ids(nodes: list[Node]) -> dict[str, str]:
    return {node.name: node.id for node in nodes}


def test_hosts_are_nodes_in_the_order_of_the_file(lab: Lab) -> None:
    site = lab.machines({"dgx[02-03]": {"address": "10.0.0.[2-3]", "port": 23}, "dgx01": {"user": "ops"}})
    plan = planned(3)
    planned_changes = site.plan(plan)
    assert [(action.what, action.node) for action in planned_changes.actions] == [
        ("create", f"train-{n}") for n in range(3)
    ]
    nodes = site.apply(plan, planned_changes)
    assert ids(nodes) == {"train-0": "dgx02", "train-1": "dgx03", "train-2": "dgx01"}
    assert (nodes[0].address, nodes[0].port, nodes[2].user) == ("10.0.0.2", 23, "ops")
    unchanged_site = lab.machines(
        {"dgx[02-03]": {"address": "10.0.0.[2-3]", "port": 23}, "dgx01": {"user": "ops"}}, nodes
    )
    assert unchanged_site.plan(plan).total == 0


def test_a_host_keeps_its_name_when_others_go(lab: Lab) -> None:
    plan = planned(3)
    previous_site = lab.machines({"a": {}, "b": {}, "c": {}})
    known = previous_site.apply(plan, previous_site.plan(plan))
    after = lab.machines({"b": {}, "c": {}, "d": {}}, known)
    planned_changes = after.plan(plan)
    assert [(action.what, action.node) for action in planned_changes.actions] == [
        ("replace", "train-0"),
        ("delete", "train-0"),
    ]
    assert lab.undone == [], "a plan changes nothing"
    assert ids(after.apply(plan, planned_changes)) == {"train-0": "d", "train-1": "b", "train-2": "c"}
    assert lab.undone == ["a"]


def test_without_nodes_json_a_host_keeps_the_name_of_its_pinned_key(lab: Lab) -> None:
    key, hosts, plan = f"ssh-ed25519 {'A' * 68}", dict[str, dict[str, object]](c={}, b={}, a={}), planned(3)
    private_dir(lab.paths.ssh)
    (lab.paths.ssh / "pins.json").write_text(json.dumps({"train-0": ["a", key], "train-1": ["b", key]}))
    nodes = lab.machines(hosts).apply(plan, lab.machines(hosts).plan(plan))
    assert ids(nodes) == {"train-0": "a", "train-1": "b", "train-2": "c"}
    known = [replace(nodes[0], id="c")]  # nodes.json is newer
    assert ids(lab.machines(hosts, known).apply(plan, lab.machines(hosts, known).plan(plan)))["train-0"] == "c"


def test_without_nodes_json_no_host_is_lost_by_a_name_that_another_one_was_proven_as(lab: Lab) -> None:
    """The pin is newer than the ledger."""
    private_dir(lab.paths.ssh)
    (lab.paths.ssh / "pins.json").write_text(json.dumps({"train-0": ["b", f"ssh-ed25519 {'A' * 68}"]}))
    Ledger(lab.paths).record([node("train-0", "a")], lock())
    site = lab.machines({"a": {}, "b": {}})
    assert ids(site.apply(planned(2), site.plan(planned(2)))) == {"train-0": "b", "train-1": "a"}


def test_a_host_is_the_node_that_it_was_proven_as_where_the_name_of_nodes_json_is_gone(lab: Lab) -> None:
    """A group was renamed, the run was cut off, and it has its former name again."""
    Ledger(lab.paths).record([node("train-0", "a"), node("train-1", "b")], lock())
    site = lab.machines({"b": {}, "a": {}}, [node("learn-0", "a"), node("learn-1", "b")])
    changes = site.plan(planned(2))
    assert ids(site.apply(planned(2), changes)) == {"train-0": "a", "train-1": "b"}
    ending = [action.name for action in changes.actions if action.what == "delete"]
    assert ending == ["learn-0: its machine a becomes train-0", "learn-1: its machine b becomes train-1"]


def test_a_node_that_a_host_was_proven_as_ends_whatever_nodes_json_calls_the_host(lab: Lab) -> None:
    Ledger(lab.paths).record([node("eval-0", "a")], lock())
    changes = lab.machines({"a": {}}, [node("learn-0", "a")]).plan(planned(1))
    assert {action.node for action in changes.actions if action.what == "delete"} == {"eval-0", "learn-0"}


def test_another_host_in_the_place_of_a_bad_one_is_a_replacement(lab: Lab) -> None:
    plan = planned(1)
    known = lab.machines({"a": {}}).apply(plan, lab.machines({"a": {}}).plan(plan))
    with pytest.raises(ProviderError, match="a cannot be replaced by gpuprov") as caught:
        lab.machines({"a": {}}, known).plan(plan, replace=["train-0"])
    assert "gpuprov release FILE train-0" in caught.value.hint
    planned_changes = lab.machines({"b": {}}, known).plan(plan, replace=["train-0"])
    planned_changes.refuse_more(["train-0"], ["train-0"])


def test_a_node_whose_host_takes_the_place_of_another_one_is_named_and_not_replaced_by_the_way(lab: Lab) -> None:
    """The first of two hosts is taken out of the list: the second one becomes the first node."""
    previous_site = lab.machines({"a": {}, "b": {}})
    known = previous_site.apply(planned(2), previous_site.plan(planned(2)))
    changes = lab.machines({"b": {}}, known).plan(planned(1), replace=["train-0"])
    ending = {action.node: action.name for action in changes.actions if action.what == "delete" and not action.attached}
    assert ending == {"train-1": "train-1: its machine b becomes train-0"}
    assert node_changes(known, planned(1), [changes]).ends == ("train-0", "train-1")
    with pytest.raises(ProviderError, match="would also delete train-1"):
        changes.refuse_more(["train-0"], ["train-0"])


def test_fewer_hosts_than_machines_are_refused(lab: Lab) -> None:
    with pytest.raises(ProviderError, match="count is 2, and its list has 1 host"):
        lab.machines({"a": {}}).plan(planned(2))


def test_down_goes_on_where_it_stopped_and_is_not_kept_by_a_machine_that_is_gone(lab: Lab) -> None:
    plan = planned(3)
    hosts: dict[str, dict[str, object]] = {"a": {}, "b": {}, "c": {}}
    known = lab.machines(hosts).apply(plan, lab.machines(hosts).plan(plan))
    lab.dead = {"b"}
    with pytest.raises(ProviderError, match="train-1: no answer"):
        lab.machines(hosts, known).destroy()
    assert lab.undone == ["a", "c"]
    with pytest.raises(ProviderError):
        lab.machines(hosts, known).destroy()
    assert lab.undone == ["a", "c"] * 2, "another operator may have configured them meanwhile"
    lab.dead = {"a", "b", "c"}
    with pytest.raises(ProviderError) as caught:
        lab.machines(hosts, known).destroy()
    assert "train-1" in caught.value.message and "train-0" not in caught.value.message, "gpuprov's key is gone from it"
    with pytest.raises(ProviderError, match="train-1"):
        lab.machines({"a": {}, "c": {}}, known, elsewhere=frozenset({"b"})).destroy()
    assert lab.machines({"a": {}, "c": {}}, known).destroy() == 3


def test_down_leaves_a_host_that_another_cluster_has_configured(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, heard = planned(2), list[Event]()
    hosts: dict[str, dict[str, object]] = {"a": {}, "b": {}}
    known = lab.machines(hosts).apply(plan, lab.machines(hosts).plan(plan))
    monkeypatch.undo()
    answers = {"a": {"foreign": "lab"}, "b": {"done": ["gpuprov's files removed"], "stays": ["packages"]}}

    def call(argv: Sequence[str], program: str = "", deadline_s: float = 0) -> tuple[int, str]:
        return 0, f"gpuprov:{json.dumps(answers[argv[-2]])}"

    monkeypatch.setattr(existing, "_call", call)
    monkeypatch.setattr(existing.ssh, "argv", lambda _, name: ("ssh", known[int(name[-1])].id))
    monkeypatch.setattr(existing.ssh_config, "local", lambda _: frozenset(ids(known)))
    site = lab.machines(hosts, known, Events(heard.append), users=dict.fromkeys(ids(known), "ops"))
    with pytest.raises(ProviderError, match="a is configured by another gpuprov cluster, lab"):
        site.destroy()  # of the same name: it may be this one, with an id that was lost
    answers["a"] = {"foreign": "speech"}
    heard.clear()
    assert site.destroy() == 1
    assert site.stays == {"train-1": ["packages"]}
    warnings = [(event.node, event.message) for event in heard if event.kind == "warning"]
    assert warnings == [("train-0", "a is configured by another gpuprov cluster, speech: left alone")]


def test_other_operators_know_what_a_down_undoes_before_it_does(lab: Lab) -> None:
    plan, shared = planned(1), []
    site = lab.machines({"a": {}})
    known = site.apply(plan, site.plan(plan))
    leaving = lab.machines({"a": {}}, known)
    leaving._share = lambda: shared.append(([*lab.undone], (lab.paths.site("here") / "leaving").read_text()))
    leaving.destroy()
    assert shared == [([], "a\n")]


NODE = Node("box-0", "box", "room", "workstation-rtx4090", "local", "", "127.0.0.1", "127.0.0.1")


def test_hosts_that_nodes_json_does_not_name_are_not_called_undone(lab: Lab) -> None:
    plan, site = planned(2), lab.machines({"a": {}, "b": {}})
    site.apply(plan, site.plan(plan))
    with pytest.raises(ProviderError, match=r"a, b may be configured, and nodes\.json does not name them") as caught:
        site.destroy(plan)
    assert "`gpuprov up`, which takes them in" in caught.value.hint
    assert lab.undone == []
    assert lab.machines({}).destroy(plan) == 0  # taken out of the file: they are gone


def test_a_host_that_only_the_list_of_configured_hosts_names_is_not_forgotten(lab: Lab) -> None:
    """nodes.json was removed, and the host was taken out of cluster.yaml: `up` would leave it as it is, for ever."""
    known = lab.machines({"a": {}, "b": {}}).apply(planned(2), lab.machines({"a": {}, "b": {}}).plan(planned(2)))
    with pytest.raises(ProviderError, match=r"b may be configured, and neither nodes\.json nor cluster") as caught:
        lab.machines({"a": {}}).plan(planned(1))
    assert "put the host back into `hosts`" in caught.value.hint
    assert lab.machines({"a": {}}, known).plan(planned(1)).destroy == 1
    assert lab.machines({"a": {}}, known[:1]).plan(planned(1)).destroy == 0, "another operator has removed it"


def test_hosts_on_which_a_down_has_begun_are_not_configured(lab: Lab, tmp_path: Path) -> None:
    plan, site = planned(2), lab.machines({"a": {}, "b": {}})
    known = site.apply(plan, site.plan(plan))
    cluster = session.Cluster(tmp_path / "cluster.yaml", plans.cluster_spec("dgx-h100", count=2), lab.paths)
    machines.refuse_undone(cluster)
    lab.dead.add("b")
    with pytest.raises(ProviderError, match="could not be undone"):
        lab.machines({"a": {}, "b": {}}, known).destroy(plan)
    with pytest.raises(GpuprovError, match="has begun to undo what was configured on a, b, and did not end") as caught:
        machines.refuse_undone(cluster)
    assert "`gpuprov up " in caught.value.hint
    restored_site = lab.machines({"a": {}, "b": {}}, known)
    restored_site.apply(plan, restored_site.plan(plan))
    machines.refuse_undone(cluster)


def test_this_very_machine_is_reached_without_ssh(lab: Lab) -> None:
    other = Node("box-1", "box", "room", "workstation-rtx4090", "ws2", "", "10.0.0.2", "10.0.0.2", port=2222)
    pins = {"box-1": ("ws2", "ssh-ed25519 AAAA")}
    ssh_config.save(lab.paths, [NODE, other], pins, {"box-0": "me", "box-1": "me"}, local=["box-0"])
    assert ssh_config.local(lab.paths) == {"box-0"}
    text = (lab.paths.ssh / "config").read_text()
    assert "box-0" not in text
    assert "\n  Port 2222\n" in text
    ssh_config.refuse_foreign(lab.paths, list, lambda: ["box-0"])
    for arguments, output in ((["echo", "a  b"], "a b"), (["echo 'a  b'; false"], "a  b")):
        done = subprocess.run(
            [*ssh.argv(lab.paths, "box-0", "-t"), *arguments], capture_output=True, text=True, check=False
        )
        assert done.stdout.strip() == output, "as ssh: one text for a shell"
    assert done.returncode == 1
    assert ssh.argv(lab.paths, "box-1")[0] == "ssh"
    ssh_config.save(lab.paths, [other], pins, {"box-1": "me"})
    assert ssh_config.local(lab.paths) == frozenset()


def test_a_checkout_cannot_make_a_node_this_machine(lab: Lab) -> None:
    ssh_config.save(lab.paths, [NODE], {}, {"box-0": "me"}, local=["box-0"])
    with pytest.raises(GpuprovError, match="box-0 is this machine there"):
        ssh_config.refuse_foreign(lab.paths, list, list)


def test_a_written_key_is_pinned_and_a_host_keeps_its_key_under_another_name(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: object) -> None:
        raise AssertionError("nobody is asked for a key that is known")

    monkeypatch.setattr(fleet, "_wait_for_port", lambda *_: None)
    monkeypatch.setattr(fleet.host_keys, "scan", nothing)
    first = Node("train-0", "train", "here", "dgx-h100", "a", "", "10.0.0.1", "10.0.0.1")
    users = {"train-0": "me", "train-1": "me"}
    fleet.contact(lab.paths, [first], users, Events(), given={"train-0": "ssh-ed25519 AAAA"})
    assert ssh_pins.load_pins(lab.paths) == {"train-0": ("a", "ssh-ed25519 AAAA")}
    moved = Node("train-1", "train", "here", "dgx-h100", "a", "", "10.0.0.1", "10.0.0.1")
    fleet.contact(lab.paths, [moved], users, Events())
    assert ssh_pins.load_pins(lab.paths) == {"train-1": ("a", "ssh-ed25519 AAAA")}
    fleet.contact(lab.paths, [moved], users, Events(), given={"train-1": "ssh-ed25519 BBBB"})
    assert ssh_pins.load_pins(lab.paths) == {"train-1": ("a", "ssh-ed25519 BBBB")}, "reinstalled, and written down"


@pytest.mark.parametrize(("file", "method"), [("terraform.tfstate", "ssh"), ("hosts", "maas")])
def test_machines_are_not_forgotten_when_the_method_changes(tmp_path: Path, file: str, method: str) -> None:
    more = "hosts: { a: {} }" if method == "ssh" else "maas: { url: https://maas.lab/MAAS }"
    path = tmp_path / "cluster.yaml"
    site = f"{{ provider: baremetal, method: {method}, {more} }}"
    path.write_text(f"name: lab\nsites: {{ rack: {site} }}\ngroups: {{ train: {{ machine: dgx-h100 }} }}\n")
    cluster = session.open_cluster(path, sandbox=False)
    folder = cluster.paths.site("rack")
    folder.mkdir(parents=True)
    (folder / file).write_text("{}")
    with pytest.raises(ProviderError, match="with another `method`"):
        machines.of_site(cluster, "rack", Binary((), "none"))
    (folder / file).unlink()
    assert machines.of_site(cluster, "rack", Binary((), "none")).site == "rack"
