"""Whether a node is idle: no process has its GPUs, and no scheduler has a job on it, also one that does not use the
GPUs yet. What cannot be told counts as a job.

Sources: slurm.schedmd.com/cgroup_v2.html (one `slurmstepd infinity` of the node's own holds slurmd's scope and is no
job; with a job's number behind it is that job's external step, SchedMD/slurm extern step); squeue(1); kubelet's
devicemanager checkpoint, which keeps pods that have ended (kubernetes/kubernetes#137010); openpbs/openpbs#593 (a .JB
file for each job of pbs_mom); HTCondor manual (condor_starter runs one job).

Standard library only, Python 3.8 or newer.
"""

from __future__ import annotations

import re

from provisioner.verify.probe.load import busy, is_local, own_job
from provisioner.verify.probe.runner import listed, run, texts

PROCESSES = "/proc"
KUBELET = "/var/lib/kubelet"
DEVICE_PLUGINS = "device-plugins/kubelet_internal_checkpoint"
RESOURCE_CLAIMS = "dra_manager_state"
PBS_JOBS = "/var/spool/pbs/mom_priv/jobs"
KUBELETS = ("kubelet", "k3s", "k3s-agent", "k3s-server", "rke2", "k0s")
SQUEUE = ["squeue", "--all", "--noheader", "--nodelist=localhost", "--format=%i"]
SQUEUE += ["--states=RUNNING,SUSPENDED,COMPLETING,CONFIGURING"]
"""Jobs that have this node, of hidden partitions too. squeue knows localhost by its host name and by its name in Slurm,
and fails for a node that the controller does not know (SchedMD/slurm src/squeue/opts.c). Without a state it leaves
suspended jobs out."""
SCHEDULER_S = 15.0
"""Seconds for squeue to answer."""
CHECKPOINT = 8 << 20
"""Bytes of kubelet's files that are read; a hundred pods take some ten thousand."""
POD = re.compile(r"kubepods\S*?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})")
"""A pod's UID in a control group: with - or, by systemd's driver, with _ ."""


def job_reason(vendor: str) -> str:
    """Why a node is not known to be idle; "" where it is."""
    holders = busy(vendor)
    if holders is None:
        return "cannot tell whether a job is using the GPUs"
    if holders:
        return "a job is using the GPUs: " + ", ".join("{name} (pid {pid})".format(**holder) for holder in holders[:3])
    rows = running()
    if not rows:
        return "cannot tell what runs on it"
    return gpuprov_job(rows) or slurm_job(rows) or kubernetes_job(rows) or other_job(rows)


def running() -> list[dict[str, str]]:
    """Every process: its number, its name, its arguments and its control group."""
    rows = []
    for pid in listed(PROCESSES):
        if pid.isdigit():
            row = texts(PROCESSES + "/" + pid, ("comm", "cmdline", "cgroup"))
            rows.append({"pid": pid, **{name: row.get(name, "") for name in ("comm", "cmdline", "cgroup")}})
    return [row for row in rows if row["comm"]]


def gpuprov_job(rows: list[dict[str, str]]) -> str:
    for row in rows:
        name = own_job(row["cmdline"].split("\0"))
        if name and is_local(PROCESSES + "/" + row["pid"]):
            return f"job {name} of gpuprov runs on it"
    return ""


def slurm_job(rows: list[dict[str, str]]) -> str:
    for row in rows:
        arguments = [argument for argument in row["cmdline"].split("\0") if argument]
        if row["comm"] == "slurmstepd" and arguments[1:] != ["infinity"]:
            return "Slurm has a job on it: {}".format(" ".join(arguments)[:80] or "slurmstepd")
    if not any(row["comm"] == "slurmd" for row in rows):
        return ""
    out = run(SQUEUE, SCHEDULER_S)
    if out["rc"] != 0:
        lines = out["error"].splitlines() or ["no answer"]
        return f"slurmd runs on it, and squeue does not list its jobs: {lines[-1][:200]}"
    jobs = out["text"].split()
    return "Slurm has allocated it: job {}".format(", ".join(jobs[:3])[:80]) if jobs else ""


def kubernetes_job(rows: list[dict[str, str]]) -> str:
    """Of the pods that live, those that hold a device."""
    if not any(row["comm"] in KUBELETS for row in rows):
        return ""
    pods = {match[1].replace("_", "-") for row in rows for match in POD.finditer(row["cgroup"])}
    for name in (DEVICE_PLUGINS, RESOURCE_CLAIMS):
        try:
            with open(KUBELET + "/" + name, "rb") as stream:  # noqa: PTH123 (a plain script)
                text = stream.read(CHECKPOINT + 1).decode("utf-8", "replace")
        except FileNotFoundError:
            continue  # kubelet writes it with the first pod that has such a device
        except OSError as error:
            return f"kubelet runs on it, and its list of allocated devices cannot be read: {error.strerror}"
        if len(text) > CHECKPOINT:
            return "kubelet runs on it, and its list of allocated devices is too long"
        holding = sorted(pod for pod in pods if pod in text)
        if holding:
            return "Kubernetes has given a device to pod {}".format(", ".join(holding[:3]))
    return ""


def other_job(rows: list[dict[str, str]]) -> str:
    if any(row["comm"] == "condor_starter" for row in rows):
        return "HTCondor has a job on it (condor_starter)"
    jobs = [name[:-3] for name in listed(PBS_JOBS) if name.endswith(".JB")]
    if jobs:  # its processes outlive a restart of pbs_mom
        return "PBS has a job on it: {}".format(", ".join(jobs[:3])[:80])
    if any(row["comm"] == "pbs_mom" for row in rows) and not texts(PBS_JOBS + "/..", ("mom.lock",)):
        return f"pbs_mom runs on it, and its jobs are not in {PBS_JOBS}"
    return ""
