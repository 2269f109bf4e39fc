"""The nodes' image: Debian 12 by mmdebstrap, and on top of it the simulator.

Two layers, because they change at different times: the base (half a minute, from a signed Debian mirror) and the node
layer (a second, from this package's own files). Both are named after a hash of what goes in.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.sandbox.deb import tar
from provisioner.sandbox.node_layer import node_files
from provisioner.sandbox.runtime import Podman, ulimit_options

SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
SECURITY = "http://security.debian.org/debian-security"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
BASE = "localhost/gpuprov-sandbox-base"
NODE = "localhost/gpuprov-sandbox"
UNFINISHED = "org.gpuprov.build"
"""Label of imports; one without a name was cut off."""

PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "openssh-server",
    "sudo",
    "procps",
    "iproute2",
    "curl",
    "python3",
    "python3-apt",
    "python3-debian",  # what Ansible's apt modules need
    "apt",
    "gpg",
    "gpgv",
    "ca-certificates",
    "docker.io",
    "docker-registry",
    "busybox-static",
    "mdadm",
    "xfsprogs",
    "fio",  # what the scratch role takes; simulated programs stand before theirs in PATH
    "nvme-cli",
    "dmidecode",  # what the base role takes
    "rdma-core",
    "infiniband-diags",
    "ibverbs-providers",
    "ibverbs-utils",  # what the infiniband role takes from the distribution
    "unattended-upgrades",
    "prometheus-node-exporter",  # what the node_exporter role takes
    "prometheus",
    "prometheus-alertmanager",  # what the prometheus role takes
    "slurmd",
    "slurm-client",
    "munge",  # what the slurm_node role takes
    "slurmctld",
    "slurmdbd",
    "slurm-wlm-mysql-plugin",
    "mariadb-server",  # what the slurm_controller role takes
)
"""Debian packages of a node."""

LEFT_OUT = (
    "/usr/share/doc/*",
    "/usr/share/man/*",
    "/usr/share/locale/*",
    "/usr/share/info/*",
    "/usr/share/bash-completion/*",
)

MASKED = (
    "unattended-upgrades.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "systemd-modules-load.service",
    "systemd-udevd.service",
    "systemd-udev-trigger.service",
    "systemd-logind.service",
    "getty.target",
    "console-getty.service",
    "systemd-timesyncd.service",
    "systemd-networkd.service",
    "systemd-resolved.service",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-journal-flush.service",
    "kmod-static-nodes.service",
    "systemd-sysctl.service",
    "systemd-binfmt.service",
    "proc-sys-fs-binfmt_misc.automount",
    "proc-sys-fs-binfmt_misc.mount",
    "sys-fs-fuse-connections.mount",
    "dev-hugepages.mount",
    "modprobe@.service",
    "systemd-remount-fs.service",
    "mdmonitor.service",
    "mdcheck_start.timer",
    "mdcheck_continue.timer",
    "mdmonitor-oneshot.timer",
    "xfs_scrub_all.timer",
    "systemd-tmpfiles-setup-dev.service",
    "systemd-journald-audit.socket",
)
"""Units that a container has no use for, or that would reach for this computer's kernel."""

DISABLED = (
    "docker.service", "docker.socket", "containerd.service", "docker-registry.service", "nvmf-autoconnect.service",
    "nvmefc-boot-connections.service", "prometheus-node-exporter.service", "prometheus.service",
    "prometheus-alertmanager.service", "munge.service", "slurmd.service", "slurmctld.service", "slurmdbd.service",
    "mariadb.service",
)  # fmt: skip
"""Installed, and started by the role that wants them or by nobody; every node starts faster and smaller for it."""


def base_reference() -> str:
    content = json.dumps([SUITE, mirrors(), PACKAGES, LEFT_OUT, 1])
    return f"{BASE}:{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def node_reference() -> str:
    digest = hashlib.sha256(base_reference().encode() + tar(node_files()) + setup().encode())
    return f"{NODE}:{digest.hexdigest()[:16]}"


def mirrors() -> tuple[str, ...]:
    """The Debian mirrors; GPUPROV_DEBIAN_MIRROR names another one for machines that reach only that."""
    configured = os.environ.get("GPUPROV_DEBIAN_MIRROR")
    if configured:
        return (f"deb {configured} {SUITE} main",)
    return (f"deb {MIRROR} {SUITE} main", f"deb {MIRROR} {SUITE}-updates main", f"deb {SECURITY} {SUITE}-security main")


def sweep(podman: Podman) -> None:
    """Remove what a killed build left: containers that images are made in, and imports that never got their name."""
    # A dot can't be in a cluster's name, so no node is ever called like this.
    leftovers = podman.run("ps", "--all", "--quiet", "--filter", "name=^gpuprov[.]image[.]").split()
    if leftovers:
        podman.run("rm", "--force", "--ignore", *leftovers, check=False)
    podman.run("image", "prune", "--force", "--filter", f"label={UNFINISHED}", check=False)


def unused(podman: Podman) -> list[str]:
    """Images of nodes that no container is made of and no `up` of this release takes: of other releases, and of clouds'
    GPU images, which are made again where they are missing."""
    rows = json.loads(podman.run("images", "--filter", f"reference={NODE}*", "--format", "json") or "[]") or []
    current = {node_reference(), base_reference()}
    names = [name for row in rows if not row.get("Containers") for name in row.get("Names") or ()]
    return sorted(name for name in names if name.startswith(NODE) and name not in current)


def remove(podman: Podman, reference: str) -> None:
    """Remove one of them; podman refuses one that a container was made of. Raises ProviderError."""
    podman.run("rmi", reference)


def exists(podman: Podman, reference: str) -> bool:
    return bool(podman.run("images", "--quiet", "--filter", f"reference={reference}").strip())


def build_base(podman: Podman, packages: Sequence[str] = PACKAGES, reference: str = "") -> None:
    """mmdebstrap into podman, then the name: an import that was cut off is an image without a name, and removed."""
    if shutil.which("mmdebstrap") is None:
        raise GpuprovError(
            "mmdebstrap is not installed", hint="sudo apt-get install -y mmdebstrap debian-archive-keyring"
        )
    if not Path(KEYRING).exists():
        raise GpuprovError(
            "Debian's signing keys are not installed", hint="sudo apt-get install -y debian-archive-keyring"
        )
    command = [
        "mmdebstrap",
        "--variant=minbase",
        "--mode=root",
        "--quiet",
        f"--include={','.join(packages)}",
        f"--keyring={KEYRING}",
        "--dpkgopt=force-unsafe-io",
        "--aptopt=Acquire::Languages none",
        "--aptopt=Acquire::Retries 3",
        *_proxy(),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in LEFT_OUT),
        SUITE,
        "-",
        *mirrors(),
    ]
    with tempfile.TemporaryFile() as complaints, tempfile.TemporaryFile() as answer:
        make = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=complaints, stdin=subprocess.DEVNULL)
        load = subprocess.Popen(
            [*podman.command, "import", "--quiet", "--change", f"LABEL {UNFINISHED}=debian", "-"],
            stdin=make.stdout,
            stdout=answer,
            stderr=complaints,
        )
        assert make.stdout is not None
        make.stdout.close()
        try:
            codes = (load.wait(timeout=1200), make.wait(timeout=60))
        except BaseException:
            for process in (make, load):
                process.terminate()
                process.wait(timeout=30)
            raise
        answer.seek(0)
        identity = answer.read().decode().strip().rpartition("\n")[2]
        complaints.seek(0)
        error_text = complaints.read().decode(errors="replace")
    if any(codes):
        if identity:
            podman.run("rmi", "--force", identity, check=False)
        raise ProviderError(
            f"the nodes' Debian image could not be made: {_cause(error_text)}",
            where="mmdebstrap",
            hint="is a Debian mirror within reach? GPUPROV_DEBIAN_MIRROR names another one",
        )
    podman.run("tag", identity, reference or base_reference())


def _cause(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith(("E:", "Error", "W: Failed"))]
    return "; ".join(lines[:3]) or (text.strip().splitlines() or ["it said nothing"])[-1]


def _proxy() -> list[str]:
    """The proxy of this machine's own apt, where it has one."""
    try:
        done = subprocess.run(
            ["apt-config", "dump", "--format", "%v", "Acquire::http::Proxy"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    value = done.stdout.strip()
    return [f'--aptopt=Acquire::http::Proxy "{value}"'] if value else []


ASIDE = "mv /etc/apt/sources.list /usr/lib/gpuprov-sandbox/debian-sources.list\n"
SETUP = """\
set -e
tar -C / -xf -
rm -f /etc/ssh/ssh_host_* /etc/machine-id /var/lib/dbus/machine-id /var/log/*.log
: > /etc/machine-id
systemctl --quiet mask MASKED
systemctl --quiet set-default multi-user.target
systemctl --quiet enable gpuprov-sandbox-sys.service gpuprov-sandbox-boot.service ssh.service
python3 -m compileall -q /usr/lib/gpuprov-sandbox
""".replace("MASKED", " ".join(MASKED))


def setup(*, prepared: bool = True) -> str:
    """What is run in the base once. `prepared`: Debian's packages are there, and nobody asks its mirror for more."""
    return f"{SETUP}{ASIDE}systemctl --quiet disable {' '.join(DISABLED)}\n" if prepared else SETUP


def build_node(podman: Podman, base: str = "", reference: str = "", *, prepared: bool = True) -> None:
    """The base, or another one, with the simulator in it, committed under its name when everything has succeeded."""
    with _container(
        podman,
        "run",
        "--interactive",
        "--network",
        "none",
        *ulimit_options(),
        "--env",
        "LC_ALL=C",
        base or base_reference(),
        stdin=tar(node_files(prepared=prepared)),
        after=("sh", "-c", setup(prepared=prepared)),
    ) as name:
        podman.run(
            "commit",
            "--quiet",
            "--change",
            'CMD ["/sbin/init"]',
            "--change",
            "STOPSIGNAL SIGRTMIN+3",
            "--change",
            "LABEL org.gpuprov.simulated=true",
            name,
            reference or node_reference(),
            deadline=300,
        )


def busybox(podman: Podman) -> bytes:
    """The static busybox of the base image, for the simulated container images."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        _container(podman, "create", base_reference(), after=("true",)) as name,
    ):
        podman.run("cp", f"{name}:/bin/busybox", f"{scratch}/busybox")
        return (Path(scratch) / "busybox").read_bytes()


@contextmanager
def _container(
    podman: Podman, verb: str, *args: str, after: tuple[str, ...], stdin: bytes | None = None
) -> Iterator[str]:
    name = f"gpuprov.image.{os.getpid()}.{verb}"
    try:
        podman.run(verb, "--name", name, *args, *after, stdin=stdin, deadline=300)
        yield name
    finally:
        podman.run("rm", "--force", "--ignore", name, check=False)
