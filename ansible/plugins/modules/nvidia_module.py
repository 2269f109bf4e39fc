#!/usr/bin/python
"""The NVIDIA module that runs is the locked one: built for this kernel, nouveau kept off, loaded, or a reboot."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_module
short_description: Prove, build and load the locked NVIDIA kernel module
description:
  - The deny-list of other drivers is in the initramfs, which is made again where it is not.
  - The module of the locked version and flavour exists for the running kernel; DKMS is asked once more to build it
    where it does not.
  - With O(load), that module is loaded. Another one is taken out first, with the services that use it, which start
    again afterwards. Where a job uses the GPUs nothing is touched and the task fails; where the old module does not go, or
    another driver holds the GPUs, a reboot is asked for.
options:
  version: {description: The locked driver., type: str, required: true}
  flavour: {description: C(open) or C(proprietary)., type: str, choices: [open, proprietary]}
  kernel: {description: Release of the kernel that has to run., type: str, required: true}
  deny_file: {description: File that keeps other drivers off., type: path, required: true}
  load: {description: Whether the module is loaded., type: bool, default: true}
  rebooted:
    description: Whether the node was rebooted for it; asking again is an error then.
    type: bool
    default: false
  others:
    description: Drivers that take the GPUs before NVIDIA's does, in the order in which they can be taken out.
    type: list
    elements: str
    default: []
  modules:
    description: Modules that are loaded, the first one with what it needs.
    type: list
    elements: str
    default: [nvidia, nvidia-uvm]
  users:
    description: Services that use the module, in the order in which they are stopped.
    type: list
    elements: str
    default: []
  packages:
    description: Packages that may ask for a reboot in /run/reboot-required.pkgs.
    type: list
    elements: str
    default: []
author: gpuprov
"""

EXAMPLES = r"""
- name: Load the locked driver
  nvidia_module:
    version: 580.173.02
    flavour: open
    kernel: 6.8.0-1015-aws
    deny_file: /etc/modprobe.d/gpuprov-nvidia.conf
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
import re

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpuprov_kernel import Kernel, Wrong, last, text, unloaded

ABOVE = ("nvidia_fs", "gdrdrv", "nvidia_peermem", "nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia")
"""NVIDIA's modules and those that stand on them, in the order in which they can be taken out."""


class Node(Kernel):
    """What NVIDIA's module needs of the node."""

    def kernel(self):
        """The kernel that runs; Wrong where it is another one than has to."""
        running, locked = os.uname().release, self.params["kernel"]
        if running != locked:
            raise Wrong(
                f"the kernel moved: {running} runs, it was {locked} when the driver was installed. Boot {locked} again "
                "(GRUB_DEFAULT), or lock again with the new kernel"
            )
        return running

    def initramfs(self, release):
        """The deny-list is in the initramfs: nouveau would take the GPUs before the root file system is there."""
        image = f"/boot/initrd.img-{release}"
        if not os.path.exists(image) or not os.path.exists(self.params["deny_file"]):
            return
        if self.denied(image):
            return
        # two busy processors that are emulated took more than ten minutes
        status, output = self.change(f"made {image} again", "update-initramfs", "-u", "-k", release, seconds=1800)
        if status:
            raise Wrong(f"the initramfs can't be made again: {last(output)}")
        if not self.module.check_mode and not self.denied(image):
            raise Wrong(
                f"{self.params['deny_file']} is not in {image} although that was made again: nouveau would come back"
            )

    def denied(self, image):
        status, output = self.run("lsinitramfs", image, seconds=120)
        if status:
            raise Wrong(f"{image} cannot be read: {last(output)}")
        fresh = os.stat(image).st_mtime >= os.stat(self.params["deny_file"]).st_mtime
        return fresh and self.params["deny_file"].lstrip("/") in output.split()

    def built(self, release):
        """The locked module for this kernel, as modinfo shows it; DKMS is asked once where it is not there."""
        locked_version, fields = self.params["version"], self.modinfo(release, "nvidia")
        if fields.get("version") != locked_version and not self.module.check_mode:
            note = self.dkms(release, "nvidia[^/, ]*", re.escape(locked_version))
            fields = self.modinfo(release, "nvidia")
            if fields.get("version") != locked_version:
                have = f"version {fields['version']}" if fields.get("version") else "none"
                raise Wrong(
                    f"there is no NVIDIA module {locked_version} for kernel {release} ({have} is installed){note}"
                )
        is_open = "GPL" in fields.get("license", "")
        flavour = self.params["flavour"]
        if fields and flavour and is_open != (flavour == "open"):
            other = "open" if is_open else "proprietary"
            raise Wrong(f"the NVIDIA module for kernel {release} is the {other} one, the lock wants the {flavour} one")
        return fields

    def loaded(self, fields):
        """Whether the module in the kernel is the installed one: its source version tells builds and flavours apart."""
        if text("/sys/module/nvidia/version") != self.params["version"]:
            return False
        source = text("/sys/module/nvidia/srcversion")
        return None in (source, fields.get("srcversion")) or source == fields["srcversion"]

    def load(self, fields):
        """Bring the locked module in. Returns why a reboot is wanted, or an empty text."""
        strangers = [name for name in self.params["others"] if os.path.isdir(f"/sys/module/{name}")]
        loaded_modules = [name for name in ABOVE if os.path.isdir(f"/sys/module/{name}")]
        right = self.loaded(fields)
        if right and not strangers:
            loaded_modules = []
        elif loaded_modules or strangers:
            old = text("/sys/module/nvidia/version")
            reason = f"{', '.join(strangers)} holds the GPUs" if strangers else f"the module of driver {old} is loaded"
            if not self.take_out(loaded_modules + strangers, reason):
                return f"{reason} and does not let itself be unloaded"
        missing = [n for n in self.params["modules"] if not os.path.isdir("/sys/module/" + n.replace("-", "_"))]
        if missing or loaded_modules:
            names = missing or self.params["modules"]
            status, output = self.change(f"loaded {', '.join(names)}", "modprobe", "--all", *names, seconds=300)
            if status:
                raise Wrong(f"the driver's module can't be loaded: {unloaded(output)}")
        if loaded_modules:
            for unit in reversed(self.stopped):
                self.run("systemctl", "start", unit, seconds=900)
        return ""

    def take_out(self, names, reason):
        """Unload modules, their services stopped first. False where one does not go; Wrong where a job is at work."""
        self.stopped = []
        if self.module.check_mode:
            self.done.append(f"unloaded {', '.join(names)}: {reason}")
            return True
        for unit in self.params["users"]:
            if self.run("systemctl", "is-active", "--quiet", unit)[0] == 0:
                self.run("systemctl", "stop", unit, seconds=300)
                self.stopped.append(unit)
        at_work = users_of_gpus()
        if at_work:
            for unit in reversed(self.stopped):
                self.run("systemctl", "start", unit, seconds=900)
            raise Wrong(f"{reason}, and {'; '.join(at_work[:3])} uses the GPUs. Drain the node, then run again")
        for name in names:
            if self.run("modprobe", "-r", name)[0]:
                return False
        self.done.append(f"unloaded {', '.join(names)}: {reason}")
        return True

    def asked_for(self):
        """Why the distribution asks for a reboot because of our packages, or an empty text."""
        names = (text("/run/reboot-required.pkgs") or "").split()
        ours = sorted(set(names) & set(self.params["packages"]))
        return f"{', '.join(ours)} asks for one" if ours else ""


def users_of_gpus():
    """Processes that have a device of the GPUs open, as "python train.py (pid 123)"."""
    processes = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            fds = os.listdir(f"/proc/{pid}/fd")
            used = any(os.readlink(f"/proc/{pid}/fd/{fd}").startswith("/dev/nvidia") for fd in fds)
        except OSError:
            continue  # it has ended meanwhile
        if used:
            command_line = (text(f"/proc/{pid}/cmdline") or "").replace("\0", " ").strip()
            processes.append(f"{command_line[:80]} (pid {pid})")
    return processes


def main():
    """Prove the module, and load it."""
    name_list = {"type": "list", "elements": "str", "default": []}
    module = AnsibleModule(
        argument_spec={
            "version": {"type": "str", "required": True},
            "flavour": {"type": "str", "choices": ["open", "proprietary"]},
            "kernel": {"type": "str", "required": True},
            "deny_file": {"type": "path", "required": True},
            "load": {"type": "bool", "default": True},
            "rebooted": {"type": "bool", "default": False},
            "modules": {**name_list, "default": ["nvidia", "nvidia-uvm"]},
            "others": name_list,
            "users": name_list,
            "packages": name_list,
        },
        supports_check_mode=True,
    )
    node, reboot = Node(module), ""
    try:
        release = node.kernel()
        node.initramfs(release)
        fields = node.built(release)
        if module.params["load"]:
            reboot = node.load(fields) or node.asked_for()
        if reboot and module.params["rebooted"]:
            raise Wrong(f"the node was rebooted, and still {reboot}")
    except Wrong as error:
        module.fail_json(msg=str(error), done=node.done)
    module.exit_json(changed=bool(node.done), done=node.done, reboot=reboot)


if __name__ == "__main__":
    main()
