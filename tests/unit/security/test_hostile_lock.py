"""cluster.lock, locks/ and the files of the run directory as a pull request, a bucket or a repository can write them:
nothing in them is run on this machine, and every wrong one is an error with its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import stack
from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.paths import ClusterPaths, private_dir
from provisioner.configure import inventory
from provisioner.machines.providers import base
from provisioner.machines.providers.base import Place
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Mount
from provisioner.rundir.release import Ledger
from provisioner.spec.site import Site
from provisioner.stack import lockfile, package_index
from provisioner.stack.models import BaseImage, Lock, Repository
from provisioner.transport import ssh_config, ssh_pins
from tests.support import plans
from tests.support.logins import UBUNTU

pytestmark = pytest.mark.heavy

RUN = "{{ lookup('pipe', 'id') }}"
TEMPLATES = (RUN, f"1.2{RUN}", "{% raw %}", "{# x #}")
PAYLOADS = (
    *TEMPLATES,
    "../../etc/x",
    "/etc/cron.d/x",
    "a b; id",
    "$(id)",
    "x\ny",
    "\x1b[2J",
    "-oProxyCommand=id",
    "%h",
)
SENTENCES = {"why", "request"}
"""For people alone: any sentence may stand there, but no template and no control character."""


def whole_lock() -> Lock:
    """A lock with every kind of text in it: machines of both makers, a repository, images, a base image."""
    groups = {
        name: plans.plan(plans.cluster_spec(machine)).groups[0].stack
        for name, machine in (("train", "p4d.24xlarge"), ("amd", "Standard_ND96isr_MI300X_v5"))
    }
    image = BaseImage(id="ami-0123", why="the newest")
    request = stack.request(plans.cluster_spec("p4d.24xlarge"))
    return Lock(request=request, simulated=True, bases={"here": {"ubuntu-24.04": image}}, groups=groups)


def texts(value: Any, loc: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every text, one of each kind: of a list the first item, of a mapping of names the first."""
    if isinstance(value, dict):
        is_mapping = loc[-1:] in (("components",), ("request",), ("groups",), ("bases",)) or loc[-2:-1] == ("bases",)
        for key in list(value)[: 1 if is_mapping else None] if loc else value:
            yield from texts(value[key], (*loc, key))
    elif isinstance(value, list):
        for index, item in enumerate(value[:1]):
            yield from texts(item, (*loc, index))
    elif isinstance(value, str):
        yield loc


def put(value: Any, loc: tuple[Any, ...], new: Any) -> Any:
    head, *tail = loc
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[head] = put(value[head], tuple(tail), new) if tail else new
    return copy


LOCK: dict[str, Any] = whole_lock().model_dump(mode="json") | {"version": 3}
PLACES = [*texts(LOCK)]


def test_every_field_of_the_lock_is_tried() -> None:
    tried = {location[-1] if isinstance(location[-1], str) else location[-2] for location in PLACES}
    required = {
        "os",
        "driver",
        "cuda_toolkit",
        "nccl",
        "reference",
        "digest",
        "pull",
        "uri",
        "suite",
        "fingerprint",
        "name",
    }
    assert tried >= required | {"version", "why", "id", "key_url", "torch", "repository", "part"}


@pytest.mark.parametrize("location", PLACES, ids=lambda location: ".".join(map(str, location)))
def test_no_text_of_a_lock_is_a_template_a_path_or_a_command(location: tuple[Any, ...], tmp_path: Path) -> None:
    file = tmp_path / "cluster.lock"
    for payload in TEMPLATES if SENTENCES & {*location} else PAYLOADS:
        file.write_text(yaml.dump(put(LOCK, location, payload), Dumper=yaml.CSafeDumper, sort_keys=False))
        with pytest.raises(GpuprovError, match="not a lock that gpuprov wrote") as caught:
            lockfile.read(file)
        _, line, column = caught.value.where.rsplit(":", 2)
        assert int(line) > 1
        assert int(column) >= 1


@pytest.mark.parametrize("payload", ["{{x}}", "../x", "a/b", "x\ny"])
def test_no_name_of_a_group_or_site_is_a_path_or_a_template(payload: str, tmp_path: Path) -> None:
    file = tmp_path / "cluster.lock"
    for key in ("groups", "bases"):
        file.write_text(yaml.safe_dump(LOCK | {key: {payload: next(iter(LOCK[key].values()))}}))
        with pytest.raises(GpuprovError, match=r"not a valid name of a (group|site)"):
            lockfile.read(file)


@pytest.mark.parametrize(
    "uri",
    ["file:///etc", "ftp://x", "https://u:p@h/", "cdrom:x", "https://h/ [trusted=yes]", "https://h/\nTrusted: yes"],
)
def test_no_repository_is_anything_but_an_address(uri: str) -> None:
    keys = {"name": "cuda", "suite": "/", "components": "", "key_url": "https://h/k", "fingerprint": "A" * 40}
    with pytest.raises(ValueError, match="not a valid address"):
        Repository(uri=uri, **keys)
    with pytest.raises(ValueError, match="not a valid address of a key"):
        Repository(uri="https://h/", **keys | {"key_url": uri})


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "a: " * 100_000, "- " * 100_000, "version: " + "9" * 5000, "version: 2001-99-99", "&a [*a]",
     "a: &a [x]\nb: *a", "!!python/object/apply:os.system [id]", "\x01", "{? [a] : b}", "version: 3", "[]", "", "%x",
     "version: .inf", "'\\ud800'", "\ufeff", "version: !!binary '*'", "version: {{}}"],
    ids=lambda text: repr(text[:24]),
)  # fmt: skip
def test_what_is_no_lock_is_an_error_with_a_remedy(text: str, tmp_path: Path) -> None:
    (tmp_path / "cluster.lock").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(GpuprovError) as caught:
        lockfile.read(tmp_path / "cluster.lock")
    assert "gpuprov lock" in caught.value.hint


@pytest.mark.parametrize("field", ["gpuprov_registry", "gpuprov_stack", "{{ key }}", "__ansible_vault"])
def test_no_template_reaches_the_inventory(field: str, tmp_path: Path) -> None:
    paths = ClusterPaths(tmp_path / "cluster.yaml", "test", sandbox=True)
    private_dir(paths.root)
    plan = plans.plan(plans.cluster_spec("p4d.24xlarge"))
    value = {"driver": [RUN]} if field == "gpuprov_stack" else RUN if field == "gpuprov_registry" else "x"
    with pytest.raises(GpuprovError, match="contains a template expression"):
        inventory.write(paths, [], plan, {field: value}, {"train": {}})
    assert not paths.inventory.exists()


NODE = fleet.Node(
    "train-0", "train", "here", "p4d.24xlarge", "i-0", "us-east-1a", "203.0.113.9", "10.0.0.9",
    (Mount("nfs4", "fs-1.efs.us-east-1.amazonaws.com:/", "/efs", "hard,_netdev"),),
)  # fmt: skip
ROW = asdict(NODE)


@pytest.fixture
def paths(tmp_path: Path) -> ClusterPaths:
    paths = ClusterPaths(tmp_path / "cluster.yaml", "test", sandbox=False)
    private_dir(paths.ssh)
    return paths


@pytest.mark.parametrize("field", [*ROW, "mounts.type", "mounts.source", "mounts.path", "mounts.options"])
def test_no_field_of_a_node_is_a_template_a_path_or_an_option(field: str, paths: ClusterPaths) -> None:
    """nodes.json comes out of a bucket; the same nodes come out of Terraform's state, which lies there too."""
    plan = plans.plan(plans.cluster_spec("p4d.24xlarge"))
    outer, _, inner = field.partition(".")
    from_terraform = outer in ("group", "machine", "id", "zone", "mounts")
    for payload in (*PAYLOADS, 5, ["x"], None, "x" * 5000):
        row = ROW | ({outer: [ROW["mounts"][0] | {inner: payload}]} if inner else {outer: payload})
        if payload == "/etc/cron.d/x" and inner == "path":
            continue  # a folder of the node
        if payload == 5 and field == "port":
            continue
        paths.nodes.write_text(json.dumps([row]))
        with pytest.raises(GpuprovError, match="damaged"):
            fleet.load(paths)
        if from_terraform and isinstance(payload, str):
            output = {**row, "private_ip": "10.0.0.9"}
            with pytest.raises(ProviderError, match="no such node"):
                fleet.from_outputs(plan, "here", {"train-0": output})


@pytest.mark.parametrize("lock", ["../../../etc/x", "/etc/x", "x", 5, None, RUN])
def test_no_release_is_a_path(lock: Any, paths: ClusterPaths) -> None:
    (paths.root / "applied.json").write_text(json.dumps({"nodes": {"train-0": {"id": "i-0", "lock": lock}}}))
    with pytest.raises(GpuprovError, match="is damaged"):
        Ledger(paths)
    if isinstance(lock, str) and "/" in lock:
        (paths.root / "applied.json").unlink()
        with pytest.raises(GpuprovError, match="points outside"):
            Ledger(paths).lock(lock)


@pytest.mark.parametrize("name", ["base", "market", "aws.state", "..os", "", "x y", "../aws", "AWS"])
def test_no_provider_of_a_workspace_is_any_other_module(name: str) -> None:
    with pytest.raises(GpuprovError, match="in the sandbox only"):
        base.provider_of(name, Place("vision", "here", Site(provider="aws"), Path()))


@pytest.mark.parametrize("pin", [["i-0", f"ssh-ed25519 {RUN}"], ["i-0", 5], [5, "ssh-ed25519 AAAA"], "x", [], None])
def test_a_pin_that_is_none_is_an_error(pin: Any, paths: ClusterPaths) -> None:
    (paths.ssh / "pins.json").write_text(json.dumps({"train-0": pin}))
    with pytest.raises(GpuprovError):
        ssh_config.save(paths, [NODE], ssh_pins.load_pins(paths), UBUNTU)
    assert not (paths.ssh / "config").exists()


@pytest.mark.parametrize("payload", [p for p in PAYLOADS if "\n" not in p])
def test_no_package_of_a_signed_index_is_anything_but_a_package(payload: str) -> None:
    paragraph = "Package: {}\nVersion: {}\nArchitecture: amd64\nFilename: pool/x.deb\n"
    assert package_index.read(paragraph.format("libnccl2", "1.0-1"), "cuda") is not None
    assert package_index.read(paragraph.format(payload, "1.0-1"), "cuda") is None
    assert package_index.read(paragraph.format("libnccl2", payload), "cuda") is None
    needs = package_index.read(paragraph.format("libnccl2", "1.0-1") + f"Depends: {payload}\n", "cuda")
    assert needs is not None
    assert needs.unreadable or payload not in str(needs.needs)


def test_a_flat_lock_of_millions_of_values_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 MB of them took 199 s and 3.8 GB."""
    text = "version: 3\ngroups:\n" + "- {a: b}\n" * 200
    monkeypatch.setattr(lockfile, "EVENTS", 500)
    monkeypatch.setattr(lockfile.yaml_text, "load", lambda _: pytest.fail("it was read"))
    with pytest.raises(GpuprovError, match="more than 500 keys and values") as caught:
        lockfile.parse(text, "cluster.lock")
    assert caught.value.where.startswith("cluster.lock:1")
