"""What the watcher asks of the machine that it runs on: its output, files, systemd, commands."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from contextlib import suppress


def say(text):
    print(text, flush=True)


def write(path, text):
    """Whole or not at all, readable by everybody."""
    handle, fresh = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".gpuprov-")
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(text)
            os.fchmod(handle, 0o644)  # the file that was written, whatever has its name by now
        os.replace(fresh, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(fresh)
        raise


def notify(text):
    """Tell systemd, where it listens (sd_notify(3))."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.sendto(text.encode(), "\0" + address[1:] if address[0] == "@" else address)


def run(*command, timeout=15):
    """Exit status and everything that a command said; 124 where it did not end, 127 where it could not start."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=timeout, check=False)  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, "no end after {} s".format(timeout)
    except OSError as error:
        return 127, str(error)
    return done.returncode, done.stdout.decode("utf-8", "replace").strip()
