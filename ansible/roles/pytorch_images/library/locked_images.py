#!/usr/bin/python
"""Container images at exactly the digests of cluster.lock, under the names that people use."""

from __future__ import annotations

DOCUMENTATION = r"""
module: locked_images
short_description: Pull images by digest, look at what was pulled, and give it its name
description:
  - An image is pulled by digest, never by tag; what docker then has under that name must have that digest. The name that
    people use is put on it, also where it stood on something else.
  - Before a pull the registry is asked how large the image is, and the disk whether it has the room.
  - A registry that can't be reached, a digest that is gone, a full disk and a pull that takes too long are told apart;
    only what may pass is tried again.
options:
  images:
    description: Images of cluster.lock. Other keys are for other readers of the lock.
    type: list
    elements: dict
    required: true
  timeout:
    description: Seconds that one pull may take.
    type: int
    default: 3600
  attempts:
    description: How often a pull is tried that fails for a cause that may pass.
    type: int
    default: 3
  pause:
    description: Seconds before the second try; the pauses after that grow by as much.
    type: int
    default: 5
  unpacked:
    description: How much more an image takes unpacked than packed, both of which are on the disk during a pull.
    type: float
    default: 2.5
author: gpuprov
"""

EXAMPLES = r"""
- name: Fetch the framework images
  locked_images:
    images: "{{ gpuprov_stack.images }}"
"""

RETURN = r"""
pulled:
  description: Names of the images that were pulled.
  type: list
  elements: str
  returned: always
named:
  description: Names that were put on an image that was there already.
  type: list
  elements: str
  returned: always
"""

import json
import os
import re
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

from ansible.module_utils.basic import AnsibleModule

MANIFESTS = (
    "application/vnd.docker.distribution.manifest.v2+json, application/vnd.docker.distribution.manifest.list.v2+json, "
    "application/vnd.oci.image.manifest.v1+json, application/vnd.oci.image.index.v1+json"
)
CAUSES = (
    # What docker says, what it means, whether it may pass.
    (r"no space left on device", "the disk is full: make room below docker's data folder", False),
    (r"manifest unknown|manifest for .* not found|not found: manifest|name unknown|repository .* not found",
     "the registry does not have this digest any more: choose another image (gpuprov lock --upgrade), or mirror it", False),
    (r"x509|certificate", "the registry's certificate is not trusted: give its CA (gpuprov_registry_ca)", False),
    (r"unauthorized|authentication required|denied|no basic auth|forbidden",
     "the registry wants a login: docker login on the node, or a registry that needs none", False),
    (r"toomanyrequests|rate limit|429", "the registry limits how often it is asked", True),
    (r"no such host|connection refused|no route to host|network is unreachable|i/o timeout|TLS handshake timeout|"
     r"connection reset|context deadline exceeded|request canceled|unexpected EOF|\bEOF\b|50[0234]|server misbehaving",
     "the registry can't be reached from the node", True),
    (r"cannot connect to the docker daemon", "docker does not run: systemctl status docker", False),
)  # fmt: skip


class Failed(Exception):
    """An image can't be had; `passes` is whether the cause may be gone at the next try."""

    def __init__(self, text, passes=False):
        super().__init__(text)
        self.passes = passes


def cause(error_text):
    """What docker's error means, and whether it may pass."""
    for pattern, meaning, passes in CAUSES:
        if re.search(pattern, error_text, re.IGNORECASE):
            return meaning, passes
    return "docker could not pull it", False


def docker(*arguments, timeout=120):
    """Exit status and what docker said."""
    try:
        done = subprocess.run(
            ["docker", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return 124, "no end after {} s".format(timeout)
    except FileNotFoundError:
        raise Failed("docker is not installed on this node")
    return done.returncode, (done.stdout if done.returncode == 0 else done.stderr + done.stdout).strip()


def there(name):
    """(id, digests) of what docker has under a name; None where it has nothing."""
    status, text = docker("image", "inspect", "--format", '{"id":{{json .Id}},"digests":{{json .RepoDigests}}}', name)
    if status:
        if "cannot connect" in text.lower():
            raise Failed("docker does not run: systemctl status docker")
        return None
    image = json.loads(text)
    return image["id"], [entry.rpartition("@")[2] for entry in image["digests"] or []]


def pull_parts(pull):
    """Registry host, repository and digest of registry/repository@sha256:…"""
    name, _, digest = pull.partition("@")
    host, _, repository = name.partition("/")
    if "." not in host and ":" not in host and host != "localhost":
        host, repository = "registry-1.docker.io", name if "/" in name else "library/" + name
    if host == "docker.io":  # what people write; the registry itself has another name
        host = "registry-1.docker.io"
    return host, repository, digest


def ask(host, repository, digest, token=None):
    """The manifest as the registry gives it; raises urllib's errors."""
    headers = {"Accept": MANIFESTS}
    if token:
        headers["Authorization"] = "Bearer " + token
    request = urllib.request.Request("https://{}/v2/{}/manifests/{}".format(host, repository, digest), headers=headers)
    context = ssl.create_default_context()
    registry_ca = "/etc/docker/certs.d/{}/ca.crt".format(host)
    if os.path.exists(registry_ca):
        context.load_verify_locations(registry_ca)
    with urllib.request.urlopen(request, timeout=20, context=context) as answer:
        return json.loads(answer.read(4 * 1024 * 1024))


def login(host, header):
    """A token for reading, as the registry's challenge asks for it, with docker's own login where there is one."""
    challenge = dict(re.findall(r'(\w+)="([^"]*)"', header))
    query = urllib.parse.urlencode({k: challenge[k] for k in ("service", "scope") if k in challenge})
    request = urllib.request.Request(challenge["realm"] + "?" + query)
    try:
        with open("/root/.docker/config.json", encoding="utf-8") as stream:
            known = json.load(stream).get("auths", {}).get(host, {}).get("auth")
    except (OSError, ValueError):
        known = None
    if known:
        request.add_header("Authorization", "Basic " + known)
    with urllib.request.urlopen(request, timeout=20) as answer:
        answer_body = json.loads(answer.read(1024 * 1024))
    return answer_body.get("token") or answer_body.get("access_token")


def packed_size(pull):
    """Bytes that the image's layers take packed; None where the registry does not say (the pull will tell why)."""
    host, repository, digest = pull_parts(pull)
    try:
        token = None
        try:
            manifest = ask(host, repository, digest)
        except urllib.error.HTTPError as refusal:
            if refusal.code != 401:
                return None
            token = login(host, refusal.headers.get("WWW-Authenticate", ""))
            manifest = ask(host, repository, digest, token)
        if "manifests" in manifest:
            machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine)
            own_platform = [m for m in manifest["manifests"] if m.get("platform", {}).get("architecture") == machine]
            manifest = ask(host, repository, own_platform[0]["digest"], token)
        return sum(layer["size"] for layer in manifest["layers"])
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def room(image, factor):
    """Refuse a pull for which the disk has no room."""
    packed = packed_size(image["pull"])
    if packed is None:
        return
    status, folder = docker("info", "--format", "{{.DockerRootDir}}")
    folder = folder if status == 0 and os.path.isdir(folder) else "/var/lib"
    disk = os.statvfs(folder)
    free, required = disk.f_bavail * disk.f_frsize, int(packed * (1 + factor))
    if free < required:
        raise Failed(
            "the disk is too full: {:.1f} GB packed want about {:.1f} GB below {}, {:.1f} GB are free. Make room, or give "
            "the machine a larger disk (storage.root_gb)".format(packed / 1e9, required / 1e9, folder, free / 1e9)
        )


def pull(image, params):
    """Pull by digest, and see that it is that digest. Raises Failed."""
    room(image, params["unpacked"])
    for attempt in range(1, params["attempts"] + 1):
        status, output = docker("pull", "--quiet", image["pull"], timeout=params["timeout"])
        if status == 0:
            break
        meaning, passes = cause(output)
        if status == 124:
            meaning, passes = "the pull took longer than {} s".format(params["timeout"]), False
        if not passes or attempt == params["attempts"]:
            tried = "" if attempt == 1 else ", tried {} times".format(attempt)
            raise Failed("{}{} (docker: {})".format(meaning, tried, " ".join(output.split())[-300:]))
        time.sleep(params["pause"] * attempt)
    present = there(image["pull"])
    if present is None or image["digest"] not in present[1]:
        raise Failed(
            "it was pulled, and docker has {}".format(", ".join(present[1]) if present else "nothing under that name")
        )


def bring(image, params, check_mode):
    """Bring one image to what the lock says. Returns "pulled", "named" or ""."""
    if image["pull"].rpartition("@")[2] != image["digest"]:
        raise Failed("the lock says digest {} and pulls {}: lock again".format(image["digest"], image["pull"]))
    by_digest, by_name = there(image["pull"]), there(image["reference"])
    if by_digest and image["digest"] in by_digest[1] and by_name and by_name[0] == by_digest[0]:
        return ""
    missing = not by_digest or image["digest"] not in by_digest[1]
    if check_mode:
        return "pulled" if missing else "named"
    if missing:
        pull(image, params)
    # A reference by digest is its own name; docker takes no digest as a tag.
    if "@" not in image["reference"]:
        status, output = docker("tag", image["pull"], image["reference"])
        if status:
            raise Failed("it can't be given its name: {}".format(output))
    return "pulled" if missing else "named"


def main():
    """Bring all images to what the lock says; all that fail are named."""
    module = AnsibleModule(
        argument_spec={
            "images": {"type": "list", "elements": "dict", "required": True},
            "timeout": {"type": "int", "default": 3600},
            "attempts": {"type": "int", "default": 3},
            "pause": {"type": "int", "default": 5},
            "unpacked": {"type": "float", "default": 2.5},
        },
        supports_check_mode=True,
    )
    done, failed = {"pulled": [], "named": []}, []
    for image in module.params["images"]:
        try:
            outcome = bring(image, module.params, module.check_mode)
        except Failed as error:
            failed.append("{}: {}".format(image["reference"], error))
            continue
        if outcome:
            done[outcome].append(image["reference"])
    changed = bool(done["pulled"] or done["named"])
    if failed:
        module.fail_json(msg="; ".join(failed), changed=changed, **done)
    module.exit_json(changed=changed, **done)


if __name__ == "__main__":
    main()
