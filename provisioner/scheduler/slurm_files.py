"""slurm.conf, gres.conf, cgroup.conf and slurmdbd.conf of a cluster, from cluster.yaml, the catalogue and its nodes.

The same input gives the same text. Keys and their meaning: slurm.conf(5), gres.conf(5), cgroup.conf(5) and
slurmdbd.conf(5) of Slurm 22.05 and 23.11.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from provisioner.catalog import distributions
from provisioner.catalog.models import Machine
from provisioner.common.errors import GpuprovError
from provisioner.common.text import bracketed
from provisioner.plan.roles.slurm_controller import ACCOUNTING_PORT, CONTROLLER_PORT, NODE_PORT
from provisioner.rundir.fleet import Node
from provisioner.spec.models import ClusterSpec
from provisioner.spec.scheduler import Slurm
from provisioner.stack.models import Stack
from provisioner.transport import root_python

MEMORY_SHARE = 0.9
"""Of a machine's memory for jobs. The kernel takes a part of it, with each release another one, and Slurm drains a node
that has less than slurm.conf says ("Low RealMemory")."""
MIB_PER_GIB = 1024
UNKILLABLE_S = 300
"""Seconds until a job that cannot be killed drains its node: a process that waits for a GPU takes minutes to end, and
slurm.conf(5) asks for five times MessageTimeout (10 s) at least."""
HEADER = "# Written by gpuprov from cluster.yaml and the catalogue. `gpuprov up` overwrites it."

GENERAL = """\
AuthType=auth/munge
CredType=cred/munge
SlurmUser=slurm
SlurmctldPort={controller_port}
SlurmdPort={node_port}
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldParameters=enable_configless
# A node that did not answer comes back by itself; one that has started again waits until gpuprov has proven it.
ReturnToService=1
SlurmctldTimeout=120
SlurmdTimeout=300
UnkillableStepTimeout={unkillable_s}
# A job of `gpuprov run` has two minutes to write a checkpoint.
KillWait=150
# A job that no partition can take is refused, and does not wait for ever.
EnforcePartLimits=ALL
GresTypes=gpu
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
ProctrackType=proctrack/cgroup
TaskPlugin=task/affinity,task/cgroup
JobAcctGatherType=jobacct_gather/cgroup
PrologFlags=Contain
HealthCheckProgram={health_program}
HealthCheckInterval=60
HealthCheckNodeState=ANY,CYCLE
PropagateResourceLimitsExcept=MEMLOCK
SchedulerParameters=nohold_on_prolog_fail
"""
"""For every cluster. Without a log file the daemons write to the journal."""
HEALTH_PROGRAM = "/usr/local/lib/gpuprov-slurm-health"
"""Role slurm_node writes it."""
CGROUP = f"{HEADER}\nConstrainCores=yes\nConstrainDevices=yes\nConstrainRAMSpace=yes\n"
GPU_FILES = "/dev/nvidia{devices}"
NUMBERED = re.compile(r"(.*[^0-9])(0|[1-9][0-9]{0,4})")
"""A name that ends in a number without zeros before it."""


def variables(spec: ClusterSpec, nodes: Sequence[Node], *, simulated: bool) -> dict[str, Any]:
    """`gpuprov_slurm` for the roles: address of the head node, whether it keeps accounts, its files, the program that
    drains there what is bad (None: quarantine.automatic is false), and the one by which nodes tell that they are."""
    slurm, head, timer = spec.scheduler.slurm, head_node(spec, nodes), spec.health_timer
    assert slurm is not None and timer is not None
    limits = {"share": int(spec.quarantine.share.rstrip("%")), "most": spec.quarantine.most}
    watch = root_python.text_of(source("on_head.py"), {"do": "watch", **limits})
    health = {"program": source("slurm_health.py"), "textfile": timer.textfile, "seconds": _minutes(timer.every) * 60}
    return {
        "gpuprov_slurm": {
            "head": bracketed(address_of(head)) if head else "",
            "accounting": slurm.accounting,
            "files": dict(files(spec, nodes, simulated=simulated)),
            "watch": watch if spec.quarantine.automatic else None,
            "health": health,
        }
    }


def source(name: str) -> str:
    """A program of this folder that runs on a node."""
    return (resources.files("provisioner.scheduler") / name).read_text(encoding="utf-8")


def files(spec: ClusterSpec, nodes: Sequence[Node], *, simulated: bool) -> Mapping[str, str]:
    """Name in /etc/slurm of the head node → text. `nodes`: all machines of the cluster. Empty while the head node has
    no machine."""
    slurm = spec.scheduler.slurm
    assert slurm is not None
    head = head_node(spec, nodes)
    if head is None:
        return {}
    workers = job_nodes(spec, nodes)
    texts = {
        "slurm.conf": "".join(f"{line}\n" for line in _slurm_conf(spec, slurm, head, workers, simulated=simulated)),
        "gres.conf": "".join(f"{line}\n" for line in _gres_conf(spec, workers)),
        "cgroup.conf": CGROUP,
    }
    if slurm.accounting:
        texts["slurmdbd.conf"] = _slurmdbd_conf(head)
    return texts


def head_node(spec: ClusterSpec, nodes: Sequence[Node]) -> Node | None:
    """The machine that runs slurmctld; None while there is none."""
    return next((node for node in nodes if node.group == spec.scheduler.head), None)


def job_nodes(spec: ClusterSpec, nodes: Sequence[Node]) -> list[Node]:
    """The nodes that jobs run on: all but the head node, of groups that cluster.yaml has."""
    return [node for node in nodes if node.group in spec.groups and node.group != spec.scheduler.head]


def address_of(node: Node) -> str:
    """How other nodes of its site reach a node."""
    return node.private_address or node.address


def folded(names: Sequence[str]) -> str:
    """Names as Slurm's host lists have them: a line of slurm.conf with a thousand names is too long for it.

    >>> folded(["train-0", "train-1", "train-2", "train-7", "dgx01"])
    'train-[0-2,7],dgx01'
    """
    parts: list[str] = []
    numbers: dict[str, list[int]] = {}
    for name in names:
        match = NUMBERED.fullmatch(name)
        if match is None:
            parts.append(name)
        else:
            numbers.setdefault(match[1], []).append(int(match[2]))
    ranges = [f"{prefix}[{','.join(_ranges(sorted(values)))}]" for prefix, values in numbers.items()]
    return ",".join([*ranges, *parts])


def _ranges(numbers: Sequence[int]) -> Iterator[str]:
    first = last = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == last + 1:
            last = number
            continue
        yield str(first) if first == last else f"{first}-{last}"
        if number is not None:
            first = last = number


def memory_mib(machine: Machine) -> int:
    """MiB of a machine's memory that jobs may have.

    >>> from provisioner import catalog
    >>> memory_mib(catalog.load().machine("p4d.24xlarge"))
    1061683
    """
    return int(machine.memory_gib * MIB_PER_GIB * MEMORY_SHARE)


def gpu_type(machine: Machine) -> str:
    """What `--gres=gpu:TYPE:N` names.

    >>> from provisioner import catalog
    >>> gpu_type(catalog.load().machine("p4d.24xlarge"))
    'a100-sxm4-40gb'
    """
    return machine.gpu_model.lower()


def _slurm_conf(
    spec: ClusterSpec, slurm: Slurm, head: Node, workers: Sequence[Node], *, simulated: bool
) -> Iterator[str]:
    yield HEADER
    yield f"ClusterName={spec.name}"
    # @hostname@: what the head node calls itself; slurmctld runs under no other name.
    yield f"SlurmctldHost=@hostname@({address_of(head)})"
    yield GENERAL.format(
        health_program=HEALTH_PROGRAM, controller_port=CONTROLLER_PORT, node_port=NODE_PORT, unkillable_s=UNKILLABLE_S
    ).rstrip("\n")
    if simulated:
        yield "# SIMULATED hardware: nodes have what is written here, whatever this computer has."
        yield "SlurmdParameters=config_overrides"
    if slurm.accounting:
        yield "AccountingStorageType=accounting_storage/slurmdbd"
        yield f"AccountingStorageHost={address_of(head)}"
        yield f"AccountingStoragePort={ACCOUNTING_PORT}"
        yield "AccountingStorageTRES=gres/gpu"
    for node in workers:
        machine = spec.catalog.machine(node.machine)
        gres = f" Gres=gpu:{gpu_type(machine)}:{machine.gpu_count}" if machine.gpu_count else ""
        resources = f"CPUs={machine.vcpus} RealMemory={memory_mib(machine)}{gres}"
        yield f"NodeName={node.name} NodeAddr={address_of(node)} {resources}"
    yield from _partitions(spec, slurm, workers)


def _partitions(spec: ClusterSpec, slurm: Slurm, workers: Sequence[Node]) -> Iterator[str]:
    """One for each group that has nodes. The default is the first one with GPUs, else the first one."""
    groups = [name for name in spec.groups if any(node.group == name for node in workers)]
    with_gpus = [name for name in groups if spec.machine(name).gpu_count]
    for name in groups:
        machine = spec.machine(name)
        names = folded([node.name for node in workers if node.group == name])
        default = "YES" if name == (with_gpus or groups)[0] else "NO"
        limit = f" MaxTime={_minutes(slurm.max_time)}" if slurm.max_time else " MaxTime=INFINITE"
        memory = memory_mib(machine)
        if machine.gpu_count:
            # A job that asks for one of eight GPUs gets an eighth of the node, unless it asks for something else.
            cpus, mib = machine.vcpus // machine.gpu_count, memory // machine.gpu_count
            defaults = f" DefCpuPerGPU={cpus} DefMemPerGPU={mib}"
        else:
            defaults = f" DefMemPerCPU={memory // machine.vcpus}"
        yield f"PartitionName={name} Nodes={names} Default={default}{limit}{defaults} State=UP"


def _minutes(text: str) -> int:
    """Minutes of 30m, 12h or 7d."""
    return int(text[:-1]) * {"m": 1, "h": 60, "d": 24 * 60}[text[-1]]


def _gres_conf(spec: ClusterSpec, workers: Sequence[Node]) -> Iterator[str]:
    """Devices by name: the distributions build Slurm without NVML, and AutoDetect finds nothing then."""
    yield HEADER
    yield "AutoDetect=off"
    for node in workers:
        machine = spec.catalog.machine(node.machine)
        if machine.gpu_count:
            devices = "0" if machine.gpu_count == 1 else f"[0-{machine.gpu_count - 1}]"
            file = GPU_FILES.format(devices=devices)
            yield f"NodeName={node.name} Name=gpu Type={gpu_type(machine)} File={file}"


def _slurmdbd_conf(head: Node) -> str:
    """Without a password: MariaDB knows slurmdbd by its user on the socket."""
    return "\n".join((
        HEADER,
        "AuthType=auth/munge",
        "SlurmUser=slurm",
        "DbdHost=@hostname@",
        f"DbdAddr={address_of(head)}",
        f"DbdPort={ACCOUNTING_PORT}",
        "StorageType=accounting_storage/mysql",
        "StorageHost=localhost",
        "StorageUser=slurm",
        "StorageLoc=slurm_acct_db",
        "PidFile=/run/slurmdbd.pid",
        "",
    ))  # fmt: skip


def refuse_stacks(spec: ClusterSpec, stacks: Mapping[str, Stack]) -> None:
    """Raise GpuprovError where a lock's distributions do not make one Slurm cluster: its daemons are of one release,
    and it needs cgroup v2. `stacks`: group → its stack."""
    head = spec.scheduler.head
    if head is None or head not in stacks:
        return
    ours = stacks[head].os
    if (row := distributions.row(ours)).get("slurm") is None:
        raise GpuprovError(
            f"scheduler.slurm does not work on {ours}: {row['no_slurm']}", where=spec.name,
            hint=f"stack: {{os: {' or '.join(d['version'] for d in distributions.rows() if d.get('slurm'))}}}",
        )  # fmt: skip
    for group, stack in stacks.items():
        if stack.os != ours:
            raise GpuprovError(
                f"group {group} has {stack.os}, and the head node of Slurm {ours}: their Slurm releases differ",
                where=spec.name,
                hint=f"stack: {{os: {ours}}}, or leave scheduler.slurm out",
            )
