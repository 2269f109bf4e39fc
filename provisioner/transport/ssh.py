"""Commands that reach nodes with OpenSSH, or this very machine without it."""

from __future__ import annotations

from provisioner.common.paths import ClusterPaths
from provisioner.transport import ssh_config, ssh_sockets

LOCAL_SHELL = 'if [ $# -eq 0 ]; then exec "${SHELL:-/bin/sh}" -l; fi; exec /bin/sh -c "$*"'
"""Runs its arguments as ssh does on the other side: as one text for a shell, a login where there are none."""

OWN_CONNECTION = "ControlPath=none"
"""An option of ssh: a connection that is not shared, and does not end with this run."""

UNSHARED = ("-o", "ControlMaster=no", "-o", OWN_CONNECTION)
"""For a login or a copy: a command that is killed ends the connections that it shares, and this one must stay."""


def argv(paths: ClusterPaths, node: str, *options: str) -> list[str]:
    """The command that reaches a node, ssh but for this very machine; append one command string to run it there.
    `options`: of ssh."""
    if node in ssh_config.local(paths):
        return ["/bin/sh", "-c", LOCAL_SHELL, "gpuprov"]
    config = paths.ssh / "config" if OWN_CONNECTION in options else ssh_sockets.run_config(paths)
    return ["ssh", "-F", str(config), *options, node]


def copy_argv(
    paths: ClusterPaths, source: tuple[str, str], target: tuple[str, str], *, recursive: bool = False
) -> list[str]:
    """The command that copies a file. `source`, `target`: node and path; an empty node is this computer."""

    def scp_location(node: str, path: str) -> str:
        if node and node not in ssh_config.local(paths):
            return f"{node}:{path}"
        return path if path.startswith(("/", "./")) else f"./{path}"  # a colon in it names no host

    flags = ["-r"] if recursive else []
    places = [scp_location(*source), scp_location(*target)]
    if {source[0], target[0]} <= ssh_config.local(paths) | {""}:
        return ["cp", *flags, "--", *places]
    config = str(paths.ssh / "config")
    return ["scp", "-q", "-F", config, *UNSHARED, *flags, "--", *places]
