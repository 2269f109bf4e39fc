#!/usr/bin/python
"""/etc/gpuprov/node.json: the roles that a node was configured by."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_stamp
short_description: Record which roles were installed and configured on a node
description:
  - Sets the entries of the roles that ran in O(path) and keeps those of other roles.
  - Entries of roles that are not in O(roles) are removed, because they do not apply to the node any more.
options:
  node:
    description: Name of the node.
    type: str
    required: true
  roles:
    description: Role name to its C(digest), C(installed) and C(configured), for all roles that apply to the node.
    type: dict
    required: true
  ran:
    description: Names of the roles that ran; V(all) stands for all of O(roles).
    type: list
    elements: str
    default: [all]
  configured:
    description: Whether configure.yml of those roles ran too. An image builder runs install.yml alone.
    type: bool
    default: true
  path:
    description: The file.
    type: path
    default: /etc/gpuprov/node.json
author: gpuprov
"""

EXAMPLES = r"""
- name: Record what this image has installed
  node_stamp:
    node: image
    roles: "{{ gpuprov_stamps }}"
    configured: false
"""

RETURN = r"""
recorded:
  description: Names of the roles whose entry is of this run.
  type: list
  elements: str
  returned: always
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpuprov_files import put


def recorded(path):
    """Text of the file and its entries. A file of another format has none."""
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
    except FileNotFoundError:
        return "", {}
    try:
        entries = json.loads(text)["roles"]
        return text, entries if isinstance(entries, dict) else {}
    except (ValueError, KeyError, TypeError):
        return text, {}


def updated(entries, roles, ran, configured):
    """The entries afterwards."""
    everything = "all" in ran
    updated_entries = {}
    for name, stamp in roles.items():
        if everything or name in ran:
            updated_entries[name] = dict(stamp) if configured else dict(stamp, configured=None)
        elif name in entries:
            updated_entries[name] = entries[name]
    return updated_entries


def main():
    """Bring the file up to date."""
    module = AnsibleModule(
        argument_spec={
            "node": {"type": "str", "required": True},
            "roles": {"type": "dict", "required": True},
            "ran": {"type": "list", "elements": "str", "default": ["all"]},
            "configured": {"type": "bool", "default": True},
            "path": {"type": "path", "default": "/etc/gpuprov/node.json"},
        },
        supports_check_mode=True,
    )
    path, roles, ran = module.params["path"], module.params["roles"], module.params["ran"]
    previous, entries = recorded(path)
    after = updated(entries, roles, ran, module.params["configured"])
    text = json.dumps({"node": module.params["node"], "roles": after}, indent=1, sort_keys=True) + "\n"
    if text != previous and not module.check_mode:
        put(module, path, text)
    recorded_roles = sorted(name for name in roles if "all" in ran or name in ran)
    diff = {"before": previous, "after": text, "before_header": path, "after_header": path}
    module.exit_json(changed=text != previous, recorded=recorded_roles, diff=diff)


if __name__ == "__main__":
    main()
