"""A fleet at several sites: one that fails is left out at its stage, the others are made and proven."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from provisioner.common.errors import ConfigureError, Exit, GpuprovError, ProviderError
from provisioner.common.events import Event, Events
from provisioner.common.preflight import Finding
from provisioner.lifecycle import down
from provisioner.lifecycle.session import Cluster, open_cluster
from provisioner.lifecycle.sites import Remaining, chosen, each, together
from provisioner.lifecycle.up import Run, up
from provisioner.stack.models import Lock
from provisioner.transport import process
from tests.unit.lifecycle.test_up import STACK, World, stages, world

__all__ = ["world"]

FILE = """
name: vision
sites:
  virginia: {provider: aws, region: us-east-1}
  shanghai: {provider: alicloud, region: cn-shanghai}
  unused: {provider: azure, region: eastus}
groups:
  train: {machine: p4d.24xlarge, count: 2, site: virginia}
  infer: {machine: ecs.gn7-c13g1.26xlarge, count: 1, site: shanghai}
"""
ALL = ["train-0", "train-1", "infer-0"]


@pytest.fixture
def cluster(tmp_path: Path, world: World) -> Cluster:
    world.lock = Lock(request={}, simulated=True, groups={"train": STACK, "infer": STACK})
    (tmp_path / "cluster.yaml").write_text(FILE)
    return open_cluster(tmp_path / "cluster.yaml", sandbox=True, events=Events())


def run_up(cluster: Cluster, *only: str) -> Run:
    return up(cluster, None, confirm=lambda *_: True, only=only)  # type: ignore[arg-type]


def test_all_sites_are_made_in_one_run(cluster: Cluster, world: World) -> None:
    run = run_up(cluster)
    assert (run.exit, run.failed) == (Exit.OK, {})
    assert stages(cluster) == dict.fromkeys(ALL, ("verified", True))


@pytest.mark.parametrize("broken", ["preflight", "plan", "apply", "ssh", "roles"])
def test_a_site_that_fails_does_not_take_the_others_down(cluster: Cluster, world: World, broken: str) -> None:
    events: list[Event] = []
    cluster.events.subscribe(events.append)
    if broken == "preflight":
        world.findings["shanghai"] = [Finding("blocks", "quota", "none", "ask for it")]
    if broken == "plan":
        world.broken = {"shanghai"}
    if broken == "apply":
        world.without = {"infer-0"}
    if broken == "ssh":
        world.silent = {"infer-0"}
    if broken == "roles":
        world.unreachable = {"infer-0"}
    run = run_up(cluster)
    assert list(run.failed) == ["shanghai"]
    assert run.exit == (Exit.CONFIGURE_FAILED if broken == "roles" else Exit.PROVIDER_FAILED)
    assert run.healthy and run.report is not None
    assert [node.name for node in run.report.nodes] == ["train-0", "train-1"]
    messages = [event.message for event in events if "site shanghai is left out, virginia goes on" in event.message]
    assert len(messages) == 1 and messages[0].count("\n") <= 1, "the cause and the hint; details are told at the end"
    assert "infer-0" in down.recorded_nodes(cluster) or broken in ("preflight", "plan")
    world.findings, world.broken, world.without, world.silent, world.unreachable = {}, set(), set(), set(), set()
    assert run_up(cluster).exit == Exit.OK
    assert stages(cluster) == dict.fromkeys(ALL, ("verified", True))


def test_where_all_sites_fail_the_run_does_with_all_that_was_said(cluster: Cluster, world: World) -> None:
    world.broken = {"shanghai", "virginia"}
    with pytest.raises(ProviderError) as caught:
        run_up(cluster)
    assert "site virginia: no Terraform at virginia\n  site shanghai: no Terraform at shanghai" in str(caught.value)


def test_what_concerns_the_whole_fleet_stops_all_sites(cluster: Cluster, world: World) -> None:
    world.findings[""] = [Finding("blocks", "state", "the bucket is public", "")]
    with pytest.raises(ProviderError, match="the bucket is public"):
        run_up(cluster)
    assert world.machines == {}


def test_one_site_alone_leaves_the_others_as_they_are(cluster: Cluster, world: World) -> None:
    run = run_up(cluster, "shanghai")
    assert list(world.machines) == ["infer-0"] and run.exit == Exit.OK
    assert down.recorded_nodes(cluster) == ["infer-0"], "nothing of the other site was about to be made"
    run_up(cluster, "virginia")
    assert [node.name for node in cluster.nodes()] == ["infer-0", "train-0", "train-1"]
    assert world.count == 3, "no machine was made twice"
    assert down.recorded_nodes(cluster) == sorted(ALL)


def test_a_site_that_is_not_there_is_named(cluster: Cluster) -> None:
    with pytest.raises(GpuprovError, match=r"cluster\.yaml: there is no site tokyo\n") as caught:
        chosen(cluster, ["tokyo"])
    assert caught.value.hint == "--site takes one of shanghai, virginia"
    with pytest.raises(GpuprovError, match="there is no site shanghia") as caught:
        chosen(cluster, ["shanghia"])
    assert caught.value.hint == "did you mean shanghai?"
    with pytest.raises(GpuprovError, match="no group is at site unused"):
        chosen(cluster, ["unused"])
    assert chosen(cluster, []) == ["virginia", "shanghai"]


def test_an_error_of_several_sites_has_the_code_of_the_first() -> None:
    error = together({"a": ConfigureError("roles", hint="one"), "b": ProviderError("quota", hint="two")})
    assert (error.exit_code, error.hint) == (Exit.CONFIGURE_FAILED, "one; two")
    alone = ProviderError("quota")
    assert together({"a": alone}) is alone


def test_sites_are_called_side_by_side() -> None:
    both = threading.Barrier(2, timeout=20)

    def call(site: str) -> str:
        both.wait()
        if site == "b":
            raise ProviderError("no")
        return site.upper()

    done, failed = each(["a", "b"], call)
    assert done == {"a": "A"} and list(failed) == ["b"]


@pytest.mark.parametrize("error", [ValueError("half an answer"), OSError(28, "No space left on device")])
def test_what_one_site_can_not_read_or_write_does_not_lose_what_the_others_made(error: Exception) -> None:
    def call(site: str) -> str:
        if site == "b":
            raise error
        return site

    done, failed = each(["a", "b"], call)
    assert done == {"a": "a"} and isinstance(failed["b"], ProviderError)


def test_ctrl_c_is_heard_while_another_thread_forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_end_requested", threading.Event())
    monkeypatch.setattr(process, "_forking", {threading.get_ident() + 1})
    with pytest.raises(KeyboardInterrupt):
        process.interrupt()
    monkeypatch.setattr(process, "_forking", {threading.get_ident()})
    process.interrupt()
    assert process.interrupted()


def test_a_provider_that_can_not_be_asked_blocks_its_own_site_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    from provisioner.lifecycle import preflight
    from provisioner.plan.models import build_plan

    monkeypatch.undo()  # the real preflight
    lock = Lock(request={}, simulated=True, groups={"train": STACK, "infer": STACK})

    def fail(*_: Any) -> Any:
        raise GpuprovError("the SDK is missing", hint="in gpuprov's checkout: pip install '.[alicloud]'")

    cluster.providers.at("shanghai").preflight = fail  # type: ignore[method-assign]
    cluster.providers.at("virginia").preflight = lambda *_: []  # type: ignore[method-assign]
    errors = preflight.blocked(preflight.look(cluster, build_plan(cluster.spec, lock), Events()))
    assert (
        list(errors) == ["shanghai"] and errors["shanghai"].hint == "in gpuprov's checkout: pip install '.[alicloud]'"
    )


def test_a_defect_in_a_thread_is_not_an_error_of_a_site() -> None:
    def call(site: str) -> None:
        raise AssertionError(site)

    with pytest.raises(AssertionError):
        each(["a", "b"], call)


CHILD = """
import signal, sys, time
def end(*_):
    open(sys.argv[1], "w").write("written"); sys.exit(1)
signal.signal(signal.SIGINT, end)
print("ready", flush=True)
time.sleep(60)
"""


def test_ctrl_c_reaches_the_children_of_all_threads_and_waits_for_them(tmp_path: Path) -> None:
    ready, stopped = threading.Semaphore(0), []

    def follow(name: str) -> Any:
        return process.follow(
            [sys.executable, "-c", CHILD, str(tmp_path / name)], lambda _: ready.release(), cwd=tmp_path, grace_s=20,
            stopping=lambda: stopped.append(name),
        )  # fmt: skip

    def interrupt() -> None:
        ready.acquire(timeout=20)
        ready.acquire(timeout=20)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        process.side_by_side([lambda: follow("a"), lambda: follow("b")], grace_s=20)
    assert sorted(stopped) == ["a", "b"]
    assert [(tmp_path / name).read_text() for name in ("a", "b")] == ["written", "written"], "each could finish"
    assert time.monotonic() - began < 50


def test_what_is_left_out_is_not_asked_again(cluster: Cluster, world: World) -> None:
    from provisioner.plan.models import build_plan

    remaining = Remaining(build_plan(cluster.spec, world.lock), Events())
    remaining.leave({"shanghai": ProviderError("x")}, "preflight")
    assert remaining.plan.sites() == ["virginia"]
    assert json.dumps(list(remaining.failed)) == '["shanghai"]'


def test_sites_that_are_planned_side_by_side_share_one_key_and_one_identity(cluster: Cluster) -> None:
    from provisioner.lifecycle import machines

    start = threading.Barrier(4, timeout=20)

    def call(_: str) -> tuple[str, str]:
        start.wait()
        return machines._key(cluster), machines._identity(cluster)

    done, failed = each(list("abcd"), call)
    assert (len(set(done.values())), failed) == (1, {})
