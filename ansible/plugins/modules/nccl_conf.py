#!/usr/bin/python
"""/etc/nccl.conf from what the node shows: devices, GID and partition index, interface, transport."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_conf
short_description: Write NCCL's configuration from what the node shows
description:
  - Picks the RDMA ports of the right kind that are active and not the node's own way to the world, and writes them down
    by exact name, with GID index (RoCE) or partition index (InfiniBand) where the node shows that they are needed.
  - The transport is pinned, so that a job which can't use it fails; silently slow sockets are worse.
  - Lines of others in the file are kept, below ours; NCCL takes the first line of a name. An image's own service may
    have written a topology file there.
  - Our lines alone are in O(block) too, for the unit that puts them back where such a service writes O(dest) at boot.
options:
  dest: {description: The file., type: path, default: /etc/nccl.conf}
  block: {description: File with our lines alone., type: path, default: /etc/gpuprov/nccl.conf}
  kind: {description: The machine's kind of network., type: str, required: true}
  ports:
    description: How many ports the machine has for training traffic; 0 where that is not known.
    type: int
    default: 0
  pci:
    description: PCI addresses of those ports, where they are known; then other cards are for storage and management.
    type: list
    elements: str
    default: []
  efa: {description: Whether EFA's parts are in the lock., type: bool, default: false}
  devices:
    description: RDMA devices that a person has chosen in place of what the node shows.
    type: list
    elements: str
    default: []
  topology:
    description: NCCL's topology file of the machine type; empty where the guest sees its PCI switches.
    type: str
    default: ""
  extra: {description: Further variables of NCCL., type: dict, default: {}}
  root: {description: Folder in place of /., type: path, default: /}
author: gpuprov
"""

EXAMPLES = r"""
- name: Tell NCCL about the network
  nccl_conf: {kind: infiniband, ports: 8}
"""

RETURN = r"""
variables:
  description: What NCCL is told.
  type: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpuprov_files import put, read
from ansible.module_utils.gpuprov_rdma import Undecided, settings

FIRST = "# gpuprov: what this node shows, found when it was configured"
LAST = "# gpuprov: end; lines below are others'"


def others(current):
    """The lines of a file that are not ours."""
    lines = current.splitlines()
    if FIRST in lines and LAST in lines:
        start, end = lines.index(FIRST), lines.index(LAST)
        lines = lines[:start] + lines[end + 1 :]
    return [line for line in lines if line.strip()]


def main():
    """Write the file when it is not as the node shows."""
    module = AnsibleModule(
        argument_spec={
            "dest": {"type": "path", "default": "/etc/nccl.conf"},
            "block": {"type": "path", "default": "/etc/gpuprov/nccl.conf"},
            "kind": {"type": "str", "required": True},
            "ports": {"type": "int", "default": 0},
            "pci": {"type": "list", "elements": "str", "default": []},
            "efa": {"type": "bool", "default": False},
            "devices": {"type": "list", "elements": "str", "default": []},
            "topology": {"type": "str", "default": ""},
            "extra": {"type": "dict", "default": {}},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    params = module.params
    try:
        variables, warnings = settings(
            params["kind"], params["ports"], params["efa"], params["devices"], params["root"], tuple(params["pci"]),
            params["topology"],
        )  # fmt: skip
    except Undecided as error:
        module.fail_json(msg=f"NCCL's configuration can't be derived: {error}")
    variables |= {name: str(value) for name, value in params["extra"].items()}
    for sentence in warnings:
        module.warn(sentence)
    current = read(params["dest"]) or ""
    ours = [FIRST, *(f"{name}={value}" for name, value in sorted(variables.items())), LAST]
    text = "\n".join([*ours, *others(current)]) + "\n"
    texts = {params["block"]: "\n".join(ours) + "\n", params["dest"]: text}
    changed = [path for path, content in texts.items() if read(path) != content]
    for path in changed if not module.check_mode else ():
        put(module, path, texts[path])
    diff = {"before_header": params["dest"], "after_header": params["dest"], "before": current, "after": text}
    module.exit_json(changed=bool(changed), variables=variables, diff=diff)


if __name__ == "__main__":
    main()
