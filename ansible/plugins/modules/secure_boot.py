#!/usr/bin/python
"""A machine whose kernel would refuse the driver's modules is named before anything is installed on it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: secure_boot
short_description: Refuse a machine whose Secure Boot would keep DKMS's modules out
description:
  - With Secure Boot on, Debian's and Ubuntu's kernels take signed modules alone. DKMS signs with a key of the machine's
    own, which the kernel does not know until a person confirms it at the machine's console.
  - Nothing is changed. A machine whose driver runs, or whose key is enrolled, passes.
author: gpuprov
"""

EXAMPLES = r"""
- name: Refuse a machine that would not load the driver
  secure_boot:
"""

RETURN = r"""
enabled:
  description: Whether Secure Boot is on; null where the firmware does not say, or the machine has no UEFI.
  type: bool
  returned: always
"""

import glob
import os

from ansible.module_utils.basic import AnsibleModule

VARIABLE = "/sys/firmware/efi/efivars/SecureBoot-*"
"""Four bytes of attributes, then 1 where it is on (UEFI specification 2.10, 3.3 Globally Defined Variables)."""
CERTIFICATES = ("/var/lib/dkms/mok.pub", "/var/lib/shim-signed/mok/MOK.der")
"""Of the key that DKMS signs with, on Debian and on Ubuntu (dkms(8), update-secureboot-policy(8))."""
KNOWN = ("is already enrolled", "is already in db", "is already in the built-in trusted keyring")
"""What `mokutil --test-key` says of a known one (Debian's mokutil 0.6.0); of another one "is not enrolled"."""
WHY = (
    "Secure Boot is on, and no key of this machine is enrolled: the driver's modules would not be loaded. Nothing was "
    "installed. Make the machine without Secure Boot (Azure: `gpuprov docs azure`, Trusted Launch; `gpuprov replace NODE` then "
    "makes this one anew), or enrol a key first (`gpuprov docs images 'Secure Boot'`)"
)


def enabled(pattern=VARIABLE):
    """Whether Secure Boot is on; None where that can't be read."""
    for path in glob.glob(pattern):
        try:
            with open(path, "rb") as stream:
                content = stream.read(5)
        except OSError:
            continue
        if len(content) == 5:
            return content[4] == 1
    return None


def enrolled(module):
    """Whether the firmware or the kernel knows the certificate of a key of this machine, by mokutil's words."""
    for path in CERTIFICATES:
        if os.path.exists(path):
            _, out, err = module.run_command(["timeout", "30", "mokutil", "--test-key", path], check_rc=False)
            if any(phrase in out + err for phrase in KNOWN):
                return True
    return False


def main():
    module = AnsibleModule(argument_spec={}, supports_check_mode=True)
    on = enabled()
    if on and not os.path.isdir("/sys/module/nvidia") and not enrolled(module):
        module.fail_json(msg=WHY, enabled=True)
    module.exit_json(changed=False, enabled=on)


if __name__ == "__main__":
    main()
