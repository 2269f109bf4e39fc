"""Who can reach the node, and as whom."""

from __future__ import annotations

from provisioner.verify.check import check, fail, saw, skip
from provisioner.verify.checks.host import NEEDS, host_of, reported
from provisioner.verify.expectations import Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.host import Host
from provisioner.verify.parsers.host_software import Socket

DOCKER, HOSTENGINE, EXPORTERS = 2375, 5555, {9400: "DCGM exporter", 9100: "node exporter", 9090: "Prometheus"}
"""TCP ports: docker without TLS, DCGM's host engine, and what serves metrics (their makers' defaults)."""


def _open(host: Host, ports: tuple[int, ...]) -> list[Socket]:
    """Sockets on these ports that another machine can reach."""
    return [s for s in reported(host.listening, "what listens on it") if s.port in ports and not s.loopback]


@check(
    "security.docker_tcp",
    severity="fatal",
    documented="docs.docker.com, Protect the Docker daemon socket",
    action="reconfigure",
    needs=NEEDS,
    says="Docker listens on the network without TLS, so everyone who reaches the port is root here. Remove -H tcp://.",
)
def test_docker_tcp(node: Facts) -> None:
    open_sockets = [f"{s.address}:{s.port}" for s in _open(host_of(node), (DOCKER,))]
    saw(expected="only on its socket", actual=open_sockets or "only on its socket")
    if open_sockets:
        fail(f"docker's port is open on {', '.join(open_sockets)}")


@check(
    "security.hostengine_exposed",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    says="DCGM's host engine listens on the network, and it knows no passwords: others can change the GPUs' settings.",
)
def test_hostengine(node: Facts) -> None:
    open_sockets = [f"{s.address}:{s.port}" for s in _open(host_of(node), (HOSTENGINE,))]
    saw(expected="on loopback alone", actual=open_sockets or "on loopback alone")
    if open_sockets:
        fail(f"port {HOSTENGINE} is open on {', '.join(open_sockets)}")


@check(
    "security.exporter_exposed",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    says="Metrics are served on an address of the public internet. Bind them to a private one, or close the port.",
)
def test_exporter(node: Facts, expected: Expected) -> None:
    host = host_of(node)
    # IPv6 has no translation: in a cloud every address is public, and the firewall of its network keeps others off.
    public = [a for a in host.public if expected.bare_metal or ":" not in a]
    open_sockets = [
        f"{EXPORTERS[s.port]} on {s.address}:{s.port}"
        for s in _open(host, tuple(EXPORTERS))
        # A node behind its cloud's address translation has private addresses alone.
        if s.address in public or (s.everywhere and public)
    ]
    saw(expected="on private addresses", actual=open_sockets or "on private addresses")
    if open_sockets:
        fail("; ".join(open_sockets))


@check(
    "packages.keys",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    applies=lambda e: e.repo_keys,
    otherwise="no lock names repositories",
    lock="the fingerprints are those of the lock's repositories",
    says="A repository of the lock is trusted by another key than the pinned one: its packages may not be the "
    "vendor's. `gpuprov up` installs the pinned key.",
)
def test_keys(node: Facts, expected: Expected) -> None:
    fingerprints = host_of(node).repo_keys
    if fingerprints is None:
        skip("an older probe, which did not look at them")
    wrong = {name: fingerprints.get(name) or "no key" for name, pinned in expected.repo_keys.items()
             if fingerprints.get(name, "") != pinned.upper().replace(" ", "")}  # fmt: skip
    saw(expected=dict(expected.repo_keys), actual=wrong or "the pinned ones")
    if wrong:
        fail("; ".join(f"{name}: {fingerprint}" for name, fingerprint in list(wrong.items())[:3]))


WELL_KNOWN = (22, 53, 68, 111, 123, 323, 2049, 6817, 6818, 6819, 10250)
"""Ports of what clusters serve on purpose: ssh, names, DHCP, time, NFS, Slurm, kubelet."""


# Told, and no more: which services a fleet offers is its owner's to say, and a firewall may stand before them.
@check(
    "security.open_ports",
    severity="info",
    action="none",
    needs=NEEDS,
    follows=("security.docker_tcp", "security.hostengine_exposed", "security.exporter_exposed"),
    says="The node listens on the public internet beyond ssh and what clusters serve. See whose it is; close it, or "
    "let the firewall do so.",
)
def test_open_ports(node: Facts, expected: Expected) -> None:
    host = host_of(node)
    public = [a for a in host.public if expected.bare_metal or ":" not in a]
    listening = reported(host.listening, "what listens on it")
    known = (*WELL_KNOWN, DOCKER, HOSTENGINE, *EXPORTERS)
    unknown_ports = sorted(
        {s.port for s in listening if (s.address in public or (s.everywhere and public))} - set(known)
    )
    saw(expected="nothing else on a public address", actual=unknown_ports or "nothing else on a public address")
    if unknown_ports:
        fail(f"TCP ports {', '.join(map(str, unknown_ports[:12]))} on {', '.join(public[:2])}")


@check(
    "security.root_password",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    says="root has an empty password, or one at all on a cloud's machine, where no image sets one. `passwd -l root`.",
)
def test_root_password(node: Facts, expected: Expected) -> None:
    state = host_of(node).root_password
    if state is None:
        skip("/etc/shadow has no root, or an older probe looked")
    saw(expected="locked" if not expected.bare_metal else "locked, or set", actual=state)
    if state == "none":
        fail("root has an empty password")
    if state == "set" and not expected.bare_metal:
        fail("root has a password")


def _ssh(node: Facts, expected: Expected) -> Host:
    host = host_of(node)
    if host.sshd is None:
        skip("`sshd -T` gives no settings")
    # Behind one's own walls passwords are one's own choice.
    if expected.bare_metal and not host.public:
        skip("this machine has no public address, and no cloud's image")
    return host


@check(
    "security.ssh_password",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    says="sshd accepts passwords, which no cloud image does, and attackers guess them. Allow keys only.",
)
def test_ssh_password(node: Facts, expected: Expected) -> None:
    allowed = (_ssh(node, expected).sshd or {}).get("passwordauthentication", ("no",))
    saw(expected="no", actual=allowed[0])
    if allowed[0] == "yes":
        fail("PasswordAuthentication yes")


@check(
    "security.ssh_root",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    says="sshd lets root in with a password. Set PermitRootLogin to prohibit-password, or no.",
)
def test_ssh_root(node: Facts, expected: Expected) -> None:
    allowed = (_ssh(node, expected).sshd or {}).get("permitrootlogin", ("no",))
    saw(expected="not with a password", actual=allowed[0])
    if allowed[0] == "yes":
        fail("PermitRootLogin yes")
