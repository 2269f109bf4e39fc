#!/usr/bin/python
"""The EFA module that runs is the installed one: built by DKMS for this kernel, loaded afresh, or a reboot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: efa_module
short_description: Have the installed EFA kernel module run, not the kernel's own
description:
  - A kernel has an EFA driver of its own, which is loaded at boot. AWS's package only builds another one, for kernels
    whose headers are there; C(modprobe) then does nothing, because a module of that name is loaded.
  - DKMS is asked once to build the module where there is none of it. Where another one than the installed runs, it is
    taken out and loaded afresh; where it does not go, a reboot is asked for.
options:
  rebooted:
    description: Whether the node was rebooted for it; asking again is an error then.
    type: bool
    default: false
author: gpuprov
"""

EXAMPLES = r"""
- name: Have the installed EFA module run
  efa_module:
"""

RETURN = r"""
done:
  description: What was done, one sentence each.
  type: list
  elements: str
  returned: always
reboot:
  description: Why the node has to be rebooted; empty where it does not.
  type: str
  returned: always
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpuprov_kernel import Kernel, Wrong, last, text, unloaded

NAME = "efa"


class Node(Kernel):
    """What EFA's module needs of the node."""

    def installed(self, release):
        """modinfo's fields of the module; empty where it is the kernel's own, or none."""
        fields = self.modinfo(release, NAME)
        return {} if f"/lib/modules/{release}/kernel/" in fields.get("filename", "") else fields

    def built(self, release):
        """The module that AWS's package brings, for this kernel; DKMS is asked once where it is not there."""
        fields = self.installed(release)
        if not fields:
            build_note = self.dkms(release, NAME, r"[^,: ]+")
            fields = self.installed(release)
            if not fields and not self.module.check_mode:
                raise Wrong(f"there is no EFA module for kernel {release} but the kernel's own{build_note}")
        return fields

    def load(self, fields):
        """Bring the installed module in. Returns why a reboot is wanted, or an empty text."""
        running = text(f"/sys/module/{NAME}/srcversion")
        if running is not None and running == fields.get("srcversion"):
            return ""
        if os.path.isdir(f"/sys/module/{NAME}"):
            code, output = self.change("unloaded the EFA module that is not the installed one", "modprobe", "-r", NAME)
            if code:
                self.done.pop()
                return (
                    "another EFA module than the installed one runs and does not let itself be unloaded: "
                    f"{last(output)}"
                )
        code, output = self.change("loaded the installed EFA module", "modprobe", NAME)
        if code:
            raise Wrong(f"EFA's module can't be loaded: {unloaded(output)}")
        return ""


def main():
    """Build and load the module."""
    module = AnsibleModule(argument_spec={"rebooted": {"type": "bool", "default": False}}, supports_check_mode=True)
    node, reboot = Node(module), ""
    try:
        reboot = node.load(node.built(os.uname().release))
        if reboot and module.params["rebooted"]:
            raise Wrong(f"the node was rebooted, and still {reboot}")
    except Wrong as error:
        module.fail_json(msg=str(error), done=node.done)
    module.exit_json(changed=bool(node.done), done=node.done, reboot=reboot)


if __name__ == "__main__":
    main()
