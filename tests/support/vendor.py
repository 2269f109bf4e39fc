"""A vendor on this machine: signed apt repositories and a registry with the sandbox's packages, which the real lock
and a real machine reach over HTTP. In place of the simulated driver a package whose module DKMS really compiles."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pytest

from provisioner.sandbox import packages, registry, repository
from provisioner.sandbox.deb import File
from provisioner.sandbox.keys import Keys
from provisioner.sandbox.package_files import Content
from provisioner.stack.models import Image, Stack

MODULE = """\
#include <linux/module.h>
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("%s");
MODULE_DESCRIPTION("stands for the driver's module in a test");
static int __init begin(void) { return 0; }
static void __exit end(void) { }
module_init(begin);
module_exit(end);
"""
NAMES = ("nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem")
POSTINST = """\
#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
dkms add -m nvidia -v VERSION || true
for kernel in /lib/modules/*/build; do
  kernel=${kernel%/build}
  dkms install -m nvidia -v VERSION -k "${kernel##*/}"
done
"""


def driver(version: str, _architecture: str) -> Content:
    """The driver's modules as source for DKMS."""
    source, conf = f"usr/src/nvidia-{version}", [f'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="{version}"\n']
    conf.append('MAKE[0]="make -C $kernel_source_dir M=$dkms_tree/$module/$module_version/build modules"\n')
    conf.append("AUTOINSTALL=yes\n")
    files = {f"{source}/Makefile": File("".join(f"obj-m += {name}.o\n" for name in NAMES).encode())}
    for number, name in enumerate(NAMES):
        conf.append(f'BUILT_MODULE_NAME[{number}]="{name}"\nDEST_MODULE_LOCATION[{number}]="/updates/dkms"\n')
        files[f"{source}/{name}.c"] = File((MODULE % version).encode())
    files[f"{source}/dkms.conf"] = File("".join(conf).encode())
    prerm = f"#!/bin/sh\nset -e\ndkms remove -m nvidia -v {version} --all || true\n"
    scripts = (("postinst", POSTINST.replace("VERSION", version)), ("prerm", prerm))
    return Content("driver's modules, compiled by DKMS", files, ("nvidia-kernel-support",), scripts)


def write(root: Path, stack: Stack, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    """The repositories of a stack below a folder."""
    monkeypatch.setattr(packages, "KNOWN", ((r"nvidia-kernel-open-dkms", driver), *packages.KNOWN))
    monkeypatch.setattr(packages, "build", _with_dkms(packages.build))
    repository.write_repositories(root, [stack], keys, "amd64")


def _with_dkms(build):  # type: ignore[no-untyped-def]
    def built(package, other_packages, architecture):  # type: ignore[no-untyped-def]
        deb = build(package, other_packages, architecture)
        if package.name == "nvidia-kernel-open-dkms":
            fields = dict(deb.fields)
            fields["Depends"] = ", ".join(filter(None, (fields.get("Depends", ""), "dkms")))
            return type(deb)(deb.name, deb.version, deb.architecture, deb.description, deb.files, fields, deb.scripts)
        return deb

    return built


def image(reference: str, busybox: bytes) -> registry.Built:
    """A container image as a registry has it."""
    return registry.build(Image(reference=reference, digest="", pull=""), busybox, "amd64")


@contextmanager
def served(root: Path, images: Mapping[str, registry.Built]) -> Iterator[int]:
    """Serve both at all addresses of this machine; gives the port. `images`: by repository and tag, lab/tool:1."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            kind, content = self._find_content()
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.send_header("Content-Type", kind)
            if kind == registry.MANIFEST and content is not None:
                self.send_header("Docker-Content-Digest", registry._digest(content))
            self.end_headers()
            if body and content:
                self.wfile.write(content)

        def _find_content(self) -> tuple[str, bytes | None]:
            path = unquote(self.path.partition("?")[0]).strip("/")
            if path == "v2":
                return "application/json", b"{}"
            if path.startswith("v2/"):
                name, _, reference = path.removeprefix("v2/").rpartition("/")
                name, _, kind = name.rpartition("/")
                for key, built in images.items():
                    if key.partition(":")[0] != name:
                        continue
                    digest = built.digest if reference == key.partition(":")[2] else reference
                    if digest in built.blobs:
                        form = registry.MANIFEST if kind == "manifests" else "application/octet-stream"
                        return form, built.blobs[digest]
                return "application/json", None
            file = (root / path).resolve()
            inside = file.is_relative_to(root.resolve()) and file.is_file()
            return "application/octet-stream", file.read_bytes() if inside else None

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("0.0.0.0", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def address() -> str:
    """An address of this machine that a virtual machine on it reaches too."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe_socket:
        probe_socket.connect(("192.0.2.1", 9))  # nothing is sent
        return str(probe_socket.getsockname()[0])
