"""Commands as root inside a sandbox node, past ssh.

By nsenter(1) into the namespaces of its first process: `podman exec` makes a monitor and a runtime for every command,
thirty times the processor time, and some tests have a hundred of them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

ENVIRONMENT = ("PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C")
"""What `podman exec` gives to a command in these images."""
_FIRST: dict[str, tuple[str, str]] = {}
"""Container → the number of its first process, and when that began: numbers come again."""


def command(container: str, *arguments: str) -> list[str]:
    """The command line that runs these words in a container; one that fails where the container does not run."""
    first = _FIRST.get(container)
    if first is None or _began(first[0]) != first[1]:
        argv = ["podman", "container", "inspect", "--format", "{{.State.Pid}}", container]
        pid = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
        began = _began(pid)
        if pid == "0" or not began:
            return ["sh", "-c", 'echo "$0 does not run" >&2; exit 125', container]
        _FIRST[container] = first = (pid, began)
    into = ["nsenter", "--target", first[0], "--all", "--"]
    return [*into, "/usr/bin/env", "--ignore-environment", *ENVIRONMENT, *arguments]


def run(container: str, *arguments: str, stdin: str = "", timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """These words in a container, with what they said."""
    return subprocess.run(
        command(container, *arguments), input=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )


def _began(pid: str) -> str:
    """When a process began, in ticks since boot (proc_pid_stat(5), field 22); empty where it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]
