"""Hosts of one's own (`provider: baremetal, method: ssh`): they exist before a cluster and after it. Real are
providers/baremetal, machines/hosts.py and existing.py; simulated are ssh and what on_node.py does on a host."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from provisioner.common.errors import ProviderError
from provisioner.transport import root_python
from tests.simulation.cloud import Machine
from tests.simulation.connections import SSH_FAILED, Connections

if TYPE_CHECKING:
    from tests.simulation.world import World

HOSTS = 6
"""Hosts that a person has."""
OTHER = "strangers"
"""A cluster that is not simulated, and may have a host."""
Answer = tuple[int, str]
"""Exit status, and what was printed."""


@dataclass
class Host(Machine):
    """`record`: cluster and identity in the record that on_node.py keeps on it; `keys`: lines of authorized_keys;
    `own_way`: the person's own ssh gets in, without gpuprov's key."""

    record: tuple[str, str] | None = None
    keys: set[str] = field(default_factory=set)
    own_way: bool = True
    name: str = ""
    """By which cluster.yaml called it when the record was begun; empty: it has none."""
    asked: bool = False
    """Whether a person has agreed that it is another node from then on; until roles ran on it, or a verdict."""
    told: bool = False
    """Whether a command has said that its changes stay there."""
    given_up: bool = False
    """The same, and no nodes.json has it any more."""
    installations: int = 0

    @classmethod
    def numbered(cls, number: int, key: str) -> Host:
        """`key`: the person's public key, which every other host lets in."""
        return cls(
            id=f"dgx{number}", kind="host", cluster="", site="", node="", identity="", account="", region="", zone="",
            type="", address=f"192.0.2.{number + 1}", key=_host_key(number, 0),
            keys={key} if number % 2 else set(),
        )  # fmt: skip

    @property
    def serves(self) -> bool:
        return self.record is not None and bool(self.node) and not self.given_up

    def admits(self, key: str) -> bool:
        return any(line.split()[:2] == key.split()[:2] for line in self.keys)

    @property
    def known_as(self) -> str:
        return self.name or self.id

    def is_called(self, number: str) -> bool:
        return self.name == number or (not self.name and number.partition(".")[0] == self.id)

    def refusal(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """As on_node._refusal."""
        if self.record is None:
            return None
        if self.record[1] != request["identity"]:
            return {"foreign": self.record[0], "identity": self.record[1]}
        return {"other": self.name} if self.name != request["host"] and self.name in request["others"] else None

    def begin(self, request: Mapping[str, Any], node: str, site: str) -> dict[str, Any]:
        """As on_node.begin."""
        if refused := self.refusal(request):
            return refused
        new = self.record is None
        self.cluster, self.identity, self.name = request["cluster"], request["identity"], request["host"]
        self.record, self.told, self.given_up = (self.cluster, self.identity), False, False
        self.node, self.site = node, site
        return {"ok": True, "new": new}

    def undo(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """As on_node.undo, but for the key."""
        if self.record is None:
            return {"done": [], "stays": []}
        if refused := self.refusal(request):
            return refused
        self.leave()
        return {"done": ["gpuprov's files removed"], "stays": ["packages"]}

    def leave(self) -> None:
        """It is no node any more; its driver stays."""
        self.record, self.cluster, self.identity, self.node, self.site, self.name = None, "", "", "", "", ""
        self.in_use = self.told = self.given_up = self.asked = False

    def reinstall(self) -> None:
        """Another system on its disks: another host key, and nothing of what was on it."""
        self.leave()
        self.installations += 1
        self.key, self.keys = _host_key(int(self.id.removeprefix("dgx")), self.installations), set()
        self.installed, self.own_way = "", True
        self.proven, self.drifted = set(), True


def hosts(key: str) -> list[Host]:
    """All that a person has."""
    return [Host.numbered(number, key) for number in range(HOSTS)]


def _host_key(number: int, installation: int) -> str:
    return f"ssh-ed25519 BBBB{number:04d}{installation:04d}"


class HostSsh:
    """What existing.py has ssh do."""

    def __init__(self, world: World, connections: Connections) -> None:
        self.world, self.connections = world, connections

    def call(self, argv: Sequence[str], stdin: str = "", deadline_s: float = 0.0) -> Answer:
        """In place of existing._call."""
        del deadline_s
        if "-F" not in argv:
            return self._by_own_ssh(argv)
        config = Path(argv[argv.index("-F") + 1])
        run, node, command = config.parent.parent, argv[argv.index("-F") + 2], argv[-1]
        self.connections.use(config)
        if command == "true":
            answer = self._asked(f"greet {node}", lambda: self._entered(run, node)[1] or (0, ""))
        elif command == root_python.ROOT_PYTHON:
            answer = self._as_root(
                run, node, json.loads(json.loads(stdin.rpartition("main(json.loads(")[2].rstrip()[:-2]))
            )
        else:
            answer = self._take_key(run, node, command)
        if not self.connections.is_open(config):
            if answer[0] == 0:
                self.world.broken(f"the connection to {node} was cut by another command")
            return SSH_FAILED, "Connection closed"
        return answer

    def silence(self, address: str, port: int, ssh: bool) -> str:
        """In place of the bare-metal provider's _silence."""
        del port, ssh

        def look() -> str:
            machine = self.world.cloud.at(address)
            return "" if machine is not None and not machine.deaf else "no answer"

        try:
            refused = ProviderError("no route to host")
            return self.world.processes.effect("node", f"look at {address}", look, refusal=lambda: refused)
        except ProviderError as error:
            return error.message

    def _asked(self, name: str, deed: Callable[[], Answer]) -> Answer:
        """A command over ssh, as one effect. Its connection may be refused, or end before the answer."""
        cut = ProviderError("Connection timed out")
        closed = ProviderError("Connection closed by remote host")
        try:
            return self.world.processes.effect("node", name, deed, refusal=lambda: cut, lost=lambda: closed)
        except ProviderError as error:
            return SSH_FAILED, error.message

    def _entered(self, run: Path, node: str) -> tuple[Host | None, Answer | None]:
        """The host that ssh gets into by the run directory's configuration; else what ssh says."""
        host, error = self._shown(_address(run / "ssh" / "config", node), run, node)
        if host is not None and not host.admits(public_key(run)):
            return None, (SSH_FAILED, "Permission denied (publickey).")
        return host, error

    def _shown(self, address: str, run: Path, node: str) -> tuple[Host | None, Answer | None]:
        """The host at an address, if it shows the key that is pinned for the node."""
        host = self.world.cloud.at(address)
        if not isinstance(host, Host) or host.deaf:
            return None, (SSH_FAILED, f"ssh: connect to host {address} port 22: Connection timed out")
        if f"{node}.{run.name} {host.key}" not in _lines(run / "known_hosts"):
            return None, (SSH_FAILED, "Host key verification failed: it shows another one (SHA256:x) than is pinned")
        return host, None

    def _by_own_ssh(self, argv: Sequence[str]) -> Answer:
        """The key is brought by the person's own ssh."""
        options = dict(argument.partition("=")[::2] for argument in argv if "=" in argument)
        node, address, line = options["HostKeyAlias"].partition(".")[0], argv[-2], _quoted_line(argv[-1])
        run = Path(options["UserKnownHostsFile"]).parent

        def add_key() -> Answer:
            host, error = self._shown(address, run, node)
            if host is None or error is not None:
                return error or (1, "")
            if not host.own_way:
                return SSH_FAILED, "Permission denied (publickey)."
            host.keys.add(line)
            return 0, ""

        self.world.process.changes += 1
        return self._asked(f"bring key {node}", add_key)

    def _take_key(self, run: Path, node: str, command: str) -> Answer:
        def take() -> Answer:
            host, error = self._entered(run, node)
            if host is not None:
                host.keys.discard(_quoted_line(command))
            return error or (0, "")

        return self._asked(f"take key {node}", take)

    def _as_root(self, run: Path, node: str, request: dict[str, Any]) -> Answer:
        """on_node.py on a host. `undo` is two effects: the record goes first, the key last."""
        name, site = _known(run, node)

        def begin() -> Answer:
            host, error = self._entered(run, node)
            if host is None:
                return error or (1, "")
            if host.refusal(request) is None:
                self.world.renaming(host, node)
            return _printed(host.begin(request, node, site))

        def undo() -> Answer:
            host, error = self._entered(run, node)
            if host is None:
                return error or (1, "")
            if host.record is not None and host.refusal(request) is None:
                self.world.undoing(host, node if host.is_called(name) else "")
            return _printed(host.undo(request))

        self.world.process.changes += 1
        if request["do"] == "begin":
            return self._asked(f"begin {node}", begin)
        answer = self._asked(f"undo {node}", undo)
        if answer[0] or "done" not in answer[1] or "key" not in request:
            return answer

        def take_key() -> Answer:
            host, error = self._entered(run, node)
            if host is not None:
                host.keys.discard(request["key"])
            return error or answer

        return self._asked(f"take key {node}", take_key)


def _printed(answer: dict[str, Any]) -> Answer:
    return 0, "gpuprov:" + json.dumps(answer)


def _quoted_line(command: str) -> str:
    return command.partition("'")[2].rstrip("'")


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return []


def _address(config: Path, node: str) -> str:
    lines = _lines(config)
    at = lines.index(f"Host {node}") if f"Host {node}" in lines else None
    return "" if at is None or at + 1 >= len(lines) else lines[at + 1].strip().removeprefix("HostName ")


def _known(run: Path, node: str) -> tuple[str, str]:
    """Id and site of a node in nodes.json."""
    try:
        rows = json.loads((run / "nodes.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return "", ""
    return next(((row["id"], row["site"]) for row in rows if row["name"] == node), ("", ""))


def public_key(run: Path) -> str:
    """gpuprov's, by which it enters hosts."""
    for line in _lines(run / "ssh" / "identity"):
        return _read_key(line.strip() + ".pub")
    return ""


@functools.lru_cache(maxsize=64)
def _read_key(file: str) -> str:
    return Path(file).read_text(encoding="utf-8")


def keys_in(file: str, name: str) -> tuple[list[str], list[str]]:
    """In place of known_hosts._found, which calls ssh-keygen."""
    return [line.partition(" ")[2] for line in _lines(Path(file)) if line.partition(" ")[0] == name], []
