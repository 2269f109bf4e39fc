"""What a node is to carry of each role: digests of the role's text and of the variables that it runs with.

The last task of playbooks/site.yml records them in /etc/gpuprov/node.json for the roles that ran. A role is run again
where its digests differ from those on the node; the other roles are left alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from provisioner.common import paths, yaml_text
from provisioner.configure import playbook
from provisioner.plan import roles
from provisioner.plan.models import Plan
from provisioner.verify.parsers.stamp import RoleStamp

DIGITS = 16
"""Hexadecimal digits of a digest. It tells versions apart and proves nothing."""
_VARIABLE = re.compile(r"\bgpuprov_[a-z0-9_]+\b")
_USE = re.compile(r"\b(gpuprov_[a-z0-9_]+)\b(?!\.py\b)(?:\.([a-z_]+))?")
_STACK_FIELD = re.compile(r"\bgpuprov_stack\b(?:\.([a-z_]+))?")
_NO_PART = {"README.md", "meta"}
"""What of a role's folder does not run on a node: documentation, and argument specs, which tests check."""


def desired(plan: Plan, group: str, provider_variables: Mapping[str, Any]) -> dict[str, RoleStamp]:
    """Role → what a node of the group carries once the role has run there, for the roles that apply to the group.

    `provider_variables`: what the providers give the roles beside the inventory's own.
    """
    from provisioner.configure.inventory import group_variables

    variables = {**group_variables(group, plan), **provider_variables}
    role_stamps = {}
    for entry in playbook.load().entries:
        if entry.applies(variables):
            installed = _digest(installs_with(entry.role, variables))
            configured = _digest(depends_on(entry.role, variables))
            role_stamps[entry.role] = RoleStamp(text_digest(entry.role), installed=installed, configured=configured)
    return role_stamps


def installs_with(role: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Of the inventory's variables those that install.yml of the role uses, by itself or through the role's defaults,
    and of one that is a mapping only the keys that are named: what an image of one group has for every other one that
    wants the same."""
    known, text = roles.get(role), _install_source(paths.data("ansible"), role)
    uses: dict[str, set[str | None]] = {}
    for match in _USE.finditer(text):
        uses.setdefault(match[1], set()).add(match[2])
    used: dict[str, Any] = {}
    for name in sorted(uses.keys() & variables.keys()):
        value = variables[name]
        is_whole = not isinstance(value, dict) or not uses[name] <= value.keys()
        used[name] = value if is_whole else {key: value[key] for key in sorted(k for k in uses[name] if k)}
    if "packages" in used.get("gpuprov_stack", {}):
        own_packages = [package for package in used["gpuprov_stack"]["packages"] if package["part"] in known.parts]
        used["gpuprov_stack"] = {**used["gpuprov_stack"], "packages": own_packages}
        if known.all_package_names:
            used["names"] = sorted(package["name"] for package in variables["gpuprov_stack"]["packages"])
    return used


def depends_on(role: str, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Of the inventory's variables those that the role or its entry in the playbook names, and of the stack only what
    the role uses: the fields that it names and the packages of its parts."""
    known, text = roles.get(role), _source(paths.data("ansible"), role)
    used = {name: variables[name] for name in sorted(set(_VARIABLE.findall(text)) & variables.keys())}
    used |= {name: look(used[name]) for name, look in known.depends_on.items() if name in used}
    fields = {match[1] for match in _STACK_FIELD.finditer(text)}
    stack = used.get("gpuprov_stack")
    if stack is not None and None not in fields:
        used["gpuprov_stack"] = {name: stack[name] for name in sorted(fields & stack.keys() - {"packages"})}
        used["packages"] = [package for package in stack["packages"] if package["part"] in known.parts]
    if stack is not None and known.all_package_names:
        used["names"] = sorted(package["name"] for package in stack["packages"])
    return used


def text_digest(role: str) -> str:
    """Of everything that runs for the role: its folder, the modules and other plugins that it uses, its entry in the
    playbook. Comments and the layout of YAML do not count."""
    return _text_digest(paths.data("ansible"), role)


@cache
def _text_digest(root: Path, role: str) -> str:
    site_playbook = playbook.load()
    files = {str(file.relative_to(root)): _content(file) for file in [*_files(root, role), *_plugins(root, role)]}
    return _digest([site_playbook.head, site_playbook.task(role), files])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:DIGITS]


def _content(file: Path) -> Any:
    """A YAML file as what it means; any other file as the sha256 of its bytes."""
    content = file.read_bytes()
    if file.suffix in (".yml", ".yaml"):
        try:
            return yaml_text.load(content)
        except yaml.YAMLError:
            pass  # a tag of Ansible's own
    return hashlib.sha256(content).hexdigest()


def _files(root: Path, role: str) -> list[Path]:
    """The files of the role's folder that run on a node."""
    folder = root / "roles" / role
    return sorted(
        file
        for file in folder.rglob("*")
        if file.is_file() and file.relative_to(folder).parts[0] not in _NO_PART and file.suffix != ".pyc"
    )


@cache
def _source(root: Path, role: str) -> str:
    """The role's files and its entry in the playbook as one text."""
    texts = [json.dumps(playbook.load().task(role))]
    for file in _files(root, role):
        content = _content(file)
        plain = isinstance(content, str)  # not YAML
        texts.append(file.read_text(encoding="utf-8", errors="replace") if plain else json.dumps(content))
    return "\n".join(texts)


@cache
def _install_source(root: Path, role: str) -> str:
    """install.yml of the role and those of its defaults that this uses, as one text."""
    folder = root / "roles" / role
    text = json.dumps(_content(folder / "tasks" / "install.yml"))
    defaults = _content(folder / "defaults" / "main.yml") if (folder / "defaults" / "main.yml").exists() else {}
    unused = dict(defaults or {})
    while more := [name for name in unused if re.search(rf"\b{name}\b", text)]:
        text += "".join("\n" + json.dumps(unused.pop(name)) for name in more)
    return text


def _plugins(root: Path, role: str) -> list[Path]:
    """The modules that the role's tasks name, what those import of module_utils, and every plugin of another kind."""
    python, text = sorted((root / "plugins").rglob("*.py")), _source(root, role)
    modules = [file for file in python if file.parent.name == "modules"]
    utilities = [file for file in python if file.parent.name == "module_utils"]
    used = _mentioned_files(modules, text)
    texts = [text, *(file.read_text(encoding="utf-8") for file in used)]
    other_plugins = [file for file in python if file not in modules and file not in utilities]
    while more := [file for file in _mentioned_files(utilities, "\n".join(texts)) if file not in used]:
        used += more
        texts += [file.read_text(encoding="utf-8") for file in more]
    return used + other_plugins


def _mentioned_files(files: Iterable[Path], text: str) -> list[Path]:
    return [file for file in files if re.search(rf"\b{re.escape(file.stem)}\b", text)]
