"""Every provider's folder is whole, and nothing outside it knows it. docs/extending/provider.md is the contract."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest

from provisioner import catalog, spec
from provisioner.machines.providers import base
from provisioner.machines.providers.base import Module, Place, Provider
from provisioner.machines.providers.capacity import Capacity
from provisioner.machines.providers.market import Market
from provisioner.machines.providers.orphans import Orphans
from provisioner.machines.providers.state import Remote
from provisioner.plan.models import Plan
from provisioner.spec import folders
from provisioner.spec.site import Site
from provisioner.spec.starter import starter
from provisioner.spec.state import State
from provisioner.stack.models import BaseImage
from tests.support import plans
from tests.support.sandbox_cluster import ROOT

CODE = ROOT / "provisioner"
SANDBOX = "sandbox"
REAL = [name for name in folders.names() if name != SANDBOX]
MAKING = [name for name in folders.names() if base.find(name)]
COMMON = {"name", "groups", "ssh_public_key", "user_data", "tags"}
OUTPUT = {"id", "group", "machine", "zone", "private_ip", "public_ip"}
NAMES = "|".join(REAL)
KNOWS = re.compile(
    rf"""\b(?:Aws|Alicloud|Azure|Tencent|BareMetal)[A-Z]\w*   # a model of its sites
    | providers\.(?:{NAMES})\b                                # a module of its folder
    | [!=]=\s*["'](?:{NAMES})["']                             # its name asked for
    | ["'](?:{NAMES})["']\s*:                                 # its name as a key
    | \b(?:aws|azurerm|alicloud|tencentcloud)_[a-z]+          # its Terraform resources
    | (?:AWS|Azure|Alibaba|Tencent)'s\ console
    | backend\s*[!=]=\s*["'](?:s3|oss|azurerm|cos)["']""",
    re.X,
)
"""What only a provider's own folder says."""


def lines(text: str) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(text.splitlines(), 1) if KNOWS.search(line))


def test_nothing_outside_a_providers_folder_knows_it() -> None:
    wrong = []
    for file in sorted(CODE.rglob("*.py")):
        name = file.relative_to(CODE).as_posix()
        if not name.startswith(tuple(f"machines/providers/{provider}/" for provider in REAL)):
            wrong += [f"{name}:{number}: {line.strip()}" for number, line in lines(file.read_text(encoding="utf-8"))]
    assert wrong == []


@pytest.mark.parametrize(
    "line",
    [
        "if isinstance(site, AwsSite):", "from provisioner.machines.providers.aws import tagged",
        'if site.provider == "azure":',
        'DISKS = {"aws": "nvme0n1"}', 'address.startswith("aws_instance.")', "look into AWS's console",
        'if state.backend != "s3":',
    ],
)  # fmt: skip
def test_what_knows_a_provider_is_seen(line: str) -> None:
    assert list(lines(line)) == [(1, line)]


def test_folders_and_the_catalogues_rows_are_the_same() -> None:
    assert sorted(REAL) == sorted(row.name for row in catalog.load().providers())


@pytest.mark.parametrize("name", REAL)
def test_a_folder_has_one_model_of_its_sites(name: str) -> None:
    module = import_module(f"{folders.PACKAGE}.{name}.site")
    (model,) = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Site) and c is not Site
                and c.__module__ == module.__name__]  # fmt: skip
    assert get_args(model.model_fields["provider"].annotation) == (name,)
    assert (import_module(f"{folders.PACKAGE}.{name}").__doc__ or "").strip()


@pytest.mark.parametrize("name", REAL)
def test_its_machines_can_be_asked_for(name: str, tmp_path: Path) -> None:
    known = catalog.load()
    assert known.provider(name).example_machine in known.names(name)
    file = tmp_path / "cluster.yaml"
    file.write_text(starter(known, provider=name), encoding="utf-8")
    assert spec.check(file) == []
    without_gpus = next((row.name for row in known.without_gpus.values() if row.provider == name), None)
    if without_gpus is not None:
        file.write_text(starter(known, machine=without_gpus), encoding="utf-8")
        assert spec.check(file) == []
        assert "  head:" in file.read_text(encoding="utf-8") and "pytorch" not in file.read_text(encoding="utf-8")
    examples = [spec.load(path) for path in (ROOT / "examples").glob("*.yaml")]
    assert any(site.provider == name for example in examples for site in example.sites.values())


@pytest.mark.parametrize("name", MAKING)
def test_a_provider_that_makes_machines_is_documented(name: str) -> None:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    titles = [page.read_text(encoding="utf-8").partition("\n")[0] for page in pages]
    own_titles = [row.title for row in catalog.load().providers() if row.name == name]
    assert name in {page.stem for page in pages} or f"# {own_titles[0].capitalize()}" in titles
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("*.yaml")]
    assert any(f"provider: {name}\n" in text for text in texts) or name == SANDBOX


def provider_and_plan(name: str, workspace: Path) -> tuple[Provider, Plan]:
    """The provider at a site of its own, and a plan of its usual machine."""
    known = catalog.load()
    machine = "p4d.24xlarge" if name == SANDBOX else known.provider(name).example_machine
    offline_plan = plans.plan(plans.cluster_spec(machine, count=2))
    system = offline_plan.groups[0].stack.os
    bases = {"here": {system: BaseImage(id="image-1", why="test")}}
    plan = Plan(spec=offline_plan.spec, groups=offline_plan.groups, simulated=False, bases=bases)
    provider_class = base.find(name)
    assert provider_class is not None
    return provider_class(Place("test", "here", offline_plan.spec.sites["here"], workspace)), plan


@pytest.mark.parametrize("name", MAKING)
def test_its_class_is_whole(name: str, tmp_path: Path) -> None:
    provider, _ = provider_and_plan(name, tmp_path)
    assert (provider.name, isinstance(provider, Provider)) == (name, True)
    assert provider.module is None or isinstance(provider.module, Module)
    if provider.capacity is not None:
        like(provider.capacity, Capacity)
    if provider.access is not None:
        like(provider.access, base.Access)
    if provider.hosts is not None:
        like(provider.hosts, base.Hosts)
    if provider.sandbox_mirror is not None:
        like(provider.sandbox_mirror, base.SandboxMirror)
    if (market := provider.market()) is not None:
        like(market, Market)
        assert market.source
    if (orphans := provider.orphans("us-east-1")) is not None:
        like(orphans, Orphans)


@pytest.mark.parametrize("model", folders.models("state", State), ids=lambda model: str(model.__name__))
def test_a_place_for_state_is_opened_beside_its_model(model: type[State]) -> None:
    opened = import_module(f"{model.__module__.rpartition('.')[0]}.remote_state").remote
    assert list(inspect.signature(opened).parameters) == ["spec"]
    like(
        inspect.get_annotations(opened, eval_str=False)["return"],
        Remote,
        within=f"{model.__module__.rpartition('.')[0]}",
    )


def like(implementation: Any, protocol: type, *, within: str = "") -> None:
    """Fail where a method of the protocol is missing, or takes other parameters."""
    if isinstance(implementation, str):  # a class by its name, which is imported for types alone
        folder = import_module(within)
        modules = [import_module(f"{within}.{path.stem}") for path in Path(str(folder.__file__)).parent.glob("*.py")]
        (implementation,) = {
            getattr(module_of_folder, implementation)
            for module_of_folder in modules
            if hasattr(module_of_folder, implementation)
        }
    for name, method in inspect.getmembers(protocol, inspect.isfunction):
        if not name.startswith("_"):
            expected = [parameter for parameter in inspect.signature(method).parameters if parameter != "self"]
            has = [
                parameter
                for parameter in inspect.signature(getattr(implementation, name)).parameters
                if parameter != "self"
            ]
            assert has == expected, f"{implementation}.{name}"


@pytest.mark.parametrize("name", MAKING)
def test_the_module_takes_what_the_provider_gives(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, plan = provider_and_plan(name, tmp_path)
    if provider.module is None:
        assert provider.hosts is not None, "nothing makes its machines, and none exist"
        return
    folder = ROOT / "terraform" / provider.module.folder
    text = "".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.tf")))
    assert set(re.findall(r'^variable "(\w+)"', text, re.M)) == {*COMMON, provider.module.folder}
    nodes = re.search(r'^output "nodes" \{\n(.*?)^\}', text, re.M | re.S)
    assert nodes is not None
    assert {key for key in OUTPUT if re.search(rf"\b{key}\s*=", nodes[1])} == OUTPUT
    monkeypatch.setattr("provisioner.machines.providers.public_address.PublicAddress.network", "203.0.113.7/32")
    if name != SANDBOX:  # its inputs are paths of images that are built
        takes = fields(text, provider.module.folder)
        inputs = provider.module.inputs(plan)
        assert set(inputs) <= set(takes)
        assert {key for key, optional in takes.items() if not optional} <= set(inputs)


def fields(text: str, variable: str) -> dict[str, bool]:
    """The keys of a variable that is an object, each with whether it may be left out."""
    block = re.search(rf'^variable "{variable}" \{{\n(.*?)^\}}', text, re.M | re.S)
    assert block is not None
    return {
        key: type_text.startswith("optional(")
        for key, type_text in re.findall(r"^    (\w+)\s*= (.*)$", block[1].partition("\n  validation")[0], re.M)
    }


def test_keys_of_a_module_are_read() -> None:
    inner = "    zones = list(string)\n    efs = optional(object({\n      path = string\n    }))\n"
    text = f'variable "x" {{\n  type = object({{\n{inner}  }})\n}}\n'
    assert fields(text, "x") == {"zones": False, "efs": True}
