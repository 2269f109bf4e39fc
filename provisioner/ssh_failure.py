"""Why ssh failed, in ssh's own words.

Its exit status says nothing (255, whatever it was), and it is silent in two cases: with `LogLevel ERROR`, which keeps
hosts' banners out of outputs, "Connection closed by …", "Connection reset by …" and "… timed out" are not printed
(openssh-portable, packet.c: sshpkt_vfatal logs them at INFO), and a client of a shared connection whose master ends is
silent at any level (mux.c: mux_client_request_session).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence

from provisioner import bounded
from provisioner.text import printable

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
    that is nothing, ssh connects once more, over a connection of its own and without silence."""
    if text := error_text(output):
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
    text = error_text(done.stderr)
    return BROKEN if done.returncode == 0 else text or f"exit status {done.returncode}"


def is_own(argv: Sequence[str], status: int | None) -> bool:
    """Whether a command ended with an error of ssh's own, not of what it ran on the node."""
    return bool(argv) and argv[0].rpartition("/")[2] == "ssh" and status == STATUS
