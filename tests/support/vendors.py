"""Vendors on loopback: signed apt repositories and a registry, served by one HTTP server that can be told to fail."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from provisioner.sandbox import repository
from provisioner.sandbox.deb import Deb, File, tar_gz
from provisioner.sandbox.keys import Keys, clearsign, gpg_home, run_tool
from provisioner.stack.models import Repository

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer that is given in place of the real one."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass
class Vendors:
    """`root` is what is served. `replies`: path → answers that are given first, one each; `seen`: what was asked for,
    as (method, path, Authorization)."""

    root: Path
    port: int = 0
    replies: dict[str, list[Reply]] = field(default_factory=lambda: defaultdict(list))
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    manifests: dict[tuple[str, str], bytes] = field(default_factory=dict)
    token: str | None = None
    """What the registry wants to see, where it wants something."""
    account: str | None = None
    """What the token service wants to see."""
    said_digest: str | None = None
    """What the registry says in place of a manifest's digest."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(self, part: str) -> list[str]:
        """The paths asked for that hold `part`."""
        return [path for _, path, _ in self.seen if part in path]

    def quiet(self) -> None:
        """Forget what tests have told it and seen."""
        self.replies.clear()
        self.seen.clear()
        self.manifests.clear()
        self.token = self.account = self.said_digest = None

    def image(self, name: str, tag: str, env: Iterable[str] = (), **changes: object) -> str:
        """Put an image for linux/amd64 into the registry, with this environment in its configuration; its digest."""
        config = {"architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/usr/bin", *env]}}
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": {"digest": self.put(name, config)}}
        platforms = [
            {"platform": {"os": "linux", "architecture": "arm64"}, "digest": "sha256:" + "1" * 64},
            {"platform": {"os": "linux", "architecture": "amd64"}, "digest": self.put(name, manifest)},
        ]
        document = {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": platforms,
            "annotations": {"for": tag},
            **changes,
        }
        body = json.dumps(document).encode()
        self.manifests[name, tag] = body
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        self.manifests[name, digest] = body
        return digest

    def put(self, name: str, document: object) -> str:
        """A document of the registry under its digest."""
        body = json.dumps(document).encode()
        digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
        self.manifests[name, digest] = body
        return digest

    def publish(
        self, name: str, debs: Iterable[Deb], keys: Keys, *, suite: str = "/", components: str = ""
    ) -> Repository:
        """Write a repository as the sandbox writes its own, and its key beside it."""
        repository._write(self.root / name, [(suite, components)], list(debs), keys, "amd64")
        (self.root / f"{name}.asc").write_text(keys.public)
        return Repository(
            name=name, uri=f"{self.url}/{name}/", suite=suite, components=components,
            key_url=f"{self.url}/{name}.asc", fingerprint=keys.fingerprint,
        )  # fmt: skip

    def archive(self, path: str, files: Mapping[str, bytes]) -> Path:
        """Put a .tar.gz with these files where `path` is served, without a signature."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(tar_gz({name: File(content) for name, content in files.items()}))
        return file

    def sign(self, file: Path, keys: Keys, suffix: str = ".sig") -> None:
        """A detached signature beside a file, and the key beside both."""
        with gpg_home() as gpg:
            run_tool(*gpg, "--import", stdin=keys.secret, package="gpg")
            out = ("--yes", "--output", f"{file}{suffix}")
            run_tool(*gpg, "--local-user", keys.fingerprint, *out, "--detach-sign", str(file), package="gpg")

    def sign_again(self, folder: Path, keys: Keys, old: str = "", new: str = "") -> None:
        """Sign a Release anew, `old` in it replaced by `new`."""
        text = (folder / "Release").read_text().replace(old, new)
        inline, detached = clearsign(keys, text)
        for file, content in (("Release", text), ("InRelease", inline), ("Release.gpg", detached)):
            (folder / file).write_text(content)

    def reply(self, method: str, target: str, authorization: str) -> Reply:
        """What is answered."""
        parts = urlsplit(target)
        self.seen.append((method, target, authorization))
        if self.replies[parts.path]:
            return self.replies[parts.path].pop(0)
        if parts.path == "/token":
            if self.account is not None and authorization != f"Basic {self.account}":
                return Reply(401)
            return Reply(200, body=json.dumps({"token": self.token, "for": parse_qs(parts.query)}).encode())
        if parts.path.startswith("/v2/"):
            return self._manifest(parts.path.removeprefix("/v2/"), authorization)
        file = self.root / unquote(parts.path).lstrip("/")
        return Reply(200, body=file.read_bytes()) if file.is_file() else Reply(404)

    def _manifest(self, path: str, authorization: str) -> Reply:
        if self.token is not None and authorization != f"Bearer {self.token}":
            challenge = f'Bearer realm="{self.url}/token",service="loopback",scope="repository:x:pull"'
            return Reply(401, {"WWW-Authenticate": challenge})
        name, _, tag = path.replace("/blobs/", "/manifests/").partition("/manifests/")
        body = self.manifests.get((name, tag))
        if body is None:
            return Reply(404)
        digest = self.said_digest or f"sha256:{hashlib.sha256(body).hexdigest()}"
        return Reply(200, {"Docker-Content-Digest": digest, "Content-Type": INDEX}, body)


@contextmanager
def serve(root: Path) -> Iterator[Vendors]:
    """Vendors that answer on a free port until the end of the block."""
    vendors = Vendors(root)

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            reply = vendors.reply(self.command, self.path, self.headers.get("Authorization", ""))
            self.send_response(reply.status)
            headers = {"Content-Length": str(len(reply.body)), **reply.headers}
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)

        do_GET = do_HEAD = _answer

        def log_message(self, format: str, *args: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    vendors.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield vendors
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def deb(name: str, version: str, **fields: str) -> Deb:
    """A package without files. Fields: Depends, Provides …, with _ for -."""
    return Deb(name, version, "amd64", name, fields={k.replace("_", "-"): v for k, v in fields.items()})


DRIVERS = (
    "570.211.01-0ubuntu1",
    "580.105.08-0ubuntu1",
    "580.173.02-0ubuntu1",
    "580.173.02-1ubuntu1",
    "595.91.07-1ubuntu1",
)


def driver_debs() -> Iterator[Deb]:
    """Drivers as NVIDIA's repository for Ubuntu has them: all branches in one list, revisions of Ubuntu's kind, some
    names with the branch in them and some without."""
    for version in DRIVERS:
        upstream, _, _ = version.partition("-")
        branch = upstream.partition(".")[0]
        suffix = f"-{branch}" if int(branch) < 590 else ""
        same = f"(= {version})"
        yield deb("nvidia-open", version, Depends=f"nvidia-driver{suffix}-open {same}")
        alone = "nvidia-driver-binary"
        yield deb(f"nvidia-driver{suffix}-open", version, Provides=alone, Conflicts=alone,
                  Depends=f"nvidia-dkms{suffix}-open {same}, nvidia-utils{suffix} {same}, libnvidia-compute{suffix}, "
                          f"nvidia-compute-utils{suffix} {same}, xserver-xorg-core (>= 2:21~) | xorg")  # fmt: skip
        yield deb(f"nvidia-dkms{suffix}-open", version, Provides="nvidia-dkms-kernel", Conflicts="nvidia-dkms-kernel",
                  Depends=f"dkms, nvidia-kernel-source{suffix}-open {same} | nvidia-kernel-source{suffix}")  # fmt: skip
        yield deb(f"nvidia-dkms{suffix}", version, Provides="nvidia-dkms-kernel", Conflicts="nvidia-dkms-kernel")
        yield deb(f"nvidia-kernel-source{suffix}-open", version)
        yield deb(f"nvidia-kernel-source{suffix}", version)
        yield deb(f"nvidia-utils{suffix}", version, Depends=f"libnvidia-compute{suffix} {same}")
        yield deb(f"libnvidia-compute{suffix}", version, Provides="libcuda.so.1", Pre_Depends="libc6 (>= 2.34)")
        yield deb(f"nvidia-compute-utils{suffix}", version, Depends="nvidia-persistenced (>= 560), adduser")
        yield deb("nvidia-persistenced", version, Depends="nvidia-modprobe:any (>= 560)")
        yield deb("nvidia-modprobe", version, Multi_Arch="allowed")
        for name in ("nvidia-fabricmanager", "libnvidia-nscq"):
            yield (
                deb(name, f"{upstream}-1") if version != "580.173.02-0ubuntu1" else deb(f"{name}-dev", f"{upstream}-1")
            )
    yield deb("nvidia-driver-pinning-580.173.02", "580.173.02-1")


def cuda_debs() -> Iterator[Deb]:
    """Everything else of that repository: a toolkit whose parts have numbers of their own, NCCL for several CUDAs."""
    yield from driver_debs()
    for toolkit, full, nvcc, cudart in (
        ("13-0", "13.0.1-1", "13.0.88-1", "13.0.88-1"), ("13-0", "13.0.2-1", "13.0.96-1", "13.0.99-1"),
        ("13-1", "13.1.0-1", "13.1.80-1", "13.1.80-1"),
    ):  # fmt: skip
        low = full.removesuffix("-1")
        yield deb(f"cuda-toolkit-{toolkit}", full, Depends=f"cuda-compiler-{toolkit} (>= {low}), "
                  f"cuda-libraries-{toolkit} (>= {low}), cuda-toolkit-{toolkit}-config-common")  # fmt: skip
        yield deb(f"cuda-toolkit-{toolkit}-config-common", full, Depends="cuda-toolkit-config-common (>= 13)")
        yield deb(f"cuda-compiler-{toolkit}", full, Depends=f"cuda-nvcc-{toolkit} (>= {nvcc.removesuffix('-1')})")
        yield deb(f"cuda-nvcc-{toolkit}", nvcc, Depends=f"cuda-crt-{toolkit} (= {nvcc}), build-essential")
        yield deb(f"cuda-crt-{toolkit}", nvcc)
        yield deb(f"cuda-libraries-{toolkit}", full, Depends=f"cuda-cudart-{toolkit} (>= {cudart.removesuffix('-1')})")
        yield deb(f"cuda-cudart-{toolkit}", cudart)
    for config in ("13.0.99-1", "13.1.80-1"):
        yield deb("cuda-toolkit-config-common", config)
    for nccl in ("2.27.7-1+cuda13.0", "2.30.4-1+cuda12.9", "2.30.4-1+cuda13.0", "2.30.4-1+cuda13.2"):
        yield deb("libnccl2", nccl, Depends="libc6 (>= 2.17)")
        yield deb("libnccl-dev", nccl, Depends=f"libnccl2 (= {nccl})")
    for dcgm in ("1:4.5.0-1", "1:4.6.0-1"):
        yield deb("datacenter-gpu-manager-4-core", dcgm, Breaks="datacenter-gpu-manager (<< 1:4~)")
        relations = {"Depends": f"datacenter-gpu-manager-4-core (= {dcgm})"}
        yield deb(
            "datacenter-gpu-manager-4-cuda13",
            dcgm,
            **relations,
            Recommends="datacenter-gpu-manager-4-proprietary-cuda13",
        )
        yield deb("datacenter-gpu-manager-4-proprietary", dcgm, **relations)
        yield deb("datacenter-gpu-manager-4-proprietary-cuda13", dcgm, **relations)
    yield deb("datacenter-gpu-manager", "1:3.3.9")
    yield deb(
        "datacenter-gpu-manager-exporter", "4.8.3-1", Depends="datacenter-gpu-manager-4-core | datacenter-gpu-manager"
    )


def toolkit_debs() -> Iterator[Deb]:
    """The container toolkit, with an older release beside it."""
    for version in ("1.19.0-1", "1.20.1-1"):
        same = f"(= {version})"
        yield deb("nvidia-container-toolkit", version,
                  Depends=f"nvidia-container-toolkit-base {same}, libnvidia-container-tools (>= 1)")  # fmt: skip
        yield deb("nvidia-container-toolkit-base", version)
        yield deb("libnvidia-container-tools", version, Depends=f"libnvidia-container1 (>= {version})")
        yield deb("libnvidia-container1", version, Depends="libcap2")


def efa_debs() -> Iterator[Deb]:
    """The EFA installer's parts, each with a number of its own."""
    yield deb("efa", "3.1.0-1.amzn1", Depends="dkms, efa-config")
    yield deb("efa-config", "1.18-1.amzn1")
    yield deb("efa-profile", "1.7-1.amzn1")
    yield deb("libfabric1-aws", "2.4.0amzn1.0", Depends="rdma-core (>= 50)")
    yield deb("libfabric-aws-bin", "2.4.0amzn1.0", Depends="libfabric1-aws (= 2.4.0amzn1.0)")
    yield deb("libnccl-ofi", "1.17.2-1", Depends="libfabric1-aws (>= 2)")
