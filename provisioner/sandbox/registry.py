"""Container images written straight into a registry's storage: the digest is known without any daemon."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from provisioner.common.image_reference import parse
from provisioner.common.paths import below
from provisioner.sandbox.deb import File, tar, tar_gz
from provisioner.sandbox.keys import MIRROR_HOST
from provisioner.sandbox.multi_node import MEET, TOGETHER
from provisioner.stack.models import Image

PORT = 5000
LABEL = "org.gpuprov.simulated"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = """\
# The sandbox's registry, read-only
version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage:
  filesystem: {rootdirectory: /srv/mirror/registry}
  delete: {enabled: false}
  maintenance: {readonly: {enabled: true}}
http:
  addr: 0.0.0.0:5000
  tls: {certificate: /srv/mirror/registry.pem, key: /srv/mirror/registry.key}
"""


@dataclass(frozen=True, slots=True)
class Built:
    """One image as blobs. `digest` is that of its manifest."""

    repository: str
    tag: str
    digest: str
    blobs: dict[str, bytes]


def repository_of(reference: str) -> tuple[str, str]:
    """Path and tag in the mirror: nvcr.io/nvidia/pytorch:25.10-py3 → ("nvcr.io/nvidia/pytorch", "25.10-py3"). Raises
    GpuprovError for what no registry could have."""
    tag = parse(reference).tag
    folders, slash, last = reference.partition("@")[0].rpartition("/")
    path = folders + slash + last.partition(":")[0]
    return re.sub(r"[^a-z0-9._/-]", "-", path.lower()), tag


def build(image: Image, busybox: bytes, architecture: str) -> Built:
    """A tiny image that answers what gpuprov asks of the framework in it: versions from the lock, devices from the
    runtime."""
    facts = {"torch": image.torch, "cuda": image.cuda, "nccl": image.nccl, "python": image.python}
    files = {
        "bin/busybox": File(busybox, 0o755),
        "bin/sh": File(link="busybox"),
        "bin/cat": File(link="busybox"),
        "bin/ls": File(link="busybox"),
        "bin/sleep": File(link="busybox"),
        "bin/rm": File(link="busybox"),
        "usr/bin/torchrun": File(TORCHRUN.encode(), 0o755),
        "usr/bin/gpuprov-together": File(TOGETHER.encode(), 0o755),
        "usr/bin/gpuprov-meet": File(MEET.encode(), 0o755),
        "usr/bin/env": File(link="../../bin/busybox"),
        "usr/bin/python3": File(_python(image).encode(), 0o755),
        "usr/bin/python": File(link="python3"),
        "tmp/.keep": File(b""),
        "etc/gpuprov-sandbox/release": File(f"image simulated by gpuprov: {image.reference}\n".encode()),
    }
    layer, plain = tar_gz(files), tar(files)
    config = _json(
        {
            "architecture": architecture,
            "os": "linux",
            "created": "2020-09-13T12:26:40Z",
            "config": {
                "Env": ["PATH=/usr/local/bin:/usr/bin:/bin", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"],
                "Cmd": ["/bin/sh"],
                "Labels": {
                    LABEL: "true",
                    "org.gpuprov.reference": image.reference,
                    "org.gpuprov.framework": json.dumps(facts),
                },
            },
            "rootfs": {"type": "layers", "diff_ids": [_digest(plain)]},
            "history": [{"created": "2020-09-13T12:26:40Z", "created_by": "gpuprov sandbox"}],
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {
                "mediaType": "application/vnd.docker.container.image.v1+json",
                "size": len(config),
                "digest": _digest(config),
            },
            "layers": [
                {
                    "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                    "size": len(layer),
                    "digest": _digest(layer),
                }
            ],
        }
    )
    repository, tag = repository_of(image.reference)
    blobs = {_digest(blob): blob for blob in (layer, config, manifest)}
    return Built(repository, tag, _digest(manifest), blobs)


def pull_name(built: Built) -> str:
    return f"{MIRROR_HOST}:{PORT}/{built.repository}@{built.digest}"


def write(root: Path, images: Iterable[Built]) -> None:
    """The storage of a registry (distribution's filesystem driver, layout v2) holding these images."""
    base = root / "docker/registry/v2"
    for image in images:
        repository = below(base / "repositories", image.repository)
        for digest, blob in image.blobs.items():
            data = below(base / "blobs/sha256", f"{digest[7:9]}/{digest[7:]}/data")
            data.parent.mkdir(parents=True, exist_ok=True)
            data.write_bytes(blob)
            if digest != image.digest:
                _link(repository / "_layers/sha256" / digest[7:], digest)
        manifests = repository / "_manifests"
        _link(manifests / "revisions/sha256" / image.digest[7:], image.digest)
        tag = below(manifests / "tags", image.tag)
        _link(tag / "current", image.digest)
        _link(tag / "index/sha256" / image.digest[7:], image.digest)


def _link(folder: Path, digest: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "link").write_text(digest, encoding="utf-8")


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _json(content: object) -> bytes:
    return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()


TORCHRUN = r"""#!/bin/sh
# Simulated by gpuprov: this is no PyTorch. What it prints, the container runtime has put there (node/loading.py); for
# GPUs that come as plain devices (AMD) it is the same for every one.
place=/etc/gpuprov-sandbox
if [ -r $place/load ]; then
  while IFS= read -r line; do
    case "$line" in
      "!loading") : > $place/loading; sleep 1; rm -f $place/loading;;
      "!hang") sleep 86400;;
      "!fail "*) echo "${line#!fail }" >&2; exit 1;;
      *) echo "$line";;
    esac
  done < $place/load
  exit 0
fi
one='{"h2d_gbps": 54.0, "d2h_gbps": 53.0, "memory_gbps": 2700.0, "peer_gbps": 47.0'
one="$one"', "tflops": 480.0, "tflops_last": 470.0, "digest": 4242, "wrong_products": 0}'
count=0 gpus=""
for device in /dev/dri/renderD*; do
  [ -e "$device" ] && count=$((count + 1)) gpus="$gpus${gpus:+, }$one"
done
[ $count -gt 0 ] || { echo "RuntimeError: this container was given no GPU (simulated by gpuprov)" >&2; exit 1; }
cat <<END
@gpuprov-load-1 result {"simulated": true, "device": "cuda", "ranks": $count, "gpus": [$gpus], "wrong": 0,\
 "all_reduce": [{"bytes": 8589934592, "busbw_gbps": 332.0}],\
 "train": {"samples_per_s": 3400.0, "loss_first": 9.2, "loss_last": 6.4}, "transports": {}}
END
"""


def _python(image: Image) -> str:
    """`python3` of the image: whatever it is asked to run, it answers with the framework's versions as JSON."""
    facts = {"simulated": True, "torch": image.torch, "cuda": image.cuda, "nccl": image.nccl, "python": image.python}
    head = json.dumps(facts)[:-1]
    version = image.python or "3.12"
    return f"""#!/bin/sh
# Simulated by gpuprov: this is no Python and no PyTorch. The number of devices is what the container runtime put there.
case "$1" in -V|--version) echo "Python {version}"; exit 0;; esac
if [ "$2" = gpuprov-together ]; then shift 2; exec gpuprov-together "$@"; fi
devices=0
for device in /dev/dri/renderD*; do [ -e "$device" ] && devices=$((devices + 1)); done
[ -r /etc/gpuprov-sandbox/gpus ] && devices=$(cat /etc/gpuprov-sandbox/gpus)
cat <<EOF
{head}, "gpus": $devices}}
EOF
"""
