#!/usr/bin/python
"""Files of a Slurm controller, and the daemons that read them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_controller
short_description: Put the files of a Slurm controller in place and have its daemons run with them
description:
  - Writes the files to /etc/slurm, C(@hostname@) in them being the name of this machine, makes the database of slurmdbd,
    and starts slurmdbd and slurmctld, or starts them again where a file has changed. Running jobs go on.
  - The first slurmctld of a machine begins with a new key of munge and with all nodes drained, so that no job starts on a
    node before it is proven.
options:
  files: {description: Name in /etc/slurm to text., type: dict, required: true}
  accounting: {description: Whether slurmdbd runs., type: bool, required: true}
  restart: {description: Start the daemons again although no file has changed., type: bool, default: false}
  timeout: {description: Seconds that a daemon may take to answer., type: int, default: 120}
author: gpuprov
"""

EXAMPLES = r"""
- name: Run slurmctld
  slurm_controller:
    files: "{{ gpuprov_slurm.files }}"
    accounting: true
"""

RETURN = r"""
done:
  description: Files that were written, and daemons that were started.
  type: list
  elements: str
  returned: always
"""

import os
import pwd
import shutil
import socket
import subprocess
import time

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpuprov_files import put, read
from ansible.module_utils.gpuprov_record import note, note_file

FOLDER = "/etc/slurm"
STATE = "/var/lib/slurm/slurmctld"
OWN = "/var/lib/gpuprov/slurm-controller"
"""There once this machine is a controller that gpuprov has begun: what lies in STATE without it is of another life."""
PENDING = "/var/lib/gpuprov/slurm-controller-pending"
"""There while files are written that the daemons have not read."""
OF_DBD = "slurmdbd.conf"
DATABASE = """
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED VIA unix_socket;
GRANT ALL ON slurm_acct_db.* TO slurm@localhost;
"""
"""No password: MariaDB takes the user of the process on the socket (mariadb.com/kb, Authentication Plugin - Unix Socket)."""
PROVING = ' State=DRAIN Reason="gpuprov: proving"'
KEY_FILE, KEY_BYTES = "/etc/munge/munge.key", 128
"""As long as the key that mungekey(8) makes."""
PAUSE_S = 0.5
DBD_PORT = 6819


class Failed(Exception):
    """A program that did not do what it was asked to."""


def run(*command, text=None, timeout=60):
    """What the program prints. Raises Failed."""
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, encoding="utf-8", errors="replace", timeout=timeout, check=False, env=dict(os.environ, LC_ALL="C")
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed("{0}: {1}".format(command[0], error)) from error
    if done.returncode:
        raise Failed("{0}: {1}".format(" ".join(command), (done.stdout + done.stderr).strip()[-2000:]))
    return done.stdout


def drained(text):
    """slurm.conf with every node drained."""
    lines = [line + PROVING if line.startswith("NodeName=") else line for line in text.split("\n")]
    return "\n".join(lines)


def is_active(unit):
    return subprocess.run(["systemctl", "is-active", "--quiet", unit], check=False).returncode == 0


def start(unit):
    """Start a unit, or start it again, now and at boot."""
    note("units", [unit])
    run("systemctl", "daemon-reload")
    run("systemctl", "--quiet", "enable", unit)
    run("systemctl", "restart", unit, timeout=180)


def await_answer(unit, timeout, ask):
    """Wait until the question is answered. Raises Failed with the journal of the unit."""
    until = time.monotonic() + timeout
    while True:
        try:
            return ask()
        except (Failed, OSError) as error:
            if time.monotonic() > until or "fatal:" in str(error):  # a file that it cannot read
                lines = run("journalctl", "--no-pager", "--output", "cat", "--lines", "8", "--unit", unit).split("\n")
                log = " | ".join(line for line in lines if line)
                raise Failed("{0} does not answer: {1}: {2}".format(unit, error, log)) from error
        time.sleep(PAUSE_S)


def reach_dbd():
    """sacctmgr needs a slurm.conf, which comes later: here it is enough that slurmdbd listens. Raises OSError."""
    socket.create_connection(("127.0.0.1", DBD_PORT), 5).close()


def ask_controller():
    """Raises Failed."""
    return run("scontrol", "show", "nodes")


def make_key():
    """A key of munge for this cluster: that of an image is the same on all of its machines."""
    key = os.urandom(KEY_BYTES)
    note_file(KEY_FILE, key)
    owner, fresh = pwd.getpwnam("munge"), KEY_FILE + ".gpuprov"
    if os.path.lexists(fresh):
        os.unlink(fresh)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "wb") as stream:
        os.fchown(stream.fileno(), owner.pw_uid, owner.pw_gid)
        stream.write(key)
    os.replace(fresh, KEY_FILE)
    run("systemctl", "restart", "munge.service", timeout=180)


def write(module, name, text):
    """Write one of the files; that of slurmdbd is for slurmdbd alone, which insists on it."""
    path = os.path.join(FOLDER, name)
    put(module, path, text, 0o600 if name == OF_DBD else 0o644)
    if name == OF_DBD:
        user = pwd.getpwnam("slurm")
        os.chown(path, user.pw_uid, user.pw_gid)


def controller(module, files, changed, done):
    """slurmctld, with its files."""
    timeout = module.params["timeout"]
    user = pwd.getpwnam("slurm")
    if not os.path.exists(OWN):
        if is_active("slurmctld.service"):
            run("systemctl", "stop", "slurmctld.service", timeout=180)
        if os.path.isdir(STATE) and os.listdir(STATE):
            shutil.move(STATE, "{0}.before-{1:.0f}".format(STATE, time.time()))
        os.makedirs(STATE, mode=0o755, exist_ok=True)
        os.chown(STATE, user.pw_uid, user.pw_gid)
        make_key()
        for name, text in files.items():
            write(module, name, drained(text) if name == "slurm.conf" else text)
        start("slurmctld.service")
        await_answer("slurmctld.service", timeout, ask_controller)
        run("systemctl", "stop", "slurmctld.service", timeout=180)  # it saves the state of the nodes
        if not os.path.exists(os.path.join(STATE, "node_state")):
            raise Failed("slurmctld has not saved that its nodes are drained: {0}/node_state".format(STATE))
        put(module, OWN, "Written by gpuprov: the controller of a Slurm cluster has begun here.\n")
        changed = list(files)
    for name in changed:
        write(module, name, files[name])
    start("slurmctld.service")
    await_answer("slurmctld.service", timeout, ask_controller)
    run("scontrol", "reconfigure")  # the nodes have their files from here
    done.append("slurmctld.service")


def main():
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "dict", "required": True},
            "accounting": {"type": "bool", "required": True},
            "restart": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    hostname = socket.gethostname().split(".")[0]
    files = {name: text.replace("@hostname@", hostname) for name, text in module.params["files"].items()}
    changed = [name for name, text in files.items() if read(os.path.join(FOLDER, name)) != text]
    accounting, restart = module.params["accounting"], module.params["restart"]
    of_dbd, of_controller = [n for n in changed if n == OF_DBD], [n for n in changed if n != OF_DBD]
    restart = restart or os.path.exists(PENDING)  # a run was killed between the files and the daemons
    dbd_due = accounting and (of_dbd or restart or not is_active("slurmdbd.service"))
    controller_due = of_controller or restart or not os.path.exists(OWN) or not is_active("slurmctld.service")
    if module.check_mode or not (dbd_due or controller_due):
        module.exit_json(changed=bool(dbd_due or controller_due), done=changed)
    done = list(changed)
    put(module, PENDING, "Written by gpuprov\n")
    try:
        if dbd_due:
            run("mariadb", "--batch", text=DATABASE)
            for name in of_dbd:
                write(module, name, files[name])
            start("slurmdbd.service")
            await_answer("slurmdbd.service", module.params["timeout"], reach_dbd)
            done.append("slurmdbd.service")
        if controller_due:
            remaining = {name: text for name, text in files.items() if name != OF_DBD}
            controller(module, remaining, of_controller, done)
    except Failed as error:
        module.fail_json(msg=str(error))
    os.unlink(PENDING)
    module.exit_json(changed=True, done=done)


if __name__ == "__main__":
    main()
