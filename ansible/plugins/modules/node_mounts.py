#!/usr/bin/python
"""The shared file systems of a node: a systemd mount unit for each, in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_mounts
short_description: Mount file systems of the network by systemd units, now and at boot
description:
  - Writes a mount unit for each file system, which boots never wait for, enables it and mounts.
  - Unmounts and removes units that it wrote earlier and that are not asked for any more.
  - Mounts over nothing that is there. A path that holds files, or at which something else is mounted, fails the task.
  - A file system that nobody has used yet (root's own, mode 0755, empty) is opened to everybody, as /tmp is. A bucket
    has no such rights.
  - A bucket whose process has ended is mounted anew.
options:
  mounts:
    description: The file systems.
    type: list
    elements: dict
    default: []
    suboptions:
      path: {description: Where., type: path, required: true}
      unit: {description: "The unit's name, systemd-escape --path --suffix=mount.", type: str, required: true}
      source: {description: What is mounted., type: str, required: true}
      type: {description: Its type for mount., type: str, required: true}
      options: {description: Mount options., type: str, required: true}
      shows_type: {description: "Its type in the kernel's table, where that is another one.", type: str}
      shows_source: {description: "What the kernel's table calls it, where that is something else; a leading C(*) stands
        for what is not known before.", type: str}
      access: {description: C(rw) or C(ro); it is read by the checks and not here., type: str}
      part: {description: The part of the lock that mounts it; it is read by the roles and not here., type: str}
  timeout:
    description: Seconds that mounting may take, now and at boot.
    type: int
    default: 60
  patience:
    description: Seconds in which a mount that fails is tried again. A new file system's name is not known at once.
    type: int
    default: 150
  units:
    description: Where units are.
    type: path
    default: /etc/systemd/system
author: gpuprov
"""

EXAMPLES = r"""
- name: Mount the file system
  node_mounts:
    mounts:
      - path: /efs
        unit: efs.mount
        source: fs-0123456789abcdef0.efs.us-east-1.amazonaws.com:/
        type: nfs4
        options: nfsvers=4.1,noresvport,_netdev
"""

RETURN = r"""
done:
  description: What was done, in words.
  type: list
  elements: str
  returned: always
"""

import errno
import os
import re
import stat
import subprocess
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpuprov_files import put

MARK = "# Written by gpuprov: file systems of the site's storage in cluster.yaml"
AGAIN_S = 10


def call(*command, timeout=60):
    """Exit status and everything that it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return 124, "no end after {0} s".format(timeout)
    return done.returncode, (done.stdout + done.stderr).strip()


def mounted():
    """Place → source and type of what is on top there. The kernel answers it: no file system is touched."""
    with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as stream:
        rows = [line.split(" ") for line in stream]
    return {plain(row[1]): (plain(row[0]), row[2]) for row in rows if len(row) > 3}


def shows(mount, mounted_row):
    """Whether what the kernel has there (source, type) is this file system."""
    source, kind = mount.get("shows_source") or mount["source"], mount.get("shows_type") or mount["type"]
    if not mounted_row or mounted_row[1] != kind:
        return False
    return mounted_row[0].endswith(source[1:]) if source.startswith("*") else mounted_row[0] == source


def abandoned(path, mounted_row):
    """Whether the process behind a file system in user space has ended: the kernel keeps the mount, and nobody answers."""
    if not mounted_row or not mounted_row[1].startswith("fuse"):
        return False
    code, output = call("stat", "--file-system", "--", path, timeout=10)
    return code not in (0, 124) and os.strerror(errno.ENOTCONN) in output


def plain(name):
    """The kernel writes a space in a name as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), name)


def text_of(mount, timeout):
    # systemd passes over keys that begin with X-: a later run reads them.
    keys = [("shows_source", "source", "X-ShowsSource="), ("shows_type", "type", "X-ShowsType=")]
    other = [line + mount[option] for option, default, line in keys if mount.get(option) not in (None, mount[default])]
    # nofail: remote-fs.target does not wait for it. _netdev is among the options: it waits for the network, and goes
    # before the network does.
    return "\n".join((
        MARK, "[Unit]", "Description={0} (gpuprov)".format(mount["source"]), "Wants=network-online.target",
        "After=network-online.target nss-lookup.target", *other, "", "[Mount]", "What=" + mount["source"],
        "Where=" + mount["path"], "Type=" + mount["type"], "Options={0},nofail".format(mount["options"]),
        "TimeoutSec={0}".format(timeout), "", "[Install]", "WantedBy=remote-fs.target", "",
    )).replace("%", "%%")  # fmt: skip


def ours(folder):
    """Unit → text of those that an earlier run wrote."""
    texts = {}
    for name in os.listdir(folder):
        if name.endswith(".mount") and not os.path.islink(os.path.join(folder, name)):
            with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as stream:
                text = stream.read()
            if text.startswith(MARK + "\n"):
                texts[name] = text
    return texts


def value(text, key, default=None):
    values = [line[len(key) + 1 :] for line in text.splitlines() if line.startswith(key + "=")]
    return values[0].replace("%%", "%") if values else default


def shown_of(text):
    """What the kernel shows of the mount of a unit that an earlier run wrote."""
    source, kind = value(text, "What"), value(text, "Type")
    return {"source": value(text, "X-ShowsSource", source), "type": value(text, "X-ShowsType", kind)}


def release(unit, text, timeout):
    """Unmount. What jobs still use, or what does not answer any more, is taken out of the way when they let go."""
    path = value(text, "Where")
    previous = mounted().get(path)
    code, _output = call("systemctl", "stop", "--", unit, timeout=timeout + 30)
    if previous and (code or mounted().get(path) == previous):
        code, output = call("umount", "--lazy", "--", path, timeout=30)
        if code:
            raise RuntimeError("{0} can't be unmounted: {1}".format(path, output))


def refuse_what_is_there(mount, mounts):
    """Raises RuntimeError where mounting would hide something."""
    path = mount["path"]
    if shows(mount, mounts.get(path)):
        return
    if path in mounts:
        raise RuntimeError(
            "{0} is mounted at {1}, where {2} is to be: unmount it, or name another path".format(
                mounts[path][0], path, mount["source"]
            )
        )
    if os.path.isdir(path) and os.listdir(path):
        raise RuntimeError(
            "{0} holds files on the root disk, which {1} would hide: move them away ({2})".format(
                path, mount["source"], ", ".join(sorted(os.listdir(path))[:3])
            )
        )


def start(mount, timeout, patience):
    """Mount it; raises RuntimeError with mount's own words."""
    deadline = time.monotonic() + patience
    call("systemctl", "daemon-reload")  # a run before may have been killed between writing the unit and this
    while True:
        code, output = call("systemctl", "start", "--", mount["unit"], timeout=timeout + 30)
        if code == 0:
            break
        if time.monotonic() > deadline:
            _code, log = call("journalctl", "--no-pager", "--output", "cat", "--lines", "8", "--unit", mount["unit"])
            log_text = " | ".join(line.strip() for line in log.splitlines() if line.strip())
            raise RuntimeError(
                "{0} is not mounted at {1}: {2}".format(mount["source"], mount["path"], log_text or output)
            )
        time.sleep(AGAIN_S)
    if not shows(mount, mounted().get(mount["path"])):
        raise RuntimeError("systemctl start ended well, and {0} is not at {1}".format(mount["source"], mount["path"]))


def open_to_everybody(mount):
    """Of a file system that nobody has used; one whose rights somebody has set stays as it is."""
    path = mount["path"]
    if mount.get("shows_type") == "fuse":  # its rights are options of the mount
        return False
    status = os.stat(path)
    if status.st_uid == 0 and stat.S_IMODE(status.st_mode) == 0o755 and not os.listdir(path):
        os.chmod(path, 0o1777)
        return True
    return False


def bring(module):
    """Bring the mounts to what was asked. Returns what was done; raises RuntimeError, OSError."""
    params, dry = module.params, module.check_mode
    folder, timeout = params["units"], params["timeout"]
    mounts_by_unit = {mount["unit"]: mount for mount in params["mounts"]}
    texts = {unit: text_of(mount, timeout) for unit, mount in mounts_by_unit.items()}
    previous, done, present = ours(folder), [], mounted()
    old = {unit: text for unit, text in previous.items() if texts.get(unit) != text}
    goes = {value(text, "Where"): shown_of(text) for text in old.values()}
    for mount in mounts_by_unit.values():
        path = mount["path"]
        if path not in goes or not shows(
            goes[path], present.get(path)
        ):  # what this run will unmount is in nobody's way
            refuse_what_is_there(mount, present)
    for unit, text in old.items():
        done.append("{0} {1}".format("unmounted" if unit not in texts else "changed", value(text, "Where")))
        if not dry:
            release(unit, text, timeout)
            if unit not in texts:
                call("systemctl", "--quiet", "disable", "--", unit)
                os.unlink(os.path.join(folder, unit))
    fresh = [unit for unit, text in texts.items() if previous.get(unit) != text]
    if not dry:
        for unit in fresh:
            put(module, os.path.join(folder, unit), texts[unit])
        if done or fresh:  # and what has gone is forgotten
            code, output = call("systemctl", "daemon-reload")
            if code:
                raise RuntimeError("systemctl daemon-reload: " + output)
    present = mounted()
    for unit, mount in mounts_by_unit.items():
        code, output = call("systemctl", "is-enabled", "--", unit)
        if output != "enabled":
            done.append("enabled {0} at boot".format(mount["path"]))
            if not dry:
                code, output = call("systemctl", "--quiet", "enable", "--", unit)
                if code:
                    raise RuntimeError("systemctl enable {0}: {1}".format(unit, output))
        if shows(mount, present.get(mount["path"])):
            if not abandoned(mount["path"], present[mount["path"]]):
                continue
            done.append("took the process of {0} for ended".format(mount["path"]))
            if not dry:
                release(unit, texts[unit], timeout)
                present.pop(mount["path"])
        if not dry:
            refuse_what_is_there(mount, present)  # once more, for what was below the one that went
        done.append("mounted {0} at {1}".format(mount["source"], mount["path"]))
        if not dry:
            start(mount, timeout, params["patience"])
            if open_to_everybody(mount):
                done.append("opened {0} to everybody".format(mount["path"]))
    return done


def main():
    """Bring the mounts to what was asked."""
    text = {"type": "str", "required": True}
    module = AnsibleModule(
        argument_spec={
            "mounts": {
                "type": "list", "elements": "dict", "default": [],
                "options": {
                    "path": {"type": "path", "required": True}, "unit": text, "source": text, "type": text,
                    "options": text, "shows_type": {"type": "str"}, "shows_source": {"type": "str"},
                    "access": {"type": "str"}, "part": {"type": "str"},
                },
            },
            "timeout": {"type": "int", "default": 60},
            "patience": {"type": "int", "default": 150},
            "units": {"type": "path", "default": "/etc/systemd/system"},
        },
        supports_check_mode=True,
    )  # fmt: skip
    try:
        done = bring(module)
    except (RuntimeError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(done), done=done)


if __name__ == "__main__":
    main()
