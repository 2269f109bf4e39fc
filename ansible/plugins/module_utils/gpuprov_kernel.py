"""A node's kernel modules: what is installed, what DKMS makes of it. For modules that bring one of them in.

Written for the Python of the nodes (3.10 and later), with nothing but the standard library.
"""

from __future__ import annotations

import os
import re


class Wrong(Exception):
    """What stands in the way, for a person."""


def text(path):
    """A small file's text; None where it can't be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return stream.read().strip()
    except OSError:
        return None


def last(output):
    """The last line of what a program said."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


UNKNOWN_KEY = ("Key was rejected by service", "Required key not available")
"""modprobe's words where the kernel takes signed modules alone and does not know the key (EKEYREJECTED, ENOKEY)."""


def unloaded(output):
    """Why modprobe loaded nothing, as the end of a sentence."""
    if any(phrase in output for phrase in UNKNOWN_KEY):
        return (
            f"{last(output)}. Secure Boot is on, and the module's key is not enrolled. Enrol it (`mokutil --import "
            "/var/lib/dkms/mok.pub`, on Ubuntu /var/lib/shim-signed/mok/MOK.der, then confirm it on the console at the next "
            "boot), or switch Secure Boot off"
        )
    return f"{last(output)}. The kernel log has the reason (dmesg)"


class Kernel:
    """The node's kernel side: what there is, what was done to it (`done`, one sentence each)."""

    def __init__(self, module):
        self.module, self.params, self.done = module, module.params, []

    def run(self, *command, seconds=60):
        """Exit status and everything that it said."""
        status, out, err = self.module.run_command(["timeout", str(seconds), *command], environ_update={"LC_ALL": "C"})
        return status, (out + "\n" + err).strip()

    def change(self, sentence, *command, seconds=600):
        """A call that changes something; none in check mode."""
        self.done.append(sentence)
        return (0, "") if self.module.check_mode else self.run(*command, seconds=seconds)

    def modinfo(self, release, name):
        """modinfo's fields of a module for a kernel; empty where there is none."""
        status, output = self.run("modinfo", "-k", release, name)
        rows = [line.split(":", 1) for line in output.splitlines() if ":" in line] if status == 0 else []
        return {key.strip(): value.strip() for key, value in reversed(rows)}

    def dkms(self, release, name, version):
        """Have DKMS build a module. `name` and `version` are patterns. Returns why it did not, as the end of a sentence."""
        if not os.path.exists("/usr/sbin/dkms"):
            return "; it comes as a package for that kernel, and none is there"
        _, status = self.run("dkms", "status")
        known = re.search(rf"^({name})[/, ]+({version})(?![\w.])", status, re.M)
        if known is None:
            return f"; DKMS knows no source of it: {last(status) or 'it has none at all'}"
        if not os.path.isdir(f"/lib/modules/{release}/build"):
            return f"; DKMS can't build it without the kernel's headers: install linux-headers-{release}"
        source = f"{known[1]}/{known[2]}"
        command = ("dkms", "install", "--force", source, "-k", release)
        code, output = self.change(f"DKMS built {source} for {release}", *command, seconds=1800)
        if code == 0:
            return "; DKMS says that it is built"
        log = text(f"/var/lib/dkms/{source}/build/make.log") or output
        errors = [line for line in log.splitlines() if re.search(r"error|Error|failed", line)]
        return "; DKMS can't build it: {}".format(" / ".join(errors[:3]) or last(log))
