"""Machines that exist already, reached by ssh or, this very one, without it: let in to, and left again."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeGuard

from provisioner.common import bounded
from provisioner.common.errors import GpuprovError, ProviderError
from provisioner.common.events import Events
from provisioner.common.paths import IDENTITY, ClusterPaths
from provisioner.common.text import printable
from provisioner.rundir.fleet import PARALLEL, Node
from provisioner.transport import process, root_python, ssh, ssh_config, ssh_failure

DEADLINE_S = 60.0
UNDO_S = 600.0
ADD_KEY = """\
set -eu; umask 077; mkdir -p "$HOME/.ssh"; file=$HOME/.ssh/authorized_keys; touch "$file"
if grep -qxF -- "$1" "$file"; then exit 0; fi
if [ -n "$(tail -c1 "$file")" ]; then echo >>"$file"; fi
printf '%s\\n' "$1" >>"$file"
"""
TAKE_KEY = """\
set -eu; umask 077; file=$(readlink -f "$HOME/.ssh/authorized_keys"); new=$(mktemp "$file.XXXXXX")
{ grep -vxF -- "$1" "$file" || [ $? = 1 ]; } >"$new" && chmod --reference="$file" "$new" && mv "$new" "$file" && exit 0
rm -f "$new"; exit 1
"""
"""Takes away what ADD_KEY has added. The file is whole at any time: it lets the owner in."""


class ForeignError(ProviderError):
    """A machine that a gpuprov cluster of another name has configured: nothing on it is this cluster's."""

    code = "machine_of_another_cluster"


@dataclass(frozen=True, slots=True)
class Way:
    """How a cluster's machines are reached. `users`: node → its account; `carried`: node → ssh's ProxyCommand; `key`:
    the public key that is let in; `identity`: what tells the cluster from others of its name (both are made when they
    are first asked for); `hosts`: the names of all machines that exist already, of nodes and of those that cluster.yaml
    lists at any site, `listed`."""

    paths: ClusterPaths
    users: Mapping[str, str]
    carried: Mapping[str, str]
    key: Callable[[], str]
    identity: Callable[[], str]
    hosts: frozenset[str]
    listed: frozenset[str] = frozenset()

    @property
    def line(self) -> str:
        """gpuprov's line in authorized_keys: nobody else's has this comment."""
        return f"{' '.join(self.key().split()[:2])} gpuprov-{self.paths.name}"


class DeniedError(ProviderError):
    """A machine whose sshd refuses gpuprov's key."""

    code = "login_refused"


class AnotherHostError(ProviderError):
    """A machine is another one of the same cluster than the address says. `host`: which one."""

    code = "another_host"

    def __init__(self, node: Node, host: str) -> None:
        super().__init__(
            f"{_address_text(node)} is another host of this cluster, {host}",
            where=node.name,
            hint="write each host's own address into cluster.yaml. For a host that is to have another name: take it "
            "out of `hosts`, run `gpuprov up`, and list it again",
        )
        self.host = host


def admit(access: Way, nodes: Sequence[Node], events: Events) -> dict[str, ProviderError]:
    """See that each machine lets gpuprov in and lets it be root, and begin the record of what is changed there. Where
    gpuprov's key is not known yet, the caller's own ssh brings it there. Gives what could not be entered, and why.
    Where a machine is another one of the cluster, what answers at that one's address is not entered either."""
    new: set[str] = set()
    failed = _each(nodes, lambda node: new.add(node.name) if _admit(access, node, events) else None)
    known = {error.host: name for name, error in failed.items() if isinstance(error, AnotherHostError)}
    strange = [node for node in nodes if node.name in new and node.id in known]
    undone = undo(access, strange, lambda *_: None)
    for node in strange:
        remainder = f", and gpuprov's record stays on it: {undone[node.name].message}" if node.name in undone else ""
        failed[node.name] = ProviderError(
            f"{_address_text(node)} is not {node.id}, which answers at the address of {known[node.id]}{remainder}",
            where=node.name,
            hint="write each host's own address into cluster.yaml",
        )
    return failed


def undo(
    access: Way, nodes: Sequence[Node], report: Callable[[Node, list[str], list[str]], None], *,
    finished: Collection[str] = (),
) -> dict[str, ProviderError]:  # fmt: skip
    """Undo on each machine what gpuprov did there; `report` gets what was done and what stays. Gives those where that
    could not be done, and why. Which of these machines has which address does not matter. Where gpuprov's key is not
    let in, as before an `up` that was killed has brought it, the caller's own ssh brings it; not to the hosts
    `finished`, from which an earlier call has taken it."""
    ids = frozenset(node.id for node in nodes)

    def undo_one(node: Node) -> None:
        request = {"do": "undo", "user": access.users[node.name], "others": sorted(access.hosts - ids)}
        if node.name not in ssh_config.local(access.paths):
            request["key"] = access.line
        try:
            answer = _ask(access, node, request, UNDO_S)
        except DeniedError:
            if node.id in finished:
                raise
            _bring_key(access, node)
            try:
                answer = _ask(access, node, request, UNDO_S)
            except GpuprovError:
                _take_key(access.paths, node, access.line)
                raise
        done, stays = answer.get("done"), answer.get("stays")
        if not _texts(done) or not _texts(stays):
            raise _unclear(node, answer)
        report(node, done, stays)
        if "failed" in answer:
            raise _stopped(node, answer["failed"])

    return _each(nodes, undo_one)


def _each(nodes: Sequence[Node], call: Callable[[Node], None]) -> dict[str, ProviderError]:
    def safely(node: Node) -> ProviderError | None:
        try:
            call(node)
        except ProviderError as error:
            return error
        return None

    with ThreadPoolExecutor(max_workers=PARALLEL) as pool:
        errors = dict(zip([node.name for node in nodes], pool.map(safely, nodes), strict=True))
    return {name: error for name, error in errors.items() if error is not None}


def _admit(access: Way, node: Node, events: Events) -> bool:
    """Whether its record was begun just now."""
    has_brought_key = False
    if node.name not in ssh_config.local(access.paths):
        code, output = _call([*ssh.argv(access.paths, node.name), "true"])
        if code and "Permission denied" in output:
            _bring_key(access, node)
            has_brought_key = True
            events(
                "fleet", "log", f"gpuprov's key added to {access.users[node.name]}'s authorized_keys", node=node.name
            )
            code, output = _call([*ssh.argv(access.paths, node.name), "true"])
        if code:
            _refuse(node, f"ssh to {_address_text(node)} as {access.users[node.name]} fails: {output}", _hint(output))
    try:
        other_hosts = sorted(access.hosts - {node.id})
        answer = _ask(access, node, {"do": "begin", "cluster": access.paths.name, "others": other_hosts}, DEADLINE_S)
        if answer.get("ok") is not True:
            raise _unclear(node, answer)
        return answer.get("new") is True
    except GpuprovError:
        if has_brought_key:  # a machine that is refused is left as it was
            _take_key(access.paths, node, access.line)
        raise


def _take_key(paths: ClusterPaths, node: Node, line: str) -> None:
    """Take gpuprov's key from a machine that is left as it was."""
    _call([*ssh.argv(paths, node.name), f"sh -s -- {shlex.quote(line)}"], TAKE_KEY)


def _hint(output: str) -> str:
    if output.startswith("jump host"):
        return "nothing is known of the machine: make the jump host work, then run the same command again"
    if "Host key verification failed" in output:
        return (
            "reinstalled, or somebody is in between: compare it on its console with `ssh-keygen -lf "
            "/etc/ssh/ssh_host_ed25519_key.pub`, and write the new key into the file of sites.<name>.host_keys"
        )
    if "Permission denied" in output:
        return "a key of access.ssh_key must have no passphrase; without that key gpuprov makes one of its own"
    return "look at the machine's console, address, port and jump host; then run the same command again"


def _address_text(node: Node) -> str:
    """A host as cluster.yaml names it, and where ssh looks for it."""
    location = f"{node.address} port {node.port}"
    return f"{node.id} ({location})" if node.id != node.address else location


def _bring_key(access: Way, node: Node) -> None:
    """Add gpuprov's key by the caller's own ssh: their configuration, keys and agent, the pinned host key."""
    process.refuse_stopped()
    user = access.users[node.name]
    options = {
        "BatchMode": "yes", "StrictHostKeyChecking": "yes", "UserKnownHostsFile": str(access.paths.known_hosts),
        "GlobalKnownHostsFile": "/dev/null", "HostKeyAlias": f"{node.name}.{access.paths.name}",
        "HostKeyAlgorithms": "ssh-ed25519", "UpdateHostKeys": "no", "ControlPath": "none",
        "ConnectTimeout": str(ssh_config.CONNECT_TIMEOUT_S),
    }  # fmt: skip
    if command := access.carried.get(node.name):
        options["ProxyCommand"] = command.replace("%", "%%")
    option_words = [argument for key, value in options.items() for argument in ("-o", f"{key}={value}")]
    argv = [
        "ssh",
        *option_words,
        "-p",
        str(node.port),
        "-l",
        user,
        node.address,
        f"sh -s -- {shlex.quote(access.line)}",
    ]
    code, output = _call(argv, ADD_KEY)
    if code:
        port = f" -p {node.port}" if node.port != 22 else ""
        _refuse(
            node,
            f"neither gpuprov's key nor your own ssh gets into {node.address} as {user}: {output}",
            f"`ssh{port} {user}@{node.address} true` has to work without a question (ssh-copy-id brings your key "
            "there); another account: sites.<name>.user",
        )


def _ask(access: Way, node: Node, request: Mapping[str, Any], deadline_s: float) -> dict[str, Any]:
    """The answer of on_node.py, printable; the caller checks what is in it, as a machine can answer anything. Raises
    ProviderError where there is none, and where the machine is another cluster's or can't do it, and LockedError where
    the lease of this run is lost: another run may work on the machine."""
    process.refuse_stopped()
    request = {**request, "identity": access.identity(), "host": node.id}
    source = (resources.files("provisioner.machines") / "on_node.py").read_text(encoding="utf-8")
    program = root_python.text_of(source, request)
    code, output = _call([*ssh.argv(access.paths, node.name), root_python.ROOT_PYTHON], program, deadline_s)
    lines = [line for line in output.splitlines() if line.startswith("gpuprov:")]
    if code or not lines:
        user = access.users[node.name]
        if code in (255, 124) and node.name not in ssh_config.local(access.paths):  # ssh's own status
            is_denied = "Permission denied" in output and not output.startswith("jump host")
            message = f"ssh to {_address_text(node)} as {user} fails: {output}"
            raise (DeniedError if is_denied else ProviderError)(message, where=node.name, hint=_hint(output))
        if "sudo:" in output:
            _refuse(
                node,
                f"{user} cannot become root with sudo on {node.address} without a password: {output}",
                f"as root there: echo '{user} ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/90-{user}",
            )
        _refuse(node, f"python3 as root fails on {node.address}: {output}", "gpuprov needs Python 3.8 or later there")
    text = lines[-1].removeprefix("gpuprov:")
    try:
        answer = printable(json.loads(text))
    except (ValueError, RecursionError):
        raise _unclear(node, text) from None
    if not isinstance(answer, dict):
        raise _unclear(node, text)
    if "vendors" in answer:
        _refuse(
            node,
            f"{node.address} runs {answer['vendors']!s:.120}, with a driver, docker and services (nvsm) of its own",
            "gpuprov would replace parts that NVIDIA supports together. As it is, `gpuprov verify --host "
            f"{access.users[node.name]}@{node.address} --machine {node.machine}` proves it; for `up` install plain "
            "Ubuntu Server, or leave it out",
        )
    if "foreign" in answer:
        raise _foreign(access.paths, node, str(answer["foreign"]), str(answer.get("identity", "")))
    if "other" in answer:
        raise AnotherHostError(node, str(answer["other"])[:60])
    if "damaged" in answer:
        _refuse(
            node,
            f"the record of what gpuprov changed on {node.address} is damaged: {answer['damaged']!s:.200}",
            "nothing was changed: put the files that are kept beside it back by hand, remove that folder, and run the "
            "command again",
        )
    if "failed" in answer and "done" not in answer:
        raise _stopped(node, answer["failed"])
    return answer


def _foreign(paths: ClusterPaths, node: Node, owner: str, identity: str) -> ProviderError:
    """Of a machine with the record of another cluster. One of the same name may be this cluster, whose id was lost."""
    is_namesake = owner == paths.name
    hint = "run `gpuprov down` with that cluster's file first, or take the host out of this one"
    if is_namesake and IDENTITY.fullmatch(identity):
        file = paths.root / "id"
        hint += (
            "; if this cluster lost its run directory: run `gpuprov down` for the hosts with its present id, "
            f"write {identity} into {file}, and run the command again"
        )
    return (ProviderError if is_namesake else ForeignError)(
        f"{node.address} is configured by another gpuprov cluster, {owner[:60]}", where=node.name, hint=hint
    )


def _texts(value: object) -> TypeGuard[list[str]]:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _stopped(node: Node, reason: object) -> ProviderError:
    return ProviderError(
        f"{node.address}: {reason!s:.300}", where=node.name, hint="repair that there, and run the command again"
    )


def _unclear(node: Node, answer: object) -> ProviderError:
    return ProviderError(
        f"{node.address} gives an answer that gpuprov did not ask for: {answer!s:.100}",
        where=node.name,
        hint="look at what that account's shell start files and python3 do there",
    )


def _call(argv: Sequence[str], stdin_text: str = "", deadline_s: float = DEADLINE_S) -> tuple[int, str]:
    """Exit status, and what was printed."""
    try:
        done = bounded.run(argv, stdin=stdin_text, deadline_s=deadline_s, new_session=True)
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {deadline_s:.0f} s"
    except bounded.UnboundedOutputError as error:
        return 1, str(error)
    output = (done.stdout + done.stderr).strip()
    if ssh_failure.is_own(argv, done.returncode):
        return done.returncode, ssh_failure.explain(argv[:-1], output)
    return done.returncode, str(printable(output))


def _refuse(node: Node, message: str, hint: str) -> None:
    raise ProviderError(message, where=node.name, hint=hint)
