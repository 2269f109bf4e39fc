#!/usr/bin/python
"""The environment of a job on this node: what `docker run` needs for each image. The only place that says it.

Users get it as /etc/gpuprov/docker-run and images.json; the load and fabric tests of verify read the same file
(provisioner/verify/probe/job.py). NCCL's variables are those of /etc/nccl.conf (role nccl).
"""

from __future__ import annotations

DOCUMENTATION = r"""
module: container_options
short_description: Write the environment of a job in a container of this node
description:
  - O(record) gets the images, each with C(docker_run), the words for C(docker run) with it; O(words) those of the first
    image, one a line, for C(docker run $(cat FILE) …).
  - The GPUs, the node's network and shared memory, device files of RDMA cards, no limit on locked memory, NCCL's settings
    of this node with every file that they name, gloo's interface. On EFA also AWS's libfabric and NCCL plugin of this
    node, read-only, and by which path NCCL finds them. An image may have none, or name another plugin (NVIDIA's name
    spcx); NCCL then goes over TCP, without an error.
options:
  images:
    description: Images of cluster.lock, which docker has.
    type: list
    elements: dict
    required: true
  vendor:
    description: Who made the GPUs.
    type: str
    choices: [nvidia, amd]
    default: nvidia
  efa:
    description: Whether the node has EFA.
    type: bool
    default: false
  record: {description: JSON file with the images., type: path, default: /etc/gpuprov/images.json}
  words: {description: File with the words., type: path, default: /etc/gpuprov/docker-run}
author: gpuprov
"""

EXAMPLES = r"""
- name: Tell jobs how to run the images
  container_options:
    images: "{{ gpuprov_stack.images }}"
    efa: true
"""

RETURN = r"""
written:
  description: Files that were written.
  type: list
  elements: str
  returned: always
"""

import glob
import json
import os
import resource
import subprocess

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpuprov_files import put, read

EFA = "/opt/amazon/efa"
OFI_NCCL = "/opt/amazon/ofi-nccl"
CONF = "/etc/nccl.conf"
VERBS = "/dev/infiniband"
PLUGINS = ("lib/*-linux-gnu/libnccl-net*.so", "lib*/libnccl-net*.so")
"""Where the plugin is below its folder: Debian and Ubuntu, others (awsome-distributed-ai#935, NeMo-RL#2585)."""
GPUS = {"nvidia": ("--gpus=all",), "amd": ("--device=/dev/kfd", "--device=/dev/dri")}
"""What gives a container the GPUs of a maker (installation guides of the container toolkit and of ROCm)."""
SHARED = ("--network=host", "--ipc=host")
"""NCCL and gloo open ports between nodes; data loaders and NCCL's shared memory need more than docker's 64 MiB of /dev/shm
(README of NVIDIA's PyTorch image). No capability is added: with no limit on locked memory RDMA needs none (mlock(2))."""


def unlimited():
    """Whether this node lets a process lock all memory; a node that is a container itself may not, and docker refuses
    to start one that asks for it."""
    try:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    except (OSError, ValueError):
        return False
    return True


def own_environment(image):
    """The variables of an image; nothing where docker does not say."""
    command = ["docker", "image", "inspect", "--format", "{{json .Config.Env}}", image]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        entries = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired):
        entries = None
    return dict(entry.split("=", 1) for entry in entries or [] if "=" in entry)


def settings():
    """NCCL's settings on this node; the first line of a name counts, as it does for NCCL (src/misc/param.cc)."""
    variables = {}
    for line in (read(CONF) or "").splitlines():
        name, equals, value = line.strip().partition("=")
        if equals and not name.startswith("#"):
            variables.setdefault(name.strip(), value.strip())
    return variables


def nccl():
    """Words that bring NCCL's settings into a container, with the files that they name (topology, graph)."""
    variables = settings()
    files = [value for name, value in sorted(variables.items()) if name.endswith("_FILE") and value.startswith("/")]
    paths = [path for path in [CONF, *files] if os.path.isfile(path) and not set(path) & set(": \t")]
    mounts = [f"--volume={path}:{path}:ro" for path in paths]
    # Without it gloo takes the address of the host's name, which Debian and Ubuntu put at 127.0.1.1.
    interface = variables.get("NCCL_SOCKET_IFNAME", "")
    return mounts + ([f"--env=GLOO_SOCKET_IFNAME={interface[1:]}"] if interface.startswith("=") else [])


def common(vendor):
    """Words for every image of this node."""
    docker_options = [*GPUS[vendor], *SHARED]
    docker_options += ["--device=" + VERBS] if os.path.isdir(VERBS) and os.listdir(VERBS) else []
    docker_options += ["--ulimit=memlock=-1"] if unlimited() else []
    return docker_options + nccl()


def efa_plugin():
    """Words, libraries' folders and the path of AWS's NCCL plugin on this node; all empty where it is not there."""
    plugins = [path for pattern in PLUGINS for path in sorted(glob.glob(os.path.join(OFI_NCCL, pattern)))]
    if not plugins:
        return [], [], ""
    plugin = next((path for path in plugins if path.endswith("/libnccl-net.so")), plugins[0])
    folders = [os.path.dirname(plugin), *(f for f in (EFA + "/lib", EFA + "/lib64") if os.path.isdir(f))]
    return [f"--volume={folder}:{folder}:ro" for folder in (EFA, OFI_NCCL)], folders, plugin


def options(images, vendor, efa):
    """The images, each with the words for it."""
    arguments, folders, plugin = efa_plugin() if efa else ([], [], "")
    arguments = [*common(vendor), *arguments]
    rows = []
    for image in images:
        image_arguments = list(arguments)
        if plugin:
            # Behind the image's own, which stay as they are.
            image_path = own_environment(image["pull"]).get("LD_LIBRARY_PATH", "").strip(":")
            path = ":".join([*([image_path] if image_path else []), *folders])
            image_arguments += ["--env=NCCL_NET_PLUGIN=" + plugin, "--env=LD_LIBRARY_PATH=" + path]
        rows.append({**image, "docker_run": image_arguments})
    return rows


def write(module, path, text):
    """Whether the file had another text; it has this one now."""
    if read(path) == text:
        return False
    if not module.check_mode:
        put(module, path, text)
    return True


def main():
    """Write both files."""
    module = AnsibleModule(
        argument_spec={
            "images": {"type": "list", "elements": "dict", "required": True},
            "vendor": {"type": "str", "choices": ["nvidia", "amd"], "default": "nvidia"},
            "efa": {"type": "bool", "default": False},
            "record": {"type": "path", "default": "/etc/gpuprov/images.json"},
            "words": {"type": "path", "default": "/etc/gpuprov/docker-run"},
        },
        supports_check_mode=True,
    )
    rows = options(module.params["images"], module.params["vendor"], module.params["efa"])
    first = rows[0]["docker_run"] if rows else []
    texts = {
        module.params["record"]: json.dumps(rows, indent=2, sort_keys=True) + "\n",
        module.params["words"]: "".join(f"{argument}\n" for argument in first),
    }
    written = [path for path, text in texts.items() if write(module, path, text)]
    module.exit_json(changed=bool(written), written=written)


if __name__ == "__main__":
    main()
