"""What podman's two network backends keep of a container's network, and how it is taken down without podman: a podman
that was killed while it started a container does not know that network any more.

CNI (podman before 5): a lease is the file /var/lib/cni/networks/NETWORK/ADDRESS with "CONTAINER\\r\\nINTERFACE"
(containernetworking/plugins 3d27709f, plugins/ipam/host-local/backend/disk/backend.go: Reserve), the result of a set-up
/var/lib/cni/results/NETWORK-CONTAINER-INTERFACE (libcni/api.go: cacheAdd). DEL of each plugin of the network, the last
one first, removes interface, lease and firewall rules; it is told everything by its environment and standard input
(containernetworking/cni, SPEC.md, section 2) and may be repeated.

netavark: leases are in the database /run/containers/networks/ipam.db of podman's (bbolt), in a bucket for each network:
the subnet's bucket maps address → container, the bucket "ids" container → addresses (containers/common f437c58a,
libnetwork/netavark/ipam.go). netavark itself knows nothing of it: `netavark teardown NAMESPACE` removes interface and
firewall rules (run.go: Teardown, netavarkOptions); a lease goes with its network (removeNetworkIPAMBucket), before
podman 5.1 with the next boot alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from provisioner.common.errors import ProviderError

LEASES = Path("/var/lib/cni/networks")
RESULTS = Path("/var/lib/cni/results")
NETWORKS = Path("/etc/containers/networks")
RUN = Path("/run/containers/networks")
INTERFACE = "eth0"
CNI_PATH = "/usr/local/libexec/cni:/usr/libexec/cni:/usr/local/lib/cni:/usr/lib/cni:/opt/cni/bin"
"""`cni_plugin_dirs` of containers.conf(5)."""
HELPERS = "/usr/local/libexec/podman:/usr/local/lib/podman:/usr/libexec/podman:/usr/lib/podman"
"""`helper_binaries_dir` of containers.conf(5)."""
SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"
DEADLINE_S = 60
CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
_CHAIN_CHARACTERS = 28
_CHAIN = re.compile(r"CNI-[0-9a-f]{24}")


@dataclass(frozen=True, slots=True)
class Remains:
    """The network of a container that podman does not know, or not as running. `container`: its id, empty where nothing
    tells it. `address`: its IPv4 address; None before it had one. `namespace`: the path; None where it is gone."""

    container: str
    address: str | None
    namespace: Path | None


@dataclass(frozen=True, slots=True)
class SandboxNetwork:
    """A network of one sandbox. `subnet`: its first three octets; `host`: those of the addresses that lead to it."""

    name: str
    subnet: str
    host: str

    @property
    def cidr(self) -> str:
        return f"{self.subnet}.0/24"


class Backend(Protocol):
    """One of podman's network backends. `gives_back`: whether it can give a single lease back."""

    gives_back: bool

    def leases(self, network: SandboxNetwork) -> dict[str, str]:
        """Address → id of the container that has it, of one network; "" for one that was not written to its end. Empty
        where the backend cannot be asked."""

    def tear_down(self, network: SandboxNetwork, remains: Remains) -> None:
        """Remove interface, firewall rules and, where that is possible, the lease. Raises ProviderError, the first time
        also where a rule that it wants to remove was not made yet."""

    def forget(self, network: SandboxNetwork) -> None:
        """Remove what is left of a network that podman has removed."""


class Cni:
    """See Backend."""

    gives_back = True

    def leases(self, network: SandboxNetwork) -> dict[str, str]:
        leases = {}
        for path in (LEASES / network.name).glob(f"{network.subnet}.*"):
            try:
                container = path.read_bytes().split(b"\r\n")[0].decode().strip()
            except (OSError, ValueError):
                continue
            leases[path.name] = container if CONTAINER_ID.fullmatch(container) else ""
        return leases

    def tear_down(self, network: SandboxNetwork, remains: Remains) -> None:
        if remains.container:
            for plugin in self._plugins(network, remains):
                _run(
                    [_program(plugin["type"], CNI_PATH)], plugin, f"CNI plugin {plugin['type']}",
                    CNI_COMMAND="DEL", CNI_CONTAINERID=remains.container, CNI_IFNAME=INTERFACE, CNI_PATH=CNI_PATH,
                    CNI_NETNS=str(remains.namespace or ""),
                )  # fmt: skip
            _remove_masquerade(network, remains.container)
            for path in RESULTS.glob(f"{network.name}-{remains.container}-*"):
                path.unlink(missing_ok=True)
        if remains.address:  # a lease without a container's id: podman was killed while it was written
            (LEASES / network.name / remains.address).unlink(missing_ok=True)

    def forget(self, network: SandboxNetwork) -> None:
        shutil.rmtree(LEASES / network.name, ignore_errors=True)
        _remove_masquerade(network)

    @staticmethod
    def _plugins(network: SandboxNetwork, remains: Remains) -> list[dict[str, Any]]:
        """The plugins of podman's networks in the order of DEL, with as much configuration as DEL reads."""
        common: dict[str, Any] = {"cniVersion": "0.4.0", "name": network.name}
        if remains.address:
            address = {"version": "4", "address": f"{remains.address}/24", "gateway": f"{network.subnet}.1"}
            common["prevResult"] = {"cniVersion": "0.4.0", "ips": [address]}
        ipam = {"type": "host-local", "ranges": [[{"subnet": network.cidr}]]}
        return [
            *([common | {"type": "firewall"}] if remains.address else []),
            common | {"type": "portmap", "runtimeConfig": {"portMappings": [_port(network, remains, "hostIP")]}},
            common | {"type": "bridge", "isGateway": True, "ipMasq": True, "ipam": ipam},
        ]


def _remove_masquerade(network: SandboxNetwork, container: str = "") -> None:
    """Remove the masquerading of a container, or of all of a network: `bridge` removes none where the interface is
    gone, which it removes first. Its chain is called after both names (containernetworking/plugins 1.1.1,
    pkg/utils/utils.go: FormatChainName), its rules name them in a comment (FormatComment)."""
    if (program := shutil.which("iptables", path=SYSTEM_PATH)) is None:
        return
    saved = subprocess.run([f"{program}-save", "-t", "nat"], capture_output=True, timeout=DEADLINE_S, check=False)
    rows = [shlex.split(line) for line in saved.stdout.decode(errors="replace").splitlines() if line[:1] in ("-", ":")]
    comment = f'name: "{network.name}" id: "{container}'
    tagged = [row for row in rows if row[0] == "-A" and any(argument.startswith(comment) for argument in row)]
    jumps = [row for row in tagged if row[1] == "POSTROUTING"]
    chains = {row[row.index("-j") + 1] for row in jumps if "-j" in row}
    # bridge, killed between the two, has made the chain and no jump to it
    chains |= {row[1] for row in tagged if _CHAIN.fullmatch(row[1])}
    if container:
        digest = hashlib.sha512((network.name + container).encode()).hexdigest()
        chain = f"CNI-{digest}"[:_CHAIN_CHARACTERS]
        chains |= {chain} & {row[0][1:] for row in rows}
    changes = [["-D", *row[1:]] for row in jumps] + [[flag, chain] for flag in ("-F", "-X") for chain in sorted(chains)]
    for change in changes:
        subprocess.run([program, "-w", "-t", "nat", *change], capture_output=True, timeout=DEADLINE_S, check=False)


class Netavark:
    """See Backend."""

    gives_back = False

    def leases(self, network: SandboxNetwork) -> dict[str, str]:  # noqa: ARG002
        return {}

    def tear_down(self, network: SandboxNetwork, remains: Remains) -> None:
        if not remains.address or remains.namespace is None:
            return
        options = {
            "container_id": remains.container,
            "container_name": network.name,
            "port_mappings": [_port(network, remains, "host_ip") | {"range": 1}],
            "networks": {network.name: {"interface_name": INTERFACE, "static_ips": [remains.address]}},
            "network_info": {network.name: json.loads((NETWORKS / f"{network.name}.json").read_text(encoding="utf-8"))},
        }
        program = _program("netavark", HELPERS)
        _run([program, "--config", str(RUN), "teardown", str(remains.namespace)], options, "netavark teardown")

    def forget(self, network: SandboxNetwork) -> None:
        """Its leases went with it."""


BACKENDS: Mapping[str, type[Cni] | type[Netavark]] = {"cni": Cni, "netavark": Netavark}


def _port(network: SandboxNetwork, remains: Remains, host_key: str) -> dict[str, Any]:
    """The published port of a node; CNI and netavark spell it differently."""
    number = (remains.address or network.cidr).rpartition(".")[2].partition("/")[0]
    address = f"{network.host}.{number}"
    if host_key == "hostIP":
        return {"hostPort": 22, "containerPort": 22, "protocol": "tcp", host_key: address}
    return {"host_port": 22, "container_port": 22, "protocol": "tcp", host_key: address}


def _program(name: str, folders: str) -> str:
    path = shutil.which(name, path=f"{folders}:{os.environ.get('PATH', '')}")
    if path is None:
        raise ProviderError(f"{name} is not in {folders}", hint="install podman's network packages again")
    return path


def _run(argv: list[str], document: dict[str, Any], name: str, **environment: str) -> None:
    try:
        done = subprocess.run(
            argv, input=json.dumps(document).encode(), capture_output=True, timeout=DEADLINE_S, check=False,
            env={**os.environ, **environment},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProviderError(f"{name} failed: {error}") from error
    if done.returncode != 0:
        raise ProviderError(f"{name} failed: {_error_text(done)}")


def _error_text(done: subprocess.CompletedProcess[bytes]) -> str:
    """CNI plugins write {"code", "msg", "details"} on standard output (SPEC.md, section 5), netavark {"error"}."""
    try:
        document = json.loads(done.stdout)
        return str(document.get("msg") or document["error"])
    except (ValueError, LookupError, TypeError, AttributeError):
        lines = (done.stderr or done.stdout).decode(errors="replace").split("\n")
        return next((line for line in lines if line.strip()), f"exit status {done.returncode}")
