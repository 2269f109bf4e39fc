#!/usr/bin/python
"""Signed apt repositories whose keys have the fingerprints that the lock names."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_repositories
short_description: Write signed apt repositories with pinned keys, and read their package lists
description:
  - Fetches the key of each repository, refuses it unless its full OpenPGP fingerprint is the pinned one and it has not
    expired, and writes a deb822 source that trusts that key for that repository alone. All repositories in one call.
  - A key file that is already there and has the pinned fingerprint is not fetched again.
  - Of a repository with C(archives) a local one is made; each archive and each package of it has to have the SHA-256 of
    the lock. apt trusts that folder without a signature, since nothing comes there that was not compared.
  - Then the package lists are read, when a source has changed or they are older than C(valid_time). A repository of the
    lock that does not answer is an error, another one on the node only a warning.
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
      archives:
        description: A vendor's files with packages in them, in place of an apt repository.
        type: list
        elements: dict
        default: []
        suboptions:
          url: {description: Address of the file., type: str, required: true}
          folder: {description: Where in it the packages lie; empty when it is one., type: str, required: true}
          sha256: {description: Of the file., type: str, required: true}
          size: {description: Bytes of the file., type: int, required: true}
          signature: {description: Address of its signature; it was verified when it was locked., type: str}
          basis: {description: Why the file is trusted., type: str}
      packages:
        description: The packages that are wanted of the archives.
        type: list
        elements: dict
        default: []
        suboptions:
          name: {description: Name of the package., type: str, required: true}
          version: {description: Exact version., type: str, required: true}
          sha256: {description: Of the .deb file., type: str, required: true}
  timeout:
    description: Seconds that one download may take.
    type: int
    default: 30
  valid_time:
    description: Seconds after which package lists are read again.
    type: int
    default: 86400
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
updated:
  description: Whether the package lists were read.
  type: bool
  returned: always
"""

import os
import tempfile
import time

from ansible.module_utils import gpuprov_archive
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpuprov_apt import AptError, read_lists, retried
from ansible.module_utils.gpuprov_files import put
from ansible.module_utils.gpuprov_record import note_file
from ansible.module_utils.urls import fetch_url

KEYS = "/etc/apt/keyrings"
SOURCES = "/etc/apt/sources.list.d"
READ = "/var/lib/apt/lists/gpuprov-read"
"""Its time says when we last read the lists; those that apt has can be older than our sources."""


def keys(module, path):
    """The primary keys in a file, as (fingerprint, time when it expires or 0); empty where it has none."""
    status, out, _ = module.run_command(["gpg", "--batch", "--with-colons", "--show-keys", path])
    primary_keys, expires = [], None
    for line in out.splitlines() if status == 0 else []:
        fields = line.split(":")
        if fields[0] in ("pub", "sub"):
            expires = int(fields[6] or 0) if fields[0] == "pub" else None
        elif fields[0] == "fpr" and expires is not None:
            primary_keys.append((fields[9].upper(), expires))
            expires = None
    return primary_keys


def is_pinned(module, repository, path):
    """Whether a file holds exactly the pinned key and it has not expired."""
    fingerprint = repository["fingerprint"].upper().replace(" ", "")
    primary_keys = keys(module, path)
    return [print_ for print_, _ in primary_keys] == [fingerprint] and not 0 < primary_keys[0][1] < time.time()


def download(module, repository):
    """The key of a repository in a temporary file. AptError when it can't be had."""
    response, info = fetch_url(module, repository["key_url"], timeout=module.params["timeout"])
    if info["status"] not in (200, None):  # a key that travels in the lock (data:) is answered without a status
        reason = "status {status}: {msg}".format(**info) if info["status"] > 0 else info.get("msg")
        # 404 and its like do not pass; no answer and 5xx may
        passing = info["status"] in (-1, 429) or info["status"] >= 500
        raise AptError(
            "repository {name}: the key {key_url} can't be fetched: {0}".format(reason, **repository), passing
        )
    handle, fresh = tempfile.mkstemp(dir=module.tmpdir, suffix=".asc")
    with os.fdopen(handle, "wb") as stream:
        stream.write(response.read(1024 * 1024))
    return fresh


def fetch_key(module, repository, path):
    """Bring one key to `path` after its fingerprint was compared."""
    fresh = retried(module, module.params["attempts"], module.params["pause"], lambda: download(module, repository))
    if not is_pinned(module, repository, fresh):
        primary_keys = keys(module, fresh)
        fingerprint = repository["fingerprint"].upper().replace(" ", "")
        if [print_ for print_, _ in primary_keys] == [fingerprint]:
            raise AptError(
                "repository {name}: the key at {key_url} expired on {0}. The vendor has a newer one, or the node's "
                "clock is wrong (it says {1}); look for the announcement, then lock again".format(
                    time.strftime("%Y-%m-%d", time.gmtime(primary_keys[0][1])), time.strftime("%Y-%m-%d"), **repository
                )
            )
        raise AptError(
            "repository {name}: the key at {key_url} is not the pinned one. Pinned: {fingerprint}. Found: {0}. "
            "Either the vendor has changed its key (look for the announcement, then lock again) or somebody is in "
            "between.".format(", ".join(print_ for print_, _ in primary_keys) or "no OpenPGP key", **repository)
        )
    os.chmod(fresh, 0o644)
    with open(fresh, "rb") as stream:
        note_file(path, stream.read())
    module.atomic_move(fresh, path)


def source(repository, key):
    """The deb822 text of one repository. AptError for archives with another address than the folder made of them: apt
    would trust it without a signature."""
    if repository["archives"] and repository["uri"] != gpuprov_archive.address(repository):
        raise AptError(
            "repository {name}: archives are read from {0}, but the lock has {uri}. gpuprov writes no such lock: find out "
            "who changed it, then lock again".format(gpuprov_archive.address(repository), **repository)
        )
    lines = [
        "# Written by gpuprov: cluster.lock, repository {name}".format(**repository),
        "Types: deb",
        "URIs: {uri}".format(**repository),
        "Suites: {suite}".format(**repository),
    ]
    if repository["components"]:
        lines.append("Components: {components}".format(**repository))
    # What lies in a folder of archives was compared file by file with the lock.
    lines.append("Trusted: yes" if repository["archives"] else "Signed-By: " + key)
    return "\n".join(lines) + "\n"


def main():
    """Bring keys and sources to what the lock says."""
    spec = {name: {"type": "str", "required": True} for name in ("name", "uri", "suite", "components", "key_url")}
    # A fingerprint is public; without no_log=False the name `key…` would hide what the error has to show.
    spec["key_url"]["no_log"] = False
    spec["fingerprint"] = {"type": "str", "required": True}
    archive = {name: {"type": "str", "required": True} for name in ("url", "folder", "sha256")}
    archive.update(size={"type": "int", "required": True}, signature={"type": "str"}, basis={"type": "str"})
    spec["archives"] = {"type": "list", "elements": "dict", "default": [], "options": archive}
    package = {name: {"type": "str", "required": True} for name in ("name", "version", "sha256")}
    spec["packages"] = {"type": "list", "elements": "dict", "default": [], "options": package}
    module = AnsibleModule(
        argument_spec={
            "repositories": {"type": "list", "elements": "dict", "required": True, "options": spec},
            "timeout": {"type": "int", "default": 30},
            "valid_time": {"type": "int", "default": 86400},
            "lock_timeout": {"type": "int", "default": 300},
            "attempts": {"type": "int", "default": 4},
            "pause": {"type": "int", "default": 5},
        },
        supports_check_mode=True,
    )
    try:
        written = [path for repository in module.params["repositories"] for path in one(module, repository)]
        updated = bool(written) or time.time() - read_at() > module.params["valid_time"]
        if updated and not module.check_mode:
            read_all(module)
    except AptError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(written), written=written, updated=updated)


def read_at():
    """Seconds since 1970 when the lists were last read whole; 0 when never."""
    try:
        return os.stat(READ).st_mtime
    except OSError:
        return 0


def read_all(module):
    """The lists of all sources; what went wrong with those of the lock is raised."""
    uris = [repository["uri"].rstrip("/") for repository in module.params["repositories"]]
    # A source that could not be read is not remembered as read: the next run starts with it.
    retried(
        module,
        module.params["attempts"],
        module.params["pause"],
        lambda: read_lists(module, uris, module.params["lock_timeout"]),
    )
    with open(READ, "w", encoding="ascii"):
        pass


def one(module, repository):
    """Bring one repository's key and source to what the lock says. Returns the files that were written."""
    written = []
    key = os.path.join(KEYS, "gpuprov-{name}.asc".format(**repository))
    text = source(repository, key)  # refuses before anything is fetched
    if repository["archives"]:
        if gpuprov_archive.bring(module, repository):
            written.append(os.path.join(gpuprov_archive.ROOT, repository["name"]))
            if os.path.exists(READ) and not module.check_mode:
                os.unlink(READ)
    elif len(repository["fingerprint"].replace(" ", "")) != 40:
        raise AptError("repository {name}: no full fingerprint is pinned".format(**repository))
    elif not os.path.exists(key) or not is_pinned(module, repository, key):
        written.append(key)
        if not module.check_mode:
            os.makedirs(KEYS, mode=0o755, exist_ok=True)
            fetch_key(module, repository, key)
    path = os.path.join(SOURCES, "gpuprov-{name}.sources".format(**repository))
    current = None
    if os.path.exists(path):
        with open(path, encoding="utf-8") as stream:
            current = stream.read()
    if current != text:
        written.append(path)
        if not module.check_mode:
            put(module, path, text)
            if os.path.exists(READ):
                os.unlink(READ)  # broken off from here on, the next run reads the lists all the same
    return written


if __name__ == "__main__":
    main()
