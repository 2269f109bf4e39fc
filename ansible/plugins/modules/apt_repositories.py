#!/usr/bin/python
"""Signed apt repositories whose keys have the fingerprints that the lock names."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_repositories
short_description: Write signed apt repositories with pinned keys
description:
  - Fetches the key of each repository, refuses it unless its full OpenPGP fingerprint is the pinned one, and writes a
    deb822 source that trusts that key for that repository alone. All repositories in one call.
  - A key file that is already there and has the pinned fingerprint is not fetched again.
options:
  repositories:
    description: The repositories of cluster.lock.
    type: list
    elements: dict
    required: true
    suboptions:
      name: {description: Name of the source file., type: str, required: true}
      uri: {description: URI of the repository., type: str, required: true}
      suite: {description: Suite; C(/) for a flat repository., type: str, required: true}
      components: {description: Components; empty for a flat repository., type: str, required: true}
      key_url: {description: Where the key is., type: str, required: true}
      fingerprint: {description: 40 hexadecimal digits., type: str, required: true}
  timeout:
    description: Seconds that one download may take.
    type: int
    default: 30
author: gpuprov
"""

EXAMPLES = r"""
- name: Sign what is installed
  apt_repositories:
    repositories: "{{ gpuprov_stack.repositories }}"
"""

RETURN = r"""
written:
  description: Files that were written.
  type: list
  elements: str
  returned: always
"""

import os
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import fetch_url

KEYS = "/etc/apt/keyrings"
SOURCES = "/etc/apt/sources.list.d"


def fingerprints(module, path):
    """The fingerprints of the primary keys in a file; empty where it holds none."""
    status, out, _ = module.run_command(["gpg", "--batch", "--with-colons", "--show-keys", path])
    found, primary = [], False
    for line in out.splitlines() if status == 0 else []:
        fields = line.split(":")
        if fields[0] in ("pub", "sub"):
            primary = fields[0] == "pub"
        elif fields[0] == "fpr" and primary:
            found.append(fields[9].upper())
    return found


def fetch_key(module, repository, path):
    """Download one key to `path` after its fingerprint was compared."""
    response, info = fetch_url(module, repository["key_url"], timeout=module.params["timeout"])
    if info["status"] != 200:
        module.fail_json(
            msg="repository {name}: the key {key_url} can't be fetched: {why}".format(why=info.get("msg"), **repository)
        )
    handle, fresh = tempfile.mkstemp(dir=module.tmpdir, suffix=".asc")
    with os.fdopen(handle, "wb") as stream:
        stream.write(response.read(1024 * 1024))
    seen = fingerprints(module, fresh)
    wanted = repository["fingerprint"].upper().replace(" ", "")
    if seen != [wanted]:
        module.fail_json(
            msg="repository {name}: the key at {key_url} is not the pinned one. Pinned: {fingerprint}. Found: {seen}. "
            "Either the vendor has changed its key (look for the announcement, then lock again) or somebody is in "
            "between.".format(seen=", ".join(seen) or "no OpenPGP key", **repository)
        )
    os.chmod(fresh, 0o644)
    module.atomic_move(fresh, path)


def source(repository, key):
    """The deb822 text of one repository."""
    lines = [
        "# Written by gpuprov: cluster.lock, repository {name}".format(**repository),
        "Types: deb",
        "URIs: {uri}".format(**repository),
        "Suites: {suite}".format(**repository),
    ]
    if repository["components"]:
        lines.append("Components: {components}".format(**repository))
    lines.append("Signed-By: " + key)
    return "\n".join(lines) + "\n"


def main():
    """Bring keys and sources to what the lock says."""
    spec = {name: {"type": "str", "required": True} for name in ("name", "uri", "suite", "components", "key_url")}
    # A fingerprint is public; without no_log=False the name `key…` would hide what the error has to show.
    spec["key_url"]["no_log"] = False
    spec["fingerprint"] = {"type": "str", "required": True}
    module = AnsibleModule(
        argument_spec={
            "repositories": {"type": "list", "elements": "dict", "required": True, "options": spec},
            "timeout": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    written = []
    for repository in module.params["repositories"]:
        key = os.path.join(KEYS, "gpuprov-{name}.asc".format(**repository))
        wanted = repository["fingerprint"].upper().replace(" ", "")
        if len(wanted) != 40:
            module.fail_json(msg="repository {name}: no full fingerprint is pinned".format(**repository))
        if not os.path.exists(key) or fingerprints(module, key) != [wanted]:
            written.append(key)
            if not module.check_mode:
                os.makedirs(KEYS, mode=0o755, exist_ok=True)
                fetch_key(module, repository, key)
        path = os.path.join(SOURCES, "gpuprov-{name}.sources".format(**repository))
        text = source(repository, key)
        current = None
        if os.path.exists(path):
            with open(path, encoding="utf-8") as stream:
                current = stream.read()
        if current != text:
            written.append(path)
            if not module.check_mode:
                handle, fresh = tempfile.mkstemp(dir=module.tmpdir)
                with os.fdopen(handle, "w", encoding="utf-8") as stream:
                    stream.write(text)
                os.chmod(fresh, 0o644)
                module.atomic_move(fresh, path)
    module.exit_json(changed=bool(written), written=written)


if __name__ == "__main__":
    main()
