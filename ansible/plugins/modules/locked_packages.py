#!/usr/bin/python
"""Packages at exactly the versions of cluster.lock, held, in one apt transaction."""

from __future__ import annotations

DOCUMENTATION = r"""
module: locked_packages
short_description: Bring packages to exactly the versions of the lock, and hold them
description:
  - One C(apt-get install) for all packages that are not as locked, C(apt-mark hold) for those that are not held, and a
    look at dpkg afterwards. Nothing is called where all is as locked.
  - Before that, what a broken-off dpkg run left is finished or taken out.
  - Waits for apt's lock, checks the room on disk, tries again what may pass (a repository that answers 503, half a
    package), and says in plain words what stood in the way otherwise.
options:
  packages:
    description:
      - Packages of cluster.lock. C(name) and C(version), exact as apt writes it, are read; other keys are for others.
    type: list
    elements: dict
    required: true
  present:
    description: Packages of the distribution that have to be there at any version; they are not held.
    type: list
    elements: str
    default: []
  kernel_headers:
    description: Release of a kernel whose headers have to be there, for DKMS; nothing is installed where they are.
    type: str
  absent:
    description: Packages of earlier locks that this one has not; they are taken out where they are, once all that
      comes in their place is fetched.
    type: list
    elements: str
    default: []
  keep:
    description:
      - Regular expressions; installed packages of the distribution whose name matches are held at whatever version they
        are (the kernel's).
    type: list
    elements: str
    default: []
  hold:
    description: Whether the locked packages are held.
    type: bool
    default: true
  lock_timeout:
    description: Seconds to wait while something else has locked apt.
    type: int
    default: 300
  attempts:
    description: How often a fetch is tried that fails for a cause that may pass.
    type: int
    default: 4
  pause:
    description: Seconds before the second try; the pauses after that grow by as much.
    type: int
    default: 5
author: gpuprov
"""

EXAMPLES = r"""
- name: Install NCCL
  locked_packages:
    packages: "{{ gpuprov_stack.packages | selectattr('part', 'in', ['nccl']) }}"
"""

RETURN = r"""
installed:
  description: Packages that were brought to their version, as name=version.
  type: list
  elements: str
  returned: always
held:
  description: Packages that were put on hold.
  type: list
  elements: str
  returned: always
removed:
  description: Packages that apt took out because they can't be there beside the locked ones.
  type: list
  elements: str
  returned: always
repaired:
  description: What a broken-off run had left half done.
  type: list
  elements: str
  returned: always
"""

import os
import re

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpuprov_apt import AptError, apt_get, call, explained, retried
from ansible.module_utils.gpuprov_record import note

ARCHIVES = "/var/cache/apt/archives"
MARGIN_MIB = 32
"""Room that dpkg wants beside the packages, for its own database and the copies it keeps while it works."""
KERNEL = r"linux-image-(unsigned-)?\d"
HEADERS = "linux-headers-{}"
NOWHERE = ("", "un ", 0)


def status(module):
    """Name → (version, state, KiB) of every package; state is dpkg's: wanted, status, error ("ii ", "hi ", "iHR")."""
    _, native, _ = module.run_command(["dpkg", "--print-architecture"], check_rc=True)
    form = "${Package}\t${Version}\t${db:Status-Abbrev}\t${Architecture}\t${Installed-Size}\n"
    _, out, _ = module.run_command(["dpkg-query", "-W", "-f", form], check_rc=True)
    packages = {}
    for line in out.splitlines():
        name, version, state, architecture, size = line.split("\t")
        if architecture in (native.strip(), "all", ""):
            packages[name] = (version, state, int(size or 0))
    return packages


def is_there(entry, version=None):
    """Whether a package is installed whole, at that version where one is given."""
    return entry is not None and entry[1][1:3].strip() == "i" and version in (None, entry[0])


def repair(module, packages):
    """Finish what a broken-off dpkg run left. Returns what it was; raises AptError when it can't be finished."""
    unfinished = sorted(name for name, (_, state, _) in packages.items() if state[1] in "HUFWt" or state[2:3] == "R")
    try:
        pending = bool(os.listdir("/var/lib/dpkg/updates"))
    except OSError:
        pending = False
    if not (unfinished or pending) or module.check_mode:
        return unfinished
    wait = module.params["lock_timeout"]
    code, text = call(module, ["dpkg", "--force-confdef", "--force-confold", "--configure", "-a"], wait)
    # A package that dpkg had only half unpacked can't be configured: apt unpacks it again, if it is one of ours or
    # still to be had; else it is taken out, since apt refuses all work beside it.
    state = status(module)
    for name in [n for n, (_, s, _) in state.items() if s[2:3] == "R" and n not in locked(module)]:
        call(module, ["dpkg", "--force-remove-reinstreq", "--force-depends", "--remove", name], wait)
    if code and not any(s[2:3] == "R" for _, s, _ in state.values()) and not ours(module, state):
        raise explained(text, "dpkg --configure -a")
    return unfinished or ["dpkg's own database"]


def ours(module, state):
    """Whether all that is half done is of the lock, or of an earlier one: apt then finishes it with the rest."""
    known = {*locked(module), *module.params["absent"]}
    return all(name in known for name, (_, s, _) in state.items() if s[1] in "HUFWt")


def locked(module):
    return {package["name"]: package["version"] for package in module.params["packages"]}


def room(module, names, packages):
    """AptError when the disk has no room for these packages (name=version); also when a version is not to be had."""
    _, out, _err = module.run_command(["apt-cache", "show", *names], environ_update={"LC_ALL": "C"})
    known, download, unpacked = set(), 0, 0
    for record in out.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in record.splitlines() if ": " in line and line[0] != " ")
        name = fields.get("Package")
        if name is None or name in known:
            continue
        if "Size" not in fields:
            continue  # the entry of the installed version, which no repository has any more
        known.add(name)
        download += int(fields["Size"])
        unpacked += max(0, int(fields.get("Installed-Size", 0)) - packages.get(name, ("", "", 0))[2]) * 1024
    absent = [item for item in names if item.split("=")[0] not in known]
    if HEADERS.format(module.params["kernel_headers"]) in absent:
        raise AptError(no_headers(module), absent=True)
    if absent:
        raise AptError("; ".join(what_there_is(module, item) for item in absent), absent=True)
    needs = {}
    for path, size in ((ARCHIVES, download), ("/usr", unpacked)):
        device = os.stat(path).st_dev
        needs[device] = (needs.get(device, (path, 0))[0], needs.get(device, (path, 0))[1] + size)
    for path, size in needs.values():
        file_system = os.statvfs(path)
        free, required = file_system.f_bavail * file_system.f_frsize // 2**20, size // 2**20 + MARGIN_MIB
        if free < required:
            raise AptError(
                f"the disk is too full for {len(names)} packages: {free} MiB are free at {path}, {required} MiB are "
                "wanted. Make room, then run again"
            )


def no_headers(module):
    """The sentence for a kernel that DKMS can't build modules for."""
    release = module.params["kernel_headers"]
    return (
        f"the distribution's archive has no linux-headers-{release}, so DKMS can build no driver for the kernel that runs: "
        "archives keep the headers of their newest kernels alone. Start the machine from the distribution's current image, "
        f"or install that kernel's headers at /lib/modules/{release}/build, then run again"
    )


def what_there_is(module, item):
    """The sentence for a package that no repository has at the locked version."""
    name, _, version = item.partition("=")
    _, out, _ = module.run_command(["apt-cache", "madison", name], environ_update={"LC_ALL": "C"})
    rows = [[cell.strip() for cell in line.split("|")] for line in out.splitlines() if line.count("|") == 2]
    versions = list(dict.fromkeys(row[1] for row in rows))
    if not versions:
        return f"no repository of this node has {item}"
    return "no repository of this node has {} {}; there is {}".format(name, version, ", ".join(versions[:5]))


def install(module, names, obsolete, packages):
    """Bring packages (name=version) to where they have to be, take out those that are `obsolete`; a look at the lists again
    when they do not know a version."""
    wait = module.params["lock_timeout"]
    try:
        room(module, names, packages)
    except AptError as error:
        if not error.absent:
            raise
        retried(module, module.params["attempts"], module.params["pause"], lambda: apt_get(module, ["update"], wait))
        room(module, names, packages)
    outgoing = [f"{name}-" for name in obsolete]
    arguments = ["install", "--no-install-recommends", "--allow-downgrades", "--allow-change-held-packages", "-o",
             "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold", *names]  # fmt: skip
    if obsolete:
        # Two eras of a stack may own the same files and depend on each other's names: what goes has to be out before
        # what comes is unpacked, and what comes is on this node's disk before anything goes. Their settings go with them:
        # the apt preferences of an earlier driver would hold on to it.
        fetch = [*arguments, *outgoing, "--download-only"]
        retried(module, module.params["attempts"], module.params["pause"], lambda: apt_get(module, fetch, wait))
        code, text = call(module, ["dpkg", "--force-depends", "--force-remove-reinstreq", "--purge", *obsolete], wait)
        if code:
            raise explained(text, "dpkg --purge")
    retried(module, module.params["attempts"], module.params["pause"], lambda: apt_get(module, arguments, wait))


def hold(module, names):
    code, text = call(module, ["apt-mark", "hold", *names], module.params["lock_timeout"])
    if code:
        raise explained(text, "apt-mark hold")


def bring(module):
    """The work. Returns the module's result."""
    locked_versions, present = locked(module), [*module.params["present"], *headers(module)]
    previous = status(module)
    differing = [f"{n}={v}" for n, v in locked_versions.items() if not is_there(previous.get(n), v)]
    differing += [name for name in present if not is_there(previous.get(name))]
    obsolete = [
        n for n in module.params["absent"] if n not in locked_versions and previous.get(n, NOWHERE)[1][1] not in "nc"
    ]
    repaired, after = [], previous
    if differing or obsolete:
        repaired = repair(module, previous)
        if not module.check_mode:
            note("packages", differing)
            install(module, differing, obsolete, previous)
            after = status(module)
    loose = [n for n in to_hold(module, locked_versions, after) if after.get(n, NOWHERE)[1][0] != "h"]
    if loose and not module.check_mode:
        note("holds", loose)
        hold(module, loose)
    if (loose or differing or obsolete) and not module.check_mode:
        after = status(module)
        look_again(locked_versions, previous, after)
    return {
        "changed": bool(differing or obsolete or loose),
        "installed": differing,
        "held": loose,
        "removed": sorted(n for n in previous if is_there(previous[n]) and not is_there(after.get(n))),
        "repaired": repaired,
        "diff": {
            "before": "".join("{} {}\n".format(n, previous.get(n, ("absent",))[0]) for n in sorted(locked_versions)),
            "after": "".join(f"{n} {v}\n" for n, v in sorted(locked_versions.items())),
        },
    }


def headers(module):
    """The package with the kernel's headers, where they are not there; a kernel of one's own may have none."""
    release = module.params["kernel_headers"]
    has_headers = release is None or os.path.isdir(f"/lib/modules/{release}/build")
    return [] if has_headers else [HEADERS.format(release)]


def to_hold(module, locked_versions, state):
    """Names that have to be on hold. A hold is dpkg's wanted state, so the same look at dpkg shows it."""
    held_names = [n for n in sorted(state) if is_there(state[n]) and any(re.match(p, n) for p in module.params["keep"])]
    return [*(locked_versions if module.params["hold"] else ()), *held_names]


def look_again(locked_versions, previous, after):
    """AptError unless all is as locked, whatever apt has said, and no kernel came along that nobody asked for."""
    wrong = [
        "{} is {}, locked {}".format(n, after.get(n, ("not there",))[0], v)
        for n, v in locked_versions.items()
        if not is_there(after.get(n), v)
    ]
    if wrong:
        raise AptError("apt ended well, but not all is as locked: {}".format("; ".join(wrong)))
    kernels = [n for n in after if re.match(KERNEL, n) and is_there(after[n]) and not is_there(previous.get(n))]
    if any(name not in locked_versions for name in kernels):
        raise AptError(
            "the kernel moved: these packages brought {}, which the node would boot next, without the modules of "
            "the locked driver. Remove it, or lock again with that kernel".format(", ".join(kernels))
        )


def main():
    """Bring the packages to their versions."""
    module = AnsibleModule(
        argument_spec={
            "packages": {"type": "list", "elements": "dict", "required": True},
            "present": {"type": "list", "elements": "str", "default": []},
            "kernel_headers": {"type": "str"},
            "absent": {"type": "list", "elements": "str", "default": []},
            "keep": {"type": "list", "elements": "str", "default": []},
            "hold": {"type": "bool", "default": True},
            "lock_timeout": {"type": "int", "default": 300},
            "attempts": {"type": "int", "default": 4},
            "pause": {"type": "int", "default": 5},
        },
        supports_check_mode=True,
    )
    if not all(package.get("name") and package.get("version") for package in module.params["packages"]):
        module.fail_json(msg="a package without a name or a version is no package of the lock")
    try:
        module.exit_json(**bring(module))
    except AptError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
