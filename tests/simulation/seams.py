"""Where the world is put under gpuprov's code: everything that is simulated is replaced here, and nowhere else.

Real are: spec, plan, locks, lifecycle/, machines/, workspace/, state/, fleet, release, journals, quarantine, the glue
of configure/ and verify/. Simulated are: Terraform, the cloud, ssh, what a probe brings back, the roles, the checks'
results, hooks, the bucket. docs/design/simulation.md has the table.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import filelock

from provisioner.cli import exit as cli_exit
from provisioner.cli import gc as cli_gc
from provisioner.cli import lifecycle as cli_lifecycle
from provisioner.cli import maintain as cli_maintain
from provisioner.cli import replace as cli_replace
from provisioner.common.errors import Diagnostic, ProviderError
from provisioner.common.paths import ClusterPaths
from provisioner.common.preflight import Finding
from provisioner.configure import drift, inventory, stamps
from provisioner.configure import run as roles
from provisioner.configure.drift import Difference
from provisioner.configure.run import Outcome
from provisioner.lifecycle import configuring, gc, hooks, remote_exec, second_boot, status
from provisioner.lifecycle import machines as site_machines
from provisioner.lifecycle.jobs import on_nodes
from provisioner.lifecycle.maintain import node_work
from provisioner.lifecycle.maintain.node_work import Look, Reboot, Work
from provisioner.lifecycle.session import Cluster
from provisioner.lifecycle.sharing import lease, shared_files
from provisioner.machines import existing, terraform_machines
from provisioner.machines.providers import base as providers
from provisioner.machines.providers.aws import errors as aws_errors
from provisioner.machines.providers.baremetal import known_hosts
from provisioner.machines.providers.baremetal import provider as baremetal
from provisioner.machines.providers.baremetal.provider import BareMetal
from provisioner.machines.providers.base import Module, Place, Provider, ProviderBlock, Standing
from provisioner.machines.providers.capacity import Choices, Way
from provisioner.machines.providers.cloud_errors import CloudError
from provisioner.machines.providers.orphans import Found, Thing
from provisioner.machines.providers.removal import Order, Removal, forgotten
from provisioner.machines.terraform import binary, render, workspace
from provisioner.plan.models import Plan, PlannedGroup
from provisioner.rundir import fleet
from provisioner.rundir.fleet import Node
from provisioner.spec import private_key
from provisioner.stack import lockfile, still_there
from provisioner.stack.models import BaseImage
from provisioner.transport import host_keys, keeper, process, ssh_sockets
from provisioner.transport.process import Ended
from provisioner.verify import collect as collecting
from provisioner.verify import report as reports
from provisioner.verify import run as verifying
from provisioner.verify.bundle import Bundle, Output
from provisioner.verify.results import CheckResult, NodeReport, Report
from provisioner.verify.subject import Subject
from tests.simulation.cloud import Machine
from tests.simulation.connections import Connections, sessions
from tests.simulation.heartbeat import threads
from tests.simulation.hosts import Host, HostSsh, keys_in, public_key
from tests.simulation.processes import Inline
from tests.simulation.terraform_program import Failed, Terraform, diagnostic
from tests.simulation.world import Remote, World

GOOD = CheckResult("gpu.count", "fatal", "pass", "none")
WORKS = CheckResult("load.completes", "fatal", "pass", "none")
NOT_ASKED = CheckResult("load.completes", "fatal", "skip", "none", message="needs level standard")
UP_TO_DATE = Reboot(reasons=[], blocked="")
BAD = CheckResult("gpu.count", "fatal", "fail", "replace", message="7 GPUs instead of 8")


class SimulatedModule(Module):
    """terraform/aws as terraform_program.py understands it."""

    folder = "aws"

    def __init__(self, world: World, site_context: Place) -> None:
        self.world, self.place = world, site_context

    def blocks(self, plan: Plan) -> Mapping[str, ProviderBlock]:
        return {"aws": ProviderBlock("hashicorp/aws", ">= 5", {"region": _region(self.place)})}

    def inputs(self, plan: Plan) -> dict[str, Any]:
        choices = Choices.read(self.place.workspace)
        return {"groups": {g.name: self._group(g, choices) for g in plan.groups if g.site == self.place.site}}

    def _group(self, group: PlannedGroup, choices: Choices) -> dict[str, Any]:
        option = choices.current_option(group, _zones(self.place))
        return {"zone": option.zone, "kind": option.kind, "without": choices.without.get(group.name, [])}

    def address(self, node: str) -> str:
        return f'module.site.aws_instance.node["{node}"]'

    def described(self, attributes: Mapping[str, Any]) -> dict[str, Any] | None:
        from tests.simulation.terraform_program import described

        return described(attributes)

    def standing(self) -> list[Standing]:
        def refused() -> ProviderError:
            return ProviderError("which machines stand: RequestLimitExceeded", where=f"site {self.place.site}")

        region = _region(self.place)
        account = self.world.account_of(region)
        names = (self.place.cluster, self.place.site, region, account)
        rows = self.world.processes.effect("cloud", "list machines", self.world.cloud.running, refusal=refused)
        return [
            Standing(machine.node, machine.id, bool(self.place.identity) and machine.identity == self.place.identity)
            for machine in rows
            if (machine.cluster, machine.site, machine.region, machine.account) == names
        ]


MAAS = "maas"
"""The region of machines that a MAAS has."""


class SimulatedCapacity:
    """Zones by name; errors are classified by the real rows of AWS."""

    def __init__(self, site_context: Place) -> None:
        self.place, self.region = site_context, _region(site_context)

    def zones(self, plan: Plan) -> Sequence[str]:
        return _zones(self.place)

    def error(self, cloud_diagnostic: Diagnostic, group: PlannedGroup | None, option: Way | None) -> CloudError:
        return aws_errors.read(cloud_diagnostic, self.region, group, option)

    def probe(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:
        return []

    def ends(self, plan: Plan) -> dict[str, Any]:
        return {}


class SimulatedRemoval(Removal):
    """What is left, by tag."""

    order = Order(machines=("machine",), linger=(), then=(), network=("network",))

    def __init__(self, world: World, region: str) -> None:
        super().__init__(region, wait_s=0.0, pause_s=0.0)
        self.world, self.region = world, region

    def _region_machines(self) -> list[Machine]:
        running = self.world.cloud.running() + self.world.cloud.running("network")
        return [
            machine
            for machine in running
            if (machine.region, machine.account) == (self.region, self.world.account_of(self.region))
        ]

    def find(self) -> Found:
        def refused() -> ProviderError:
            return ProviderError("RequestLimitExceeded", where=self.region)

        rows = self.world.processes.effect("cloud", "list by tag", self._region_machines, refusal=refused)
        return Found(
            tuple(
                Thing(machine.kind, machine.id, machine.cluster, machine.site, self.region, identity=machine.identity)
                for machine in rows
            )
        )

    def delete(self, resource: Thing) -> None:
        machine = self.world.cloud.machines[resource.id]

        def action() -> None:
            self.world.removing(machine)
            machine.running = False

        self.world.processes.effect("cloud", f"remove {machine.node or 'network'}", action)

    def existing_ids(self, kind: str) -> set[str]:
        return {machine.id for machine in self._region_machines() if machine.kind == kind}

    def busy(self, error: Any) -> bool:
        return False

    def protected(self, error: Any) -> bool:
        return False


def _region(site_context: Place) -> str:
    return str(getattr(site_context.settings, "region", MAAS))


def _zones(site_context: Place) -> list[str]:
    region = _region(site_context)
    return list(getattr(site_context.settings, "zones", ()) or (f"{region}a", f"{region}b"))


def provider_class(world: World, provider: str) -> type[Provider]:
    """A provider of that name whose machines are the world's."""

    class Simulated(Provider):
        name = provider

        def __init__(self, site_context: Place) -> None:
            super().__init__(site_context)
            self.module = SimulatedModule(world, site_context)
            self.capacity = SimulatedCapacity(site_context)

        @classmethod
        def orphans(cls, region: str) -> Any:
            return SimulatedRemoval(world, region)

        def who(self) -> Finding:
            account = world.process.account
            return Finding("ok", "credentials", f"{provider} account {account}", account=account)

        def base_image(self, system: str) -> BaseImage:
            return BaseImage(id="ami-1", why="")

        def preflight(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:
            more = sum(group.spec.count for group in plan.groups if group.site == self.place.site) > len(existing_nodes)
            if more and _region(self.place) in world.cloud.used_up:
                return [self.who(), Finding("blocks", "quota", "no more machines", "ask for more", no_capacity=True)]
            return [self.who()]

        def clean(self, events: Any) -> list[str]:
            return forgotten(self.place, SimulatedRemoval(world, _region(self.place)), events)

    return Simulated


def bare_metal(world: World) -> type[Provider]:
    """providers/baremetal; the machines of a MAAS are the world's, as those of a cloud are."""
    cloud = provider_class(world, "baremetal")

    class OfMaas(BareMetal):
        def __init__(self, site_context: Place) -> None:
            super().__init__(site_context)
            if self.module is not None:
                cloud_provider = cloud(site_context)
                self.module, self.capacity = cloud_provider.module, cloud_provider.capacity
                self._made: Provider | None = cloud_provider
            else:
                self._made = None

        def preflight(self, plan: Plan, existing_nodes: Collection[str]) -> list[Finding]:
            return [] if self._made else super().preflight(plan, existing_nodes)

        def clean(self, events: Any) -> list[str]:
            return self._made.clean(events) if self._made else super().clean(events)

    return OfMaas


class Seams:
    """The replacements, for one world."""

    def __init__(self, world: World) -> None:
        self.world, self.connections = world, Connections(world.processes)
        self.host_ssh = HostSsh(world, self.connections)

    # Terraform

    def follow(
        self, argv: Sequence[str], read: Callable[[str], None], *, cwd: Path, grace_s: float,
        stopping: Callable[[], None], env: Any = None, stdin_text: str | None = None,
    ) -> Ended:  # fmt: skip
        del grace_s, env, stdin_text
        world, own_process = self.world, self.world.process
        if own_process.asked_to_end:  # process.start ends the child that it has just started
            raise KeyboardInterrupt
        if argv[1] in ("apply", "destroy", "import"):
            own_process.changes, own_process.applied = own_process.changes + 1, True
        if own_process.lost_lease is not None:
            raise own_process.lost_lease
        world.processes.effect("process", f"terraform {' '.join(argv[1:2])}", lambda: None)
        status, workspace_key = 0, (cwd.parent.parent.name, cwd.name)
        if argv[1] in ("apply", "destroy"):
            other = world.applying.get(workspace_key)
            if other is not None and other is not own_process and not other.dead and not other.ended:
                world.broken(
                    f"Terraform changes {' '.join(workspace_key)} for two commands at once: `{other.command}` too"
                )
            world.applying[workspace_key] = own_process
        try:
            for line in self._terraform(cwd).run(argv[1:]):
                read(line)
        except Failed as failure:
            status = 1
            for summary, address in failure.messages:
                read(json.dumps(diagnostic(summary, address)))
        except KeyboardInterrupt:
            stopping()
            raise
        finally:
            if world.applying.get(workspace_key) is own_process:
                del world.applying[workspace_key]
        try:
            world.processes.stopped(own_process)
        except KeyboardInterrupt:
            stopping()
            raise
        return Ended(status, ())

    def ask(self, argv: Sequence[str], *, cwd: Path, **_: Any) -> Any:
        """subprocess.run of a Terraform command that reads the state."""
        self.world.processes.effect("process", f"terraform {' '.join(argv[1:3])}", lambda: None)
        try:
            lines = list(self._terraform(cwd).run(argv[1:]))
        except Failed as failure:
            return SimpleNamespace(
                returncode=1, stdout="", stderr="\n".join(f"Error: {s}" for s, _ in failure.messages)
            )
        return SimpleNamespace(returncode=0, stdout="\n".join(lines), stderr="")

    def _terraform(self, folder: Path) -> Terraform:
        world, main = self.world, folder / "main.tf"
        is_maas = main.is_file() and f'region = "{MAAS}"' in main.read_text(encoding="utf-8")
        region = MAAS if is_maas else ""
        return Terraform(
            folder, world.cloud, world.processes, world.bucket, world.account_of(region), self.write_file,
            world.removing,
        )  # fmt: skip

    def write_file(self, path: Path, text: str) -> None:
        """A file that Terraform writes."""
        self.world.processes.effect("write", path.name, lambda: path.write_text(text, encoding="utf-8"), finishes=True)

    # the disk

    def fsync(self, descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        self.world.processes.effect("write", name.lstrip(".").rpartition(".")[0] or name, lambda: None)

    def lock(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """FileLock.acquire that lets the holder run where it would wait."""

        def acquire(lock: Any, timeout: float | None = None, *arguments: Any, **keywords: Any) -> Any:
            limit = lock.timeout if timeout is None else timeout
            while True:
                try:
                    taken = original(lock, 0, *arguments, **keywords)
                    self.world.process.locks.append(lock)
                    return taken
                except filelock.Timeout:
                    if limit == 0 or not self.world.processes.others():
                        raise
                    self.world.processes.switch(away=True)

        return acquire

    # nodes

    def scan(self, address: str, port: int = 22) -> str:
        machine = self.world.cloud.at(address)
        return machine.key if machine and not machine.deaf else ""

    def wait_for_port(self, address: str, patience: Any, port: int = 22) -> str | None:
        def refused() -> ProviderError:
            return ProviderError("no route to host", where=address)

        try:
            self.world.processes.effect("node", f"wait for {address}", lambda: None, refusal=refused)
        except ProviderError as error:
            return error.message
        machine = self.world.cloud.at(address)
        return None if machine and not machine.deaf else "timed out"

    def machine_of(self, folder: Path, node: Node) -> Machine | None:
        """The machine that ssh reaches under a node's name: the one at its address, if it shows the pinned key."""
        machine = self.world.cloud.at(node.address)
        if machine is not None and not machine.admits(public_key(folder)):
            return None
        try:
            pins = json.loads((folder / "ssh" / "pins.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        pinned = pins.get(node.name, ("", ""))[1]
        return machine if machine and not machine.deaf and machine.key == pinned else None

    def collect(
        self, targets: Mapping[str, Sequence[str]], request: Any, *, deadline_s: float | None = None,
        parallel: int = 64, events: Any = None, stage: str = "verify",
    ) -> dict[str, Bundle]:  # fmt: skip
        del request, deadline_s, parallel, events, stage
        return {name: self._probed(name, argv) for name, argv in targets.items()}

    def _probed(self, name: str, argv: Sequence[str]) -> Bundle:
        machine, error = self._reached(name, argv)
        if machine is None:
            return Bundle({}, error=error)
        return Bundle({"simulated": Output(json.dumps({"id": machine.id, "driver": machine.installed}))})

    def _reached(self, name: str, argv: Sequence[str]) -> tuple[Machine | None, str]:
        """The machine that answers; else why none does."""
        config = Path(argv[argv.index("-F") + 1])
        run = config.parent.parent
        try:
            nodes = {n.name: n for n in fleet.parse(json.loads((run / "nodes.json").read_text(encoding="utf-8")))}
        except FileNotFoundError:
            nodes = {}  # `down` has removed ssh's configuration with it
        self.connections.use(config)

        def answer() -> Machine | None:
            return self.machine_of(run, nodes[name]) if name in nodes else None

        cut = ProviderError("no answer from the probe (exit status 255)", where=name)
        try:
            machine = self.world.processes.effect("node", f"probe {name}", answer, refusal=lambda: cut)
        except ProviderError as error:
            return None, error.message
        if not self.connections.is_open(config):
            if machine is not None and not machine.sick:
                self.world.broken(f"the connection to {name} was cut by another command")
            return None, cut.message
        return (machine, "") if machine else (None, "ssh: connect to host: Connection timed out")

    # configuring

    @staticmethod
    def desired(nodes: Sequence[Node], releases: Mapping[str, Any], *_: Any) -> dict[str, str]:
        return {node.name: str(releases[node.name].stack(node.group).driver) for node in nodes}

    @staticmethod
    def differences(bundle: Bundle, driver: str) -> tuple[Difference, ...]:
        if bundle.error:
            return (Difference("unknown", "node", None, None, f"could not be probed: {bundle.error}"),)
        present = json.loads(bundle.files["simulated"].text)["driver"]
        return () if present == driver else (Difference("package", "driver", driver, present, f"driver {present}"),)

    def write_inventory(self, paths: Any, nodes: Sequence[Node], plan: Plan, *_: Any) -> Path:
        from provisioner.common.paths import write_whole

        document = {"all": {"vars": {}}, "drivers": {node.name: plan.group(node.group).stack.driver for node in nodes}}
        write_whole(paths.inventory, json.dumps(document))
        return Path(paths.inventory)

    def configure(
        self, paths: Any, nodes: Sequence[Node], inventory: Path, *_: Any, **__: Any
    ) -> dict[str, Outcome]:  # fmt: skip
        drivers = json.loads(inventory.read_text(encoding="utf-8"))["drivers"]
        outcomes = {}
        for node in nodes:
            machine = self.machine_of(paths.root, node)
            outcomes[node.name] = Outcome(ok=1, changed=1)
            failed = ProviderError("base: connection lost")

            def install(machine: Machine | None = machine, node: Node = node) -> None:
                assert machine is not None
                if isinstance(machine, Host) and not machine.serves:
                    self.world.broken(f"{node.name} ({machine.id}) is configured, and nothing notes what is changed")
                if machine.in_use and drivers[node.name] != machine.installed:
                    self._moved(paths.root, node, machine)
                    self.world.changing(machine)
                machine.installed, machine.drifted = drivers[node.name], False
                if isinstance(machine, Host):
                    machine.asked = False

            try:
                if machine is None:
                    raise ProviderError("base: no route to host")
                if self.world.process.lost_lease is not None:  # process.follow ends Ansible
                    raise self.world.process.lost_lease
                self.world.process.changes += 1
                self.world.processes.effect("node", f"configure {node.name}", install, refusal=partial(_same, failed))
            except ProviderError as error:
                outcomes[node.name] = Outcome(failed=[error.message])
        return outcomes

    def _moved(self, run: Path, node: Node, machine: Machine) -> None:
        """A machine in use gets another driver: somebody was asked, or it is out of service."""
        store_file = run / "quarantine.json"
        entries = json.loads(store_file.read_text(encoding="utf-8"))["nodes"] if store_file.exists() else {}
        if node.name in self.world.drained or node.name in entries or node.name in self.world.lost_holds:
            return
        is_announced = any("→" in text for text in self.world.process.questions)
        is_announced = is_announced or self.world.named(node.name, self.world.process)
        is_announced = is_announced or (isinstance(machine, Host) and machine.asked)
        if not is_announced and machine.known_as not in self.world.process.condemned:
            self.world.broken(f"{node.name}, which was proven, is changed and no question said so")

    # maintenance

    def _patching(self, paths: ClusterPaths, node: Node, deed: str, work: Callable[[Machine], None]) -> str:
        """Do something on a node as one effect; why it did not work."""
        machine, failed = self.machine_of(paths.root, node), ProviderError("ssh: connection lost", where=node.name)

        def act() -> None:
            if machine is None:
                raise failed
            work(machine)

        try:
            self.world.processes.effect("node", f"{deed} {node.name}", act, refusal=lambda: failed)
        except ProviderError as error:
            return str(error.message)
        return ""

    def look(self, cluster: Cluster, requests: Any, nodes: Sequence[Node]) -> dict[str, Look | str]:
        """The archive has one update for every machine, which needs a reboot."""
        answers: dict[str, Look | str] = {}
        for node in nodes:

            def ask(machine: Machine, node: Node = node) -> None:
                packages = {} if machine.patched else {"ssl": "2"}
                answers[node.name] = Look(packages=packages, waiting={}, freeable={}, reboot=UP_TO_DATE)

            if reason := self._patching(cluster.paths, node, "look at", ask):
                answers[node.name] = reason
        return answers

    def maintain(self, cluster: Cluster, requests: Mapping[str, Any], nodes: Sequence[Node]) -> dict[str, Work | str]:
        answers: dict[str, Work | str] = {}
        for node in nodes:
            packages = requests[node.name]["packages"]

            def install(machine: Machine, node: Node = node, packages: dict[str, str] = packages) -> None:
                self._untouched(cluster, node, machine)
                self.world.process.changes += 1
                reboot = Reboot(reasons=["/run/reboot-required"], blocked="") if not machine.patched else UP_TO_DATE
                machine.patched = machine.patched or bool(packages)
                answers[node.name] = Work(installed=packages, present=packages, missing=[], freed={}, reboot=reboot)

            if reason := self._patching(cluster.paths, node, "patch", install):
                answers[node.name] = reason
        return answers

    def _untouched(self, cluster: Cluster, node: Node, machine: Machine) -> None:
        """A machine in use is maintained out of service alone."""
        drained = node.name in self.world.drained or node.name in self.world.lost_holds
        if machine.in_use and cluster.spec.hooks.drain and not drained:
            self.world.broken(f"{node.name} is maintained and was not drained")

    def reboot(self, cluster: Cluster, node: Node, stage: str) -> None:
        if reason := self._patching(
            cluster.paths, node, "reboot", lambda machine: self._untouched(cluster, node, machine)
        ):
            raise ProviderError(reason, where=node.name)

    # verifying

    def verify(
        self, subjects: Sequence[Subject], *, checks: Any, events: Any, workdir: Any = None, extra_files: Any = None,
        neighbours: Any = None,
    ) -> Report:  # fmt: skip
        del checks, events, workdir, extra_files, neighbours
        return Report(tuple(self._judged(subject) for subject in subjects), {}, 0.0)

    def _judged(self, subject: Subject) -> NodeReport:
        argv, bundle = subject.transport, None
        if isinstance(subject.source, Bundle):
            bundle = subject.source
        machine, error = None, ""
        if bundle is not None:
            error = bundle.error
            if not error:
                machine = self.world.cloud.machines[json.loads(bundle.files["simulated"].text)["id"]]
        elif argv is not None:
            machine, error = self._reached(subject.name, argv)
        head = (subject.name, subject.group, subject.site, subject.machine, False)
        if machine is None:
            run = Path(argv[argv.index("-F") + 1]).parent.parent if argv else None
            file = run / "nodes.json" if run else None  # another command may have removed it meanwhile
            rows = json.loads(file.read_text(encoding="utf-8")) if file and file.exists() else []
            self.world.process.condemned |= {row["id"] for row in rows if row["name"] == subject.name}
            return NodeReport(*head, (), error=error or "no answer")
        right = machine.installed == subject.expected.driver
        healthy = right and not machine.sick and machine.installed not in self.world.bad_drivers
        self.world.judged(machine, healthy=healthy, reachable=machine.running)
        work = WORKS if subject.expected.level != "quick" else NOT_ASKED
        return NodeReport(*head, (GOOD, work) if healthy else (BAD,))

    def write_report(self, report: Report, directory: Path, *, title: str, previous: Any = None) -> Path:
        from provisioner.common.paths import private_dir, write_whole

        del previous
        page = private_dir(directory) / "report.html"
        write_whole(page, f"{title}: {len(report.nodes)} nodes\n")
        return page

    # people and schedulers

    def confirmed(self, question: str, *, details: str = "", **_: Any) -> bool:
        self.world.agree(f"{details}\n{question}" if details else question)
        return True

    def hook(
        self, step: str, command: str | None, nodes: Sequence[Node], *, action: str, reasons: Mapping[str, str],
        cluster: str, folder: Path, deadline_s: float, events: Any,
    ) -> dict[str, str]:  # fmt: skip
        del reasons, folder, deadline_s, events, action
        if command is None:
            return {}
        bad = {}
        for node in nodes:
            failed = ProviderError(f"the {step} command ended with status 1")

            def work(node: Node = node) -> None:
                self.world.process.changes += 1
                self.world.hook(step, node.name, node.id, cluster)

            try:
                self.world.processes.effect(
                    "hook", f"{step} {node.name}", work, refusal=partial(_same, failed), lost=partial(_same, failed)
                )
            except ProviderError as error:
                bad[node.name] = error.message
        return bad

    def refuse_stopped(self) -> None:
        if self.world.process.lost_lease is not None:
            raise self.world.process.lost_lease

    def side_by_side(self, calls: Sequence[Callable[[], Any]], *, grace_s: float) -> list[Any]:
        return [call() for call in calls]


def _same(error: ProviderError) -> ProviderError:
    return error


# Functions of values that thousands of histories share.
parsed_lock = functools.lru_cache(maxsize=512)(lockfile.parse)
run_directory = functools.lru_cache(maxsize=512)(ClusterPaths.root.fget)  # type: ignore[attr-defined]


class Printed(io.TextIOBase):
    """Standard output or error: what the command at work prints goes to its own record."""

    def __init__(self, world: World, *, errors: bool) -> None:
        self.world, self.is_error = world, errors

    def write(self, text: str) -> int:
        process = self.world.process
        (process.errors if self.is_error else process.output).append(
            text if isinstance(text, str) else bytes(text).decode()
        )
        return len(text)

    def isatty(self) -> bool:
        return False


@contextlib.contextmanager
def installed(world: World) -> Iterator[None]:
    """gpuprov's code runs in this world until the block ends."""
    seams = Seams(world)
    connections = seams.connections
    classes = {name: provider_class(world, name) for name in ("aws", "azure")} | {"baremetal": bare_metal(world)}
    real_find, real_unlink, real_rmtree = providers.find, os.unlink, shutil.rmtree

    def find(name: str) -> Any:
        return classes.get(name) or real_find(name)

    def token_hex(size: int = 16) -> str:
        return f"{next(world.tokens):0{2 * size}x}"

    def unlink(path: Any, *, dir_fd: int | None = None) -> None:
        if dir_fd is None and str(path).startswith(str(world.root)) and world.process is not world.processes.outside:
            world.processes.effect("remove", Path(path).name, lambda: real_unlink(path))
        else:
            real_unlink(path, dir_fd=dir_fd)

    def rmtree(path: Any, *arguments: Any, **keywords: Any) -> None:
        if str(path).startswith(str(world.root)) and world.process is not world.processes.outside:
            world.processes.effect("remove", Path(path).name, lambda: real_rmtree(path, *arguments, **keywords))
        else:
            real_rmtree(path, *arguments, **keywords)

    shim = SimpleNamespace(run=seams.ask, TimeoutExpired=TimeoutError)
    later = SimpleNamespace(
        sleep=lambda seconds: setattr(world, "clock", world.clock + seconds), time=lambda: world.clock
    )
    replacements: list[tuple[Any, str, Any]] = [
        (process, "follow", seams.follow), (process, "side_by_side", seams.side_by_side),
        (workspace, "subprocess", shim), (terraform_machines, "time", later),
        (lockfile, "parse", parsed_lock), (ClusterPaths, "root", property(run_directory)),
        (os, "fsync", seams.fsync), (os, "unlink", unlink), (shutil, "rmtree", rmtree),
        (filelock.BaseFileLock, "acquire", seams.lock(filelock.BaseFileLock.acquire)),
        (host_keys, "scan", seams.scan), (fleet, "_wait_for_port", seams.wait_for_port),
        (ssh_sockets, "disconnect", lambda *_: None),
        (ssh_sockets, "run_config", lambda paths: connections.config(paths.root)),
        (keeper, "close_shared", connections.close_shared), (keeper, "end", lambda _: 0),
        (remote_exec, "subprocess", sessions(lambda node, argv: seams._reached(node, argv)[1])),
        (remote_exec, "ThreadPoolExecutor", Inline),
        (fleet, "ThreadPoolExecutor", Inline), (status, "ThreadPoolExecutor", Inline),
        (second_boot, "ThreadPoolExecutor", Inline), (second_boot, "reboot", seams.reboot),
        (second_boot, "gpu_holders", lambda *_: {}),
        (on_nodes, "jobs_by_node", lambda *_: ({}, {})),
        (node_work, "look", seams.look), (node_work, "work", seams.maintain),
        (cli_maintain, "confirmed", seams.confirmed),
        (existing, "ThreadPoolExecutor", Inline), (existing, "_call", seams.host_ssh.call),
        (baremetal, "ThreadPoolExecutor", Inline), (baremetal, "_silence", seams.host_ssh.silence),
        (known_hosts, "_keys_of", keys_in), (private_key, "problem", lambda _: None),
        (collecting, "collect", seams.collect), (verifying, "verify", seams.verify),
        (reports, "write", seams.write_report),
        (configuring, "desired_states", seams.desired), (drift, "differences", seams.differences),
        (stamps, "desired", lambda *_: {"base": None}), (inventory, "write", seams.write_inventory),
        (roles, "configure", seams.configure), (hooks, "run", seams.hook),
        (cli_lifecycle, "confirmed", seams.confirmed), (cli_replace, "confirmed", seams.confirmed),
        (cli_gc, "confirmed", seams.confirmed), (cli_exit, "interrupted", lambda: world.process.asked_to_end),
        (providers, "find", find), (still_there, "look", lambda *_: []),
        (binary, "find", lambda *_, **__: binary.Binary(("terraform",), "simulated")),
        (render, "_copy_module", lambda *_: False),
        (shared_files, "remote_of", lambda spec: Remote(world, spec.name)),
        (gc, "remote_of", lambda spec: Remote(world, spec.name)),
        (lease, "threading", threads(world)),
        (lease, "monotonic", lambda: world.clock),
        (process, "stop_followed", world.stop),
        (process, "refuse_stopped", seams.refuse_stopped),
        (process, "allow_followed", lambda _: setattr(world.process, "lost_lease", None)),
        (sys, "stdout", Printed(world, errors=False)), (sys, "stderr", Printed(world, errors=True)),
    ]  # fmt: skip
    # One command at a time: a lock that one holds while another has its turn is never released.
    replacements.append((site_machines, "_ALONE", contextlib.nullcontext()))
    replacements += [
        (value, "lock", contextlib.nullcontext())  # Python 3.11 has one for all instances of the class
        for value in vars(Cluster).values()
        if isinstance(value, functools.cached_property) and hasattr(value, "lock")
    ]
    import secrets

    replacements.append((secrets, "token_hex", token_hex))
    with contextlib.ExitStack() as stack:
        for owner, name, value in replacements:
            stack.enter_context(mock.patch.object(owner, name, value))
        yield
