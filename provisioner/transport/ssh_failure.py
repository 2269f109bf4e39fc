"""Why ssh failed, in ssh's own words.

Its exit status says nothing (255, whatever it was), and it is silent in two cases: with `LogLevel ERROR`, which keeps
hosts' banners out of outputs, "Connection closed by …", "Connection reset by …" and "… timed out" are not printed
(openssh-portable, packet.c: sshpkt_vfatal logs them at INFO), and a client of a shared connection whose master ends is
silent at any level (mux.c: mux_client_request_session). What the ssh to a jump host says is lost where connections are
shared: standard error of a ProxyCommand is /dev/null then (sshconnect.c: ssh_proxy_connect).
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence

from provisioner.common import bounded
from provisioner.common.text import printable

STATUS = 255
"""ssh's exit status for an error of its own (ssh(1), EXIT STATUS)."""
LINES = 3
CHARACTERS = 400
CONNECT_TIMEOUT_S = 10
OPTIONS = (
    "ControlMaster=no",
    "ControlPath=none",
    "LogLevel=INFO",
    f"ConnectTimeout={CONNECT_TIMEOUT_S}",
    "BatchMode=yes",
)
BROKEN = "the connection ended without an error message, and ssh connects again now"
_CHANGED = ("REMOTE HOST IDENTIFICATION HAS CHANGED", "has changed and you have requested strict checking")
CHANGED_KEY = "it shows another one"
"""What `error_text` says of a host key that has changed."""
NO_GREETING = (
    "kex_exchange_identification: Connection closed by remote host",
    "Connection timed out during banner exchange",
    "banner exchange: Connection to UNKNOWN port",
)
"""What ssh prints where the other side has not greeted (kex.c: kex_exchange_identification)."""
CARRIED = "UNKNOWN port"
"""How ssh calls the other side of a connection that a ProxyCommand carries (packet.c: ssh_remote_ipaddr)."""
FORWARDING_FAILED = "stdio forwarding failed"
"""What `ssh -W` prints where the jump host has let it in and does not connect it to the node (ssh.c)."""
SIMULATED = "`gpuprov up` makes it again where it does not run"
"""What to do about the container that stands for a jump host in the sandbox."""
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/=]{20,64}")


def error_text(output: str) -> str:
    """The end of what ssh, sudo or a program printed, as one line without control characters. ssh's page about a host
    key that has changed is a sentence: its advice is for a file that is written anew.

    >>> error_text("banner\\nssh: connect to host 192.0.2.7 port 22: Connection refused\\r\\n")
    'banner / ssh: connect to host 192.0.2.7 port 22: Connection refused'
    """
    if any(line in output for line in _CHANGED):
        match = _FINGERPRINT.search(output)
        return f"Host key verification failed: {CHANGED_KEY} ({match[0] if match else 'ed25519'}) than is pinned"
    lines = [line.strip() for line in str(printable(output)).splitlines() if line.strip()]
    return " / ".join(lines[-LINES:])[-CHARACTERS:]


def explain(argv: Sequence[str], output: str) -> str:
    """Why a command of ssh's ended with status 255. `argv`: it up to the destination; `output`: what it printed. Where
    that is nothing, or only that a jump host gave no connection, ssh connects once more, over a connection of its own
    and without silence."""
    text = error_text(output)
    command = _proxy_command(argv) if has_no_greeting(text) else ""
    if text and not jump_host(command):
        return text
    options = [argument for option in OPTIONS for argument in ("-o", option)]
    try:
        done = bounded.run([argv[0], *options, *argv[1:], "true"], deadline_s=CONNECT_TIMEOUT_S + 5, new_session=True)
    except subprocess.TimeoutExpired:
        return f"no answer within {CONNECT_TIMEOUT_S + 5} s"
    except bounded.UnboundedOutputError as error:
        return str(error)
    except OSError as error:
        return f"{argv[0]}: {error.strerror or error}"
    if done.returncode == 0:
        return BROKEN
    cause = explain_carried(command or _proxy_command(argv), done.stderr) if has_no_greeting(done.stderr) else ""
    return cause or error_text(done.stderr) or f"exit status {done.returncode}"


def has_no_greeting(output: str) -> bool:
    """Whether ssh printed that the other side has not greeted: no command ran there."""
    return any(text in output for text in NO_GREETING)


def jump_host(command: str) -> str:
    """The jump host of a ProxyCommand, [user@]host[:port]; empty for any other command.

    >>> jump_host("ssh -o BatchMode=yes -p 2222 -W [10.0.0.5]:22 me@bastion.example.com")
    'me@bastion.example.com:2222'
    """
    try:
        arguments = shlex.split(command)
    except ValueError:
        return ""
    if "-W" not in arguments or arguments[0].rpartition("/")[2] != "ssh":
        return ""
    port = arguments[arguments.index("-p") + 1] if "-p" in arguments else ""
    return f"{arguments[-1]}:{port}" if port else arguments[-1]


def explain_carried(command: str, output: str) -> str:
    """What a jump host did with a connection, and what to do. `command`: the ProxyCommand; `output`: what ssh and it
    printed. Empty where no jump host carries the connection, or the fault is not its."""
    host = jump_host(command)
    lines = [line for line in output.splitlines() if not has_no_greeting(line) and CARRIED not in line]
    reason = error_text("\n".join(lines))
    if not host or not reason or not has_no_greeting(output):
        return ""
    if FORWARDING_FAILED in output:
        return f"jump host {host} does not connect to the node: {reason}"
    name, _, port = host.partition(":")
    simulated = shlex.split(command)[1] == "-F"
    advice = f"does `ssh {f'-p {port} ' if port else ''}{name} true` work from here?"
    return f"jump host {host} is not reached: {reason}; {SIMULATED if simulated else advice}"


def _proxy_command(argv: Sequence[str]) -> str:
    """The ProxyCommand of an ssh command line, as ssh itself reads its configuration; empty without one."""
    try:
        done = bounded.run([argv[0], "-G", *argv[1:]], deadline_s=CONNECT_TIMEOUT_S)
    except (subprocess.TimeoutExpired, bounded.UnboundedOutputError, OSError):
        return ""
    settings = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    return settings.get("proxycommand", "").replace("%%", "%")


def is_own(argv: Sequence[str], status: int | None) -> bool:
    """Whether a command ended with an error of ssh's own, not of what it ran on the node."""
    return bool(argv) and argv[0].rpartition("/")[2] == "ssh" and status == STATUS
