"""Runs a job's container on one node and keeps the nodes of the job together. Root runs it as the unit
gpuprov-job-ID.service; its folder has job.json (on_node.py writes it), work/, log and status.json.

The first node is the hub: each other node holds a connection to it. A container that fails, a node that stops to
answer, a request to stop and an interruption notice of the cloud end the job on all nodes; nobody waits for NCCL's own
timeout of ten minutes. The control machine is not needed. Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import contextlib
import glob
import hmac
import json
import os
import queue
import re
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

TYPE_CHECKING = False  # Python 3.8 has no dict[str, Any] outside of annotations
if TYPE_CHECKING:
    from collections.abc import Callable

    Json = dict[str, Any]

BEAT_S, LOST_S = 5.0, 60.0
"""Seconds between two signs of life of a node, and without one until the node counts as lost."""
JOIN_S = 300.0
"""Seconds until all nodes have connected to the hub: they start within seconds of each other."""
LOOK_S = 1.0
"""Between two looks at the interruption notice and at NCCL's log."""
ANSWER_S = 60.0
"""Seconds that a docker command may take."""
LINE = 1 << 16
"""Bytes of a message between nodes, at most."""
LOG_LIMIT = 4 << 30
"""Bytes of a job's log, at most: what comes behind is dropped, and the last line says so."""
TRIM_S, RANK_LOGS_LIMIT, BLOCK = 60.0, 256 << 20, 512
"""Seconds between two looks at the files in which torchrun keeps the ranks' output, bytes of all of them together, and
of a block as stat(2) counts."""
LINGER_S, FAILED_GRACE_S = 5.0, 20.0
"""Seconds for torchrun once its ranks have ended, and for the ranks of other nodes once one has failed."""
RESERVE = 64 << 10
"""Bytes that are kept for the outcome of a job whose disk is full."""
NO_CONTAINER = {125: "docker could not run it", 126: "the command cannot be executed", 127: "the command is not found"}
"""Exit statuses of `docker run` itself (docs.docker.com, Exit status)."""
STOPPED = 143
"""Exit status of a job that was stopped: 128 + SIGTERM."""
INTERRUPTION = "/run/gpuprov/interruption.json"
"""Role interruption writes it on spot machines."""
TRANSPORT = re.compile(r" via (NET/[^/\s]+|[A-Z0-9]+)")
"""In NCCL's log, of a channel (provisioner/verify/load/program.py reads the same)."""

TORCHRUN_OPTIONS_WITHOUT_VALUE = {
    "--standalone",
    "--no-python",
    "--no_python",
    "-m",
    "--module",
    "--run-path",
    "--run_path",
}
NODE_OPTIONS = {"--nnodes", "--standalone", "--rdzv-endpoint", "--rdzv_endpoint", "--rdzv-backend", "--rdzv_backend",
                "--master-addr", "--master_addr", "--node-rank", "--node_rank"}  # fmt: skip
"""Options of torchrun by which a user sets the rendezvous: gpuprov then adds none."""
PROCESS_OPTIONS = {"--nproc-per-node", "--nproc_per_node"}
LOG_OPTIONS = {"--log-dir", "--log_dir", "--tee", "-t", "--redirects", "-r"}


def torchrun_command(job: Json) -> list[str]:
    """The job's command. Where it begins with torchrun, with the rendezvous of this job: c10d on the first node's own
    address, ten minutes to join, no restart (a job is started again as a whole), output by rank."""
    command = [str(part) for part in job["command"]]
    if os.path.basename(command[0]) != "torchrun":
        return command
    user_options = _user_options(command[1:])
    nodes = job["nodes"]
    leader, local = nodes[0]["address"], _this(job)["address"]
    options = []
    if not user_options & NODE_OPTIONS:
        host = f"[{leader}]" if ":" in leader else leader
        is_host = str(job["node"] == nodes[0]["name"]).lower()
        options += [
            f"--nnodes={len(nodes)}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={host}:{job['port']}",
            "--rdzv-id={}".format(job["id"]),
            f"--rdzv-conf=join_timeout=600,read_timeout=600,is_host={is_host}",
            f"--local-addr={local}",
            "--max-restarts=0",
        ]
    if not user_options & PROCESS_OPTIONS:
        options.append(f"--nproc-per-node={job['gpus']}")
    if not user_options & LOG_OPTIONS:
        options += ["--log-dir=/gpuprov/ranks", "--tee=3"]
    return [command[0], *options, *command[1:]]


def _user_options(arguments: list[str]) -> set[str]:
    """Names of the options before the program that torchrun is to start."""
    names = set()
    skip = False
    for argument in arguments:
        if skip:
            skip = False
            continue
        if not argument.startswith("-"):
            break
        name, equals, _ = argument.partition("=")
        names.add(name)
        skip = not equals and name not in TORCHRUN_OPTIONS_WITHOUT_VALUE
    return names


def environment(job: Json) -> dict[str, str]:
    """The variables of the container, beside those of images.json."""
    return {
        "PYTHONUNBUFFERED": "1",
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank ${rank}] ",
        # torchrun sets 1 where it is unset, which makes data loaders slow.
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // max(1, job["gpus"]))),
        **(
            {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT", "NCCL_DEBUG_FILE": "/gpuprov/nccl.%p"}
            if job["rdma"]
            else {}
        ),
        **job["environment"],
        "GPUPROV_JOB": job["id"],
        "GPUPROV_NODES": str(len(job["nodes"])),
        "GPUPROV_NODE_RANK": str([node["name"] for node in job["nodes"]].index(job["node"])),
        "GPUPROV_GPUS_PER_NODE": str(job["gpus"]),
        "GPUPROV_LEADER": job["nodes"][0]["address"],
        "GPUPROV_CHECKPOINTS": job["checkpoints"],
    }


def docker_command(job: Json, folder: str) -> list[str]:
    """The container: the environment of a job on this node (images.json), the folder of the job, what it mounts."""
    volumes = [f"{folder}/work:/job", f"{folder}/out:/gpuprov"]
    volumes += [f"{path}:{path}" for path in job["volumes"]]
    return [
        # --init: the first process of a container ignores SIGTERM unless it handles it.
        "docker", "run", "--rm", "--init", "--pull=never", "--name", container_name(job),
        "--label", "gpuprov.job=" + job["id"],
        # Its output comes through us; docker's own copy would grow without limit.
        "--log-driver=none",
        *job["options"],
        *["--volume=" + volume for volume in volumes],
        # A file, because everybody on the node can read the arguments of a process.
        f"--env-file={folder}/environment",
        "--workdir=/job",
        job["image"],
        *torchrun_command(job),
    ]  # fmt: skip


def container_name(job: Json) -> str:
    return f"gpuprov-job-{job['id']}"


def _this(job: Json) -> Json:
    return next(node for node in job["nodes"] if node["name"] == job["node"])


def wrong_transport(lines: list[str], gpudirect: bool) -> str:
    """What is wrong with NCCL's channels between nodes, by its log; "" where nothing is known to be. The rule is
    `wrong_way` of provisioner/verify/fabric.py."""
    for line in lines:
        match = TRANSPORT.search(line)
        if match is None or not match[1].startswith("NET/"):
            continue
        if match[1] == "NET/Socket":
            return "NCCL goes over sockets (NET/Socket), and this network has RDMA"
        if gpudirect and "/GDRDMA" not in line:
            return f"NCCL goes by {match[1]} without GPUDirect"
    return ""


class Log:
    """The job's log on this node, at most LOG_LIMIT bytes. What a full disk does not take is dropped."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - as long as the job
        self._size = os.fstat(self._file.fileno()).st_size
        self._lock = threading.Lock()
        self.error = ""

    def write(self, piece: bytes) -> None:
        with self._lock:
            if self._size >= LOG_LIMIT:
                return
            try:
                self._size += self._file.write(piece)
                if self._size >= LOG_LIMIT:
                    self._file.write(b"\n[gpuprov] the log ends here: it has reached its limit\n")
            except OSError as error:
                self.error = error.strerror or str(error)

    def note(self, text: str) -> None:
        self.write((f"[gpuprov] {text}\n").encode())


class Container:
    """The job's container: `docker run`, whose exit status is the container's."""

    def __init__(self, job: Json, folder: str, log: Log, ended: Callable[[int], None]) -> None:
        self._job, self._log, self._ended = job, log, ended
        self._stopping = threading.Event()
        with open(
            os.open(folder + "/environment", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as stream:
            stream.writelines("{}={}\n".format(*item) for item in environment(job).items())
        self._child = subprocess.Popen(
            docker_command(job, folder), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        assert self._child.stdout is not None
        while True:
            piece = self._child.stdout.read1(1 << 16)  # type: ignore[attr-defined]
            if not piece:
                break
            self._log.write(piece)
        self._ended(self._child.wait())

    def stop(self, grace_s: float) -> None:
        """Ask the ranks to end, and end the container after so many seconds. Returns at once."""
        if not self._stopping.is_set():
            self._stopping.set()
            threading.Thread(target=self._stop, args=(grace_s,), daemon=True).start()

    def _stop(self, grace_s: float) -> None:
        name, is_torchrun = container_name(self._job), os.path.basename(self._job["command"][0]) == "torchrun"
        until = time.monotonic() + grace_s
        # torchrun gives its ranks only 30 s after a SIGTERM of its own: too short for a large checkpoint.
        ranks = self._ranks()
        for pid in ranks:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGTERM)
        while ranks and self._child.poll() is None and time.monotonic() < until:
            time.sleep(0.1)
        if is_torchrun and not self._ranks():
            # Its ranks have ended, and it waits up to five minutes for the other nodes, whatever signal it gets.
            until = min(until, time.monotonic() + LINGER_S)
        while self._child.poll() is None:
            seconds = max(1, int(until - time.monotonic()))
            call("docker", "stop", "--time", str(seconds), name, seconds=seconds + ANSWER_S)
            if self._child.poll() is None:
                time.sleep(1)  # the container was not created yet
            if time.monotonic() > until + ANSWER_S:
                call("docker", "kill", name)

    def _ranks(self) -> list[int]:
        """Processes that torchrun has started in the container, in this namespace's numbers."""
        answer = call("docker", "inspect", "--format", "{{.State.Pid}}", container_name(self._job)).strip()
        if not answer.isdigit() or answer == "0":
            return []
        parents, ranks = {}, []
        for folder in glob.glob("/proc/[0-9]*"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                pid = os.path.basename(folder)
                with open(folder + "/stat", encoding="utf-8") as stream:
                    parents[pid] = stream.read().rpartition(")")[2].split()[1]
                with open(folder + "/environ", "rb") as stream:
                    if b"LOCAL_RANK=" in stream.read():
                        ranks.append(pid)
        # Data loaders have a rank's variables, too, and are its children.
        return [int(pid) for pid in ranks if parents[pid] not in ranks and answer in ancestors(pid, parents)]


def ancestors(pid: str, parents: dict[str, str]) -> list[str]:
    """Of a process, from its parent on."""
    chain: list[str] = []
    while pid in parents and len(chain) < 64:
        pid = parents[pid]
        chain.append(pid)
    return chain


def call(*command: str, seconds: float = ANSWER_S) -> str:
    """What a command prints; nothing where it fails or does not end."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


class Connection:
    """One side of a connection between two nodes: JSON, one object a line, and signs of life."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._lock = connection, threading.Lock()
        connection.settimeout(LOST_S)
        self._reader = connection.makefile("rb")

    def send(self, message: Json) -> bool:
        try:
            with self._lock:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> Json | None:
        """The next message; None where the other side is lost, or says what no node of ours would."""
        try:
            line = self._reader.readline(LINE)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def keep_alive(self) -> None:
        """Send signs of life until the other side is gone."""

        def beat() -> None:
            while self.send({}):
                time.sleep(BEAT_S)

        threading.Thread(target=beat, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def proof(token: str, nonce: str, name: str) -> str:
    """By which a node shows that it belongs to the job: the token itself does not travel."""
    return hmac.new(token.encode(), (f"{nonce} {name}").encode(), "sha256").hexdigest()


class Hub:
    """On the first node: takes the connections of the others. `event` gets ("message", node, message) and ("lost",
    node, None)."""

    def __init__(self, job: Json, event: Callable[..., None]) -> None:
        self._job, self._event = job, event
        self._lock = threading.Lock()
        self._connections = {}  # type: dict[str, Connection]
        self._farewell = None  # type: Json | None
        self._expected = [node["name"] for node in job["nodes"][1:]]
        address = job["nodes"][0]["address"]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, job["port"] + 1), family=family, backlog=256)
        threading.Thread(target=self._accept, daemon=True).start()
        timer = threading.Timer(JOIN_S, self._refuse_late)
        timer.daemon = True
        timer.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(Connection(connection),), daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        nonce = secrets.token_hex(16)
        connection.send({"nonce": nonce})
        hello = connection.receive() or {}
        name = str(hello.get("node", ""))
        expected = proof(self._job["token"], nonce, name)
        with self._lock:
            known = name in self._expected and name not in self._connections
            if not known or not hmac.compare_digest(expected, str(hello.get("proof", ""))):
                connection.close()
                return
            self._connections[name] = connection
            farewell = self._farewell
        connection.keep_alive()
        if farewell is not None:
            connection.send(farewell)
        while True:
            message = connection.receive()
            if message is None:
                break
            if message:
                self._event("message", name, message)
        self._event("lost", name, None)

    def _refuse_late(self) -> None:
        with self._lock:
            missing = [name for name in self._expected if name not in self._connections]
        for name in missing:
            self._event("lost", name, None)

    def send(self, message: Json) -> None:
        """To all nodes, also to those that connect later."""
        with self._lock:
            self._farewell = message
            connections = list(self._connections.values())
        for connection in connections:
            connection.send(message)


class Member:
    """On every other node: the connection to the hub. `event` as of Hub; the hub's name is the first node's."""

    def __init__(self, job: Json, event: Callable[..., None]) -> None:
        self._job, self._event = job, event
        self._lock = threading.Lock()
        self._connection = None  # type: Connection | None
        self._unsent = []  # type: list[Json]
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        hub = self._job["nodes"][0]
        connection = self._connect(hub["address"], self._job["port"] + 1)
        while connection is not None:
            message = connection.receive()
            if message is None:
                break
            if message:
                self._event("message", hub["name"], message)
        self._event("lost", hub["name"], None)

    def _connect(self, address: str, port: int) -> Connection | None:
        until = time.monotonic() + JOIN_S
        while time.monotonic() < until:
            try:
                connection = Connection(socket.create_connection((address, port), timeout=5))
            except OSError:
                time.sleep(0.5)
                continue
            greeting = connection.receive()
            if greeting is None:
                time.sleep(0.5)
                continue
            name = self._job["node"]
            connection.send({"node": name, "proof": proof(self._job["token"], str(greeting.get("nonce")), name)})
            with self._lock:
                self._connection = connection
                unsent = list(self._unsent)
            for message in unsent:
                connection.send(message)
            connection.keep_alive()
            return connection
        return None

    def send(self, message: Json) -> None:
        """To the hub, once it is connected."""
        with self._lock:
            if self._connection is None:
                self._unsent.append(message)
                return
        self._connection.send(message)


class Supervisor:
    """The course of the job on one node. A SimpleQueue, because a signal's handler may add to no other."""

    def __init__(self, job: Json, folder: str) -> None:
        self._job, self._folder, self._name = job, folder, job["node"]
        self._names = [node["name"] for node in job["nodes"]]
        self._is_hub = self._names[0] == self._name
        self._events = queue.SimpleQueue()  # type: queue.SimpleQueue[tuple[str, str, Any]]
        self._log = Log(folder + "/log")
        self._ended = {}  # type: dict[str, int | None]
        self._stop = None  # type: Json | None
        self._until = 0.0
        self._read = {}  # type: dict[str, int]
        self._trimmed = time.monotonic()

    def run(self) -> Json:
        """Run the job to its end; its `state` (completed, failed, stopped), `status` and `reason`."""
        job = self._job
        signal.signal(signal.SIGTERM, lambda *_: self._put("stop", self._name, self._reason_of_stop()))
        peers = None  # type: Hub | Member | None
        if len(self._names) > 1:
            peers = Hub(job, self._put) if self._is_hub else Member(job, self._put)
        self._peers = peers
        self._container = Container(job, self._folder, self._log, lambda status: self._put("ended", self._name, status))
        while True:
            try:
                kind, name, value = self._events.get(timeout=LOOK_S)
            except queue.Empty:
                kind, name, value = "", "", None
            outcome = self._handle(kind, name, value)
            if outcome is not None:
                return outcome
            if self._stop is None:
                self._look()

    @property
    def log_error(self) -> str:
        """Why the log has gaps; "" where it has none."""
        return self._log.error

    def _put(self, kind: str, name: str, value: Any) -> None:
        self._events.put((kind, name, value))

    def _reason_of_stop(self) -> str:
        """Who has asked for it; systemd stops the unit at a shutdown, too."""
        with contextlib.suppress(OSError), open(self._folder + "/stop", encoding="utf-8") as stream:
            return stream.read().strip()
        return f"{self._name} shuts down"

    def _handle(self, kind: str, name: str, value: Any) -> Json | None:
        """Take in an event. The outcome, where the job is over."""
        if kind == "message":
            if "over" in value:
                return dict(value["over"])
            if "stop" in value:
                kind, value = "stop", value["stop"]
            elif "ended" in value:
                kind, value = "ended", value["ended"]
        if kind == "stop":
            stop = value if isinstance(value, dict) else {"state": "stopped", "status": STOPPED, "reason": value}
            self._begin_stop(stop)
        elif kind == "ended":
            self._note_end(name, int(value))
        elif kind == "lost" and name not in self._ended:
            self._ended[name] = None
            self._begin_stop({"state": "failed", "status": 1, "reason": f"{name} does not answer any more"})
        return self._outcome()

    def _note_end(self, name: str, status: int) -> None:
        self._ended.setdefault(name, status)
        if name == self._name and not self._is_hub:
            assert self._peers is not None
            self._peers.send({"ended": status})
        if status and self._stop is None:
            how = f" ({NO_CONTAINER[status]})" if status in NO_CONTAINER else ""
            reason = f"{name}: the container ended with exit status {status}{how}"
            self._begin_stop({"state": "failed", "status": status, "reason": reason})

    def _begin_stop(self, stop: Json) -> None:
        if self._stop is not None:
            return
        self._stop, self._until = stop, time.monotonic() + self._job["grace_s"] + 2 * ANSWER_S
        self._log.note("stopping: {}".format(stop["reason"]))
        if self._peers is not None:
            self._peers.send({"stop": stop})
        # Where a part has failed, ranks wait for it in vain, and write no checkpoint.
        grace_s = self._job["grace_s"]
        self._container.stop(grace_s if stop["state"] == "stopped" else min(grace_s, FAILED_GRACE_S))

    def _outcome(self) -> Json | None:
        is_late = self._stop is not None and time.monotonic() > self._until
        hub_is_lost = not self._is_hub and self._names[0] in self._ended
        if self._is_hub or hub_is_lost:
            awaited = self._names if self._is_hub else [self._name]
            if not is_late and not all(name in self._ended for name in awaited):
                return None
            outcome = self._stop or {"state": "completed", "status": 0, "reason": ""}
            if self._is_hub and self._peers is not None:
                self._peers.send({"over": outcome})
            return outcome
        return self._stop if is_late else None

    def _look(self) -> None:
        """What ends a job that runs: a notice of the cloud, its Slurm job that is gone, NCCL on the wrong network."""
        watched = self._job.get("watch")
        if watched and not os.path.exists(f"/proc/{watched}"):
            self._begin_stop({"state": "stopped", "status": STOPPED, "reason": "its Slurm job has ended"})
            return
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            with open(INTERRUPTION, encoding="utf-8") as stream:
                notice = json.load(stream).get("notice")
            if notice:
                reason = "the cloud takes {} away: {} at {}".format(
                    self._name, notice.get("action"), notice.get("time")
                )
                self._begin_stop({"state": "stopped", "status": STOPPED, "reason": reason})
                return
        self._trim_rank_logs()
        if self._job["rdma"]:
            wrong = wrong_transport(self._new_lines(), self._job["gpudirect"])
            if wrong:
                reason = f"{self._name}: {wrong}"
                self._begin_stop({"state": "failed", "status": 1, "reason": reason})

    def _trim_rank_logs(self) -> None:
        """Empty what torchrun keeps of the ranks' output, which has come through it by now: the ranks write on behind
        the hole."""
        if time.monotonic() < self._trimmed + TRIM_S:
            return
        self._trimmed = time.monotonic()
        files = [path for path in glob.glob(self._folder + "/out/ranks/**", recursive=True) if os.path.isfile(path)]
        with contextlib.suppress(OSError):
            if sum(os.stat(path).st_blocks for path in files) * BLOCK > RANK_LOGS_LIMIT:
                for path in files:
                    os.truncate(path, 0)

    def _new_lines(self) -> list[str]:
        """Whole lines that NCCL has added to its logs since the last look."""
        lines = []
        for path in glob.glob(self._folder + "/out/nccl.*"):
            with contextlib.suppress(OSError):
                with open(path, "rb") as stream:
                    stream.seek(self._read.get(path, 0))
                    piece = stream.read(1 << 22)
                end = piece.rfind(b"\n") + 1
                self._read[path] = self._read.get(path, 0) + end
                lines += piece[:end].decode("utf-8", "replace").splitlines()
        return lines


def write(path: str, document: Json) -> None:
    """Whole or not at all."""
    fresh = path + ".new"
    with open(fresh, "w", encoding="utf-8") as stream:
        json.dump(document, stream)
    os.replace(fresh, path)


def main(folder: str) -> None:
    """Run the job of a folder; its outcome goes into status.json."""
    with open(folder + "/job.json", encoding="utf-8") as stream:
        job = json.load(stream)
    status = {"began": time.time(), "pid": os.getpid()}
    write(folder + "/status.json", status)
    reserve = folder + "/reserve"
    with open(reserve, "wb") as file:
        file.write(bytes(RESERVE))
    supervisor = None
    try:
        supervisor = Supervisor(job, folder)
        outcome = supervisor.run()
    except OSError as error:
        outcome = {"state": "failed", "status": 1, "reason": f"{job['node']}: {error}"}
    if supervisor is not None and supervisor.log_error:
        text = f"the log of {job['node']} has gaps: {supervisor.log_error}"
        outcome["reason"] = "; ".join(part for part in (outcome["reason"], text) if part)
    with contextlib.suppress(OSError):
        os.unlink(reserve)
    write(folder + "/status.json", {**status, "ended": time.time(), **outcome})


if __name__ == "__main__":
    main(sys.argv[1])
