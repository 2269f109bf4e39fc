#!/usr/bin/python
"""Files of a program of a head node, as one set: those of Prometheus are in place only if its tools accept them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: prometheus_files
short_description: Put a set of files of Prometheus and Alertmanager, or of Grafana, in place
description:
  - Takes the files of a program out of a tar. Files of an earlier set that the new one does not have are removed.
  - Of Prometheus it adds the receivers to alertmanager.yml, and asks C(promtool) and C(amtool) whether all files are
    right. What is refused changes nothing, and Prometheus goes on with the files that are there.
options:
  archive: {description: The tar on this node., type: path, required: true}
  program: {description: The folder of the tar., type: str, choices: [prometheus, grafana], required: true}
  folder: {description: Where the files belong., type: path, required: true}
  group: {description: The group that may read them; nobody else may., type: str, required: true}
  receivers:
    description:
      - JSON. Receivers of Alertmanager, each with a C(name) of the routes. Those that are not named stay without an address.
    type: str
    default: "[]"
author: gpuprov
"""

EXAMPLES = r"""
- name: Put rules and targets in place
  prometheus_files:
    archive: /etc/gpuprov/prometheus.tar
    program: prometheus
    folder: /etc/gpuprov/prometheus
    group: prometheus
"""

RETURN = r"""
written:
  description: Files that were written or removed.
  type: list
  elements: str
  returned: always
"""

import grp
import json
import os
import re
import subprocess
import tarfile
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpuprov_files import put
from ansible.module_utils.gpuprov_record import note_file

ALERTMANAGER = "alertmanager.yml"
MODE = 0o640
CHECK_S = 120
SECRET = 6
"""Characters from which on a value of a receiver is kept out of messages."""


def wanted_files(archive, program, receivers):
    """Path below the folder → text."""
    top = program + "/"
    with tarfile.open(archive) as tar:
        members = [member for member in tar if member.isfile() and member.name.startswith(top)]
        files = {member.name[len(top) :]: tar.extractfile(member).read().decode() for member in members}
    if ALERTMANAGER not in files:
        return files
    routes = json.loads(files[ALERTMANAGER])  # JSON is YAML, and a node has no module for YAML
    by_name = {receiver.get("name"): receiver for receiver in receivers}
    routes["receivers"] = [by_name.get(receiver["name"], receiver) for receiver in routes["receivers"]]
    files[ALERTMANAGER] = json.dumps(routes, indent=1) + "\n"
    return files


def write(folder, files):
    """Write a set of files below a folder."""
    for name, text in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(text)


def complaints(folder):
    """What promtool and amtool say against a set of Prometheus' files; empty where they accept it."""
    commands = (
        ("", ["promtool", "check", "config", os.path.join(folder, "prometheus.yml")]),
        ("receivers (monitoring.prometheus.receivers): ", ["amtool", "check-config", os.path.join(folder, ALERTMANAGER)]),
    )
    for about, command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{about}{command[0]}: {error}"
        if done.returncode != 0:
            return about + (done.stdout + done.stderr).replace(folder + "/", "").strip()[-2000:]
    return ""


def texts_in(value):
    """Every text in a document."""
    if isinstance(value, str):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_in(inner)


def without(message, receivers):
    """A message without what stands in the receivers, which may be secrets. In backquotes Alertmanager cuts it short."""
    for text in sorted(texts_in(receivers), key=len, reverse=True):
        if len(text) >= SECRET:
            message = message.replace(text, "...")
    return re.sub(r"`[^`]*`", "`...`", message)


def present_files(folder):
    """Path below the folder → (text, mode, group id) of the files that are there."""
    present = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            status = os.lstat(path)
            with open(path, encoding="utf-8", errors="surrogateescape") as stream:
                present[os.path.relpath(path, folder)] = (stream.read(), status.st_mode & 0o7777, status.st_gid)
    return present


def main():
    module = AnsibleModule(
        argument_spec={
            "archive": {"type": "path", "required": True},
            "program": {"type": "str", "choices": ["prometheus", "grafana"], "required": True},
            "folder": {"type": "path", "required": True},
            "group": {"type": "str", "required": True},
            "receivers": {"type": "str", "default": "[]", "no_log": True},
        },
        supports_check_mode=True,
    )
    folder, archive = module.params["folder"], module.params["archive"]
    try:
        group = grp.getgrnam(module.params["group"]).gr_gid
    except KeyError:  # its package is not there yet
        group = None
    if module.check_mode and (group is None or not os.path.exists(archive)):
        module.exit_json(changed=True, written=[folder])
    if group is None:
        module.fail_json(msg=f"there is no group {module.params['group']}")
    receivers = json.loads(module.params["receivers"])
    program = module.params["program"]
    files = wanted_files(archive, program, receivers)
    present = present_files(folder)
    changed = [name for name, text in files.items() if present.get(name) != (text, MODE, group)]
    obsolete = [name for name in present if name not in files]
    paths = [os.path.join(folder, name) for name in changed + obsolete]
    if not paths or module.check_mode:
        module.exit_json(changed=bool(paths), written=paths)
    refused = ""
    if program == "prometheus":  # Grafana has no tool that checks its files: it does not start with a wrong one
        with tempfile.TemporaryDirectory(dir=module.tmpdir) as trial:
            write(trial, files)
            refused = complaints(trial)
    if refused:
        module.fail_json(msg=f"the files are refused, and those that are there stay: {without(refused, receivers)}")
    for name in changed:
        path = os.path.join(folder, name)
        put(module, path, files[name], MODE)
        os.chown(path, 0, group)
    for name in obsolete:
        path = os.path.join(folder, name)
        note_file(path)
        os.unlink(path)
    for parent, _, _ in os.walk(folder):
        os.chown(parent, 0, group)
        os.chmod(parent, 0o750)
    module.exit_json(changed=True, written=paths)


if __name__ == "__main__":
    main()
