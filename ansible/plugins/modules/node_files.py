#!/usr/bin/python
"""Several configuration files of a node in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_files
short_description: Write several files with given content, in one call
description:
  - Writes each file whole or not at all, with its folder where that is missing; removes those that must not be there.
  - One call for all files of a role, because each call costs a round trip.
options:
  files:
    description: The files. O(files[].content) is text.
    type: list
    elements: dict
    default: []
    suboptions:
      dest: {description: Absolute path., type: path, required: true}
      content: {description: The whole text., type: str, required: true}
      mode: {description: Octal mode., type: str, default: "0644"}
  absent:
    description: Paths of files that must not be there.
    type: list
    elements: path
    default: []
author: gpuprov
"""

EXAMPLES = r"""
- name: Load the module at boot
  node_files:
    files:
      - {dest: /etc/modules-load.d/gpuprov-efa.conf, content: "efa\n"}
"""

RETURN = r"""
written:
  description: Files that were written, given another mode, or removed.
  type: list
  elements: str
  returned: always
"""

import os
import stat

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpuprov_files import put
from ansible.module_utils.gpuprov_record import note_file


def read(path):
    """The text of a file, None where there is none."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def differs(item):
    """Whether a file is not there as asked: content, mode, owner root, and no link."""
    if read(item["dest"]) != item["content"]:
        return True
    status = os.lstat(item["dest"])
    return (
        not stat.S_ISREG(status.st_mode) or stat.S_IMODE(status.st_mode) != int(item["mode"], 8) or status.st_uid != 0
    )


def write(module, item):
    note_file(item["dest"], item["content"])  # before a link is gone
    if os.path.islink(item["dest"]):
        os.unlink(item["dest"])
    put(module, item["dest"], item["content"], int(item["mode"], 8))
    os.chown(item["dest"], 0, 0)


def main():
    """Bring the files to what was asked."""
    file = {"dest": {"type": "path", "required": True}, "content": {"type": "str", "required": True}}
    file["mode"] = {"type": "str", "default": "0644"}
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "list", "elements": "dict", "default": [], "options": file},
            "absent": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    written, diffs = [], []
    try:
        for item in module.params["files"]:
            if differs(item):
                previous = read(item["dest"]) or ""
                diffs.append({"before": previous, "after": item["content"], "before_header": item["dest"],
                              "after_header": item["dest"]})  # fmt: skip
                written.append(item["dest"])
                if not module.check_mode:
                    write(module, item)
        for path in module.params["absent"]:
            if os.path.lexists(path):
                written.append(path)
                if not module.check_mode:
                    note_file(path)
                    os.unlink(path)
    except OSError as error:
        module.fail_json(msg=str(error), written=written)
    module.exit_json(changed=bool(written), written=written, diff=diffs)


if __name__ == "__main__":
    main()
