"""`gpuprov bench`: training benchmarks as jobs, on one GPU, on each node by itself, on all nodes; what they reached,
and how that compares."""

from __future__ import annotations

import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING

from provisioner.common import bounded
from provisioner.common.errors import GpuprovError
from provisioner.common.text import significant
from provisioner.lifecycle.jobs import choose, follow
from provisioner.lifecycle.jobs import start as starting
from provisioner.lifecycle.jobs.follow import Follower
from provisioner.lifecycle.jobs.on_node import ROOT
from provisioner.lifecycle.jobs.start import Options, Started
from provisioner.lifecycle.quarantine.book import utc_timestamp
from provisioner.output.bench import BenchOutput, BenchPublished, BenchRun, Scale
from provisioner.rundir import benchmarks as baselines
from provisioner.rundir.benchmarks import BenchmarkBaseline, Rate
from provisioner.rundir.fleet import Node
from provisioner.transport import ssh
from provisioner.workloads import benchmarks, published, recipe
from provisioner.workloads.benchmarks import MODELS, Measured

if TYPE_CHECKING:
    from provisioner.lifecycle.session import Cluster
    from provisioner.stack.models import Image

METRICS = "/gpuprov/metrics.jsonl"
"""In the container; on the node it is `out/` of the job's folder."""
METRICS_LIMIT = 4 << 20
ASK_S = 60.0
LAST_LINES = 5
"""Of the log of a run that failed."""
Note = Callable[[str], None]


@dataclass(slots=True)
class Run:
    """A run that was started. `lines`: the end of its log; `measured`: None where it failed."""

    model: str
    scale: Scale
    job: Started
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    measured: Measured | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line says. `arguments`: for the programs, behind gpuprov's."""

    models: Sequence[str]
    scales: Sequence[Scale]
    steps: int
    arguments: Sequence[str]
    options: Options
    save_baseline: bool = False


def bench(cluster: Cluster, request: Request, note: Note) -> BenchOutput:
    """Run the benchmarks one after the other; the nodes of scale `node` at the same time. Raises GpuprovError for what
    cannot be begun. Ctrl-C stops what runs."""
    options = request.options
    if cluster.spec.scheduler.slurm is not None:
        message = "benchmarks do not go through Slurm's queue yet"
        raise GpuprovError(message, where=str(cluster.file), hint="run a bench recipe: `gpuprov run FILE bench-gpt`")
    group = choose.group_of(cluster, options.group, options.names)
    nodes = choose.choose(cluster, group, options.nodes, options.names)
    image = starting.image_of(cluster, nodes, options.image)
    baseline = baselines.load(cluster.paths)
    peak = published.peaks().get(cluster.spec.catalog.machine(nodes[0].machine).gpu_model)
    runs: list[Run] = []
    for model in request.models:
        for scale in request.scales:
            if scale == "fleet" and len(nodes) == 1:
                continue
            started = _start(cluster, request, model, scale, nodes, note)
            runs += started
            _follow(cluster, started, note)
            for run in started:
                _read(cluster, run, peak.bf16 if peak else None)
                note(_summary(run))
    rows = _compare(cluster, runs, nodes, image, baseline)
    if request.save_baseline:
        _save(cluster, runs, nodes, image, baseline)
    return BenchOutput(
        cluster=cluster.spec.name, sandbox=cluster.sandbox, ok=all(row.ok for row in rows), machine=nodes[0].machine,
        image=image.digest, runs=rows,
    )  # fmt: skip


def _start(
    cluster: Cluster, request: Request, model: str, scale: Scale, nodes: Sequence[Node], note: Note
) -> list[Run]:
    """The jobs of one model at one scale. Where one does not start, those before it are stopped."""
    groups = [[node] for node in nodes] if scale == "node" else [list(nodes[:1] if scale == "gpu" else nodes)]
    known = MODELS[model]
    bench_recipe = recipe.find(known.recipe)
    arguments = [*known.arguments, "--steps", str(request.steps), "--metrics", METRICS, *request.arguments]
    runs: list[Run] = []
    try:
        for group in groups:
            options = replace(
                request.options, names=[node.name for node in group], nodes=None, name=f"bench-{model}",
                gpus_per_node=1 if scale == "gpu" else request.options.gpus_per_node,
            )  # fmt: skip
            runs.append(Run(model, scale, starting.start(cluster, bench_recipe, arguments, options)))
    except BaseException:
        _stop(cluster, runs)
        raise
    position = "one GPU" if scale == "gpu" else "each node by itself" if scale == "node" else "all nodes"
    note(f"{model}: {request.steps} steps on {position}")
    return runs


def _follow(cluster: Cluster, runs: Sequence[Run], note: Note) -> None:
    """Wait until these jobs have ended. Ctrl-C stops them, and waits for that; a second one does not wait."""
    followers = [
        Follower(
            cluster, run.job.id, run.job.nodes, dict(run.job.pids),
            lambda name, line, run=run: run.lines.append(f"{name}: {line}"),  # type: ignore[misc]
        )
        for run in runs
    ]  # fmt: skip
    try:
        for follower in followers:
            follower.begin()
        for follower in followers:
            follower.follow()
    except BaseException:
        note(f"stopping {', '.join(run.job.id for run in runs)}; press Ctrl-C again to leave")
        _stop(cluster, runs)
        for follower in followers:
            follower.follow()
        raise
    finally:
        for follower in followers:
            follower.end()


def _stop(cluster: Cluster, runs: Sequence[Run]) -> None:
    for run in runs:
        follow.stop(cluster, run.job.nodes, run.job.id, "the benchmark was interrupted")


def _read(cluster: Cluster, run: Run, peak_tflops: float | None) -> None:
    """How a job ended, and its metrics."""
    try:
        row = follow.await_end(cluster, run.job.id, run.job.nodes)
        if row.state != "completed":
            run.problem = row.reason or row.state
            return
        command = f"sudo -n cat {ROOT}/{run.job.id}/out/{METRICS.rpartition('/')[2]}"
        argv = [*ssh.argv(cluster.paths, run.job.nodes[0].name), command]
        done = bounded.run(argv, deadline_s=ASK_S, limit=METRICS_LIMIT, new_session=True)
        run.measured = benchmarks.read(done.stdout, peak_tflops)
    except GpuprovError as error:
        run.problem = str(error.message)
    except (bounded.UnboundedOutputError, OSError, subprocess.SubprocessError) as error:
        run.problem = f"its metrics could not be read: {error}"


def _summary(run: Run) -> str:
    names = ", ".join(node.name for node in run.job.nodes)
    if run.measured is None:
        return "\n".join([f"{run.model} on {names} failed: {run.problem}", *run.lines])
    return f"{run.model} on {names}: {significant(run.measured.rate)} {run.measured.unit}/s"


def _compare(
    cluster: Cluster, runs: Sequence[Run], nodes: Sequence[Node], image: Image, baseline: BenchmarkBaseline
) -> list[BenchRun]:
    machine = cluster.spec.catalog.machine(nodes[0].machine)
    rows = []
    for run in runs:
        row = BenchRun(
            model=run.model, scale=run.scale, nodes=[node.name for node in run.job.nodes], job=run.job.id, ok=True,
            problems=[run.problem] if run.problem else [],
        )  # fmt: skip
        if run.measured is not None:
            _describe(row, run.measured)
            known = baseline.rates.get(_key(run.measured, run, nodes, image))
            _hold_to_baseline(row, run.measured, known)
            _hold_to_peers(row, run, runs)
            row.efficiency = _efficiency(run, runs)
            row.published = [
                BenchPublished(low=r.low, high=r.high, conditions=r.conditions, source=r.source)
                for r in benchmarks.published_for(run.model, machine.gpu_model, run.measured.gpus)
            ]
            row.missing += [] if row.published else ["a published run"]
        row.ok = not row.problems
        rows.append(row)
    return rows


def _describe(row: BenchRun, measured: Measured) -> None:
    row.gpus, row.unit, row.steps = measured.gpus, measured.unit, measured.steps
    row.rate, row.slow, row.fast = measured.rate, measured.slow, measured.fast
    row.mfu, row.peak_gib = measured.mfu, measured.peak_gib
    row.first_loss, row.last_loss = measured.first_loss, measured.last_loss
    row.conditions = dict(measured.conditions)


def _hold_to_baseline(row: BenchRun, measured: Measured, known: Rate | None) -> None:
    if known is None:
        row.missing.append("a baseline in the same conditions")
        return
    row.baseline = known.rate
    if measured.rate < (1 - benchmarks.TOLERANCE) * known.rate:
        share = 100 * (1 - measured.rate / known.rate)
        row.problems.append(
            f"{share:.0f} % below the baseline of {known.at[:10]} ({significant(known.rate)} {known.unit}/s)"
        )


def _hold_to_peers(row: BenchRun, run: Run, runs: Sequence[Run]) -> None:
    if run.scale != "node":
        return
    rates = {
        peer.job.nodes[0].name: peer.measured.rate
        for peer in runs
        if (peer.model, peer.scale) == (run.model, "node") and peer.measured is not None
    }
    if len(rates) < benchmarks.PEERS:
        row.missing.append(f"{benchmarks.PEERS} nodes")
        return
    row.peers = median(rates.values())
    if share := benchmarks.slow_peers(rates).get(run.job.nodes[0].name):
        row.problems.append(
            f"{100 * (1 - share):.0f} % below the median of the nodes ({significant(row.peers)} {row.unit}/s)"
        )


def _efficiency(run: Run, runs: Sequence[Run]) -> float | None:
    """The rate of one of its GPUs, as a share of that of the run on one GPU."""
    single = next((r.measured for r in runs if (r.model, r.scale) == (run.model, "gpu") and r.measured), None)
    if single is None or run.measured is None or run.scale == "gpu":
        return None
    return run.measured.rate / run.measured.gpus / single.rate


def _key(measured: Measured, run: Run, nodes: Sequence[Node], image: Image) -> str:
    return benchmarks.key(measured, nodes[0].machine, len(run.job.nodes), image.digest)


def _save(
    cluster: Cluster, runs: Sequence[Run], nodes: Sequence[Node], image: Image, baseline: BenchmarkBaseline
) -> None:
    """Record what was reached; of the nodes by themselves, the median."""
    rates: dict[str, list[tuple[float, Run]]] = {}
    for run in runs:
        if run.measured is not None:
            rates.setdefault(_key(run.measured, run, nodes, image), []).append((run.measured.rate, run))
    with cluster.noted("bench"):
        fresh = baselines.load(cluster.paths)
        fresh.rates = {**baseline.rates, **fresh.rates}
        for key, reached in rates.items():
            measured = reached[0][1].measured
            assert measured is not None
            names = [node.name for _, run in reached for node in run.job.nodes]
            fresh.rates[key] = Rate(median(rate for rate, _ in reached), measured.unit, utc_timestamp(), names)
        fresh.save(cluster.paths)
        cluster.share()


def scales_of(texts: Sequence[str]) -> list[Scale]:
    """The scales by name, in their order. Raises GpuprovError for any other name."""
    known: Mapping[str, Scale] = {"gpu": "gpu", "node": "node", "fleet": "fleet"}
    if wrong := [text for text in texts if text not in known]:
        raise GpuprovError(f"--scale {wrong[0]}: not one of {', '.join(known)}")
    return [scale for name, scale in known.items() if name in texts]
