"""What the cloud has announced to the node: that it takes the machine away, or works on it."""

from __future__ import annotations

from provisioner.verify.check import check, fail, saw, skip, unknown
from provisioner.verify.checks.unread import end_unread
from provisioner.verify.expectations import INTERRUPTION, Expected
from provisioner.verify.facts import Facts
from provisioner.verify.parsers.interruption import Hook, Interruption

NEEDS = ("interruption.json",)
OTHERWISE = "no machine of this group is taken away by the cloud"


def _watched(expected: Expected) -> bool:
    return INTERRUPTION in (expected.units or ())


def _read_interruption(node: Facts) -> Interruption:
    interruption = node.interruption
    assert interruption is not None  # `needs` saw to it
    if not interruption.told:
        unknown("the node's watcher has written nothing since boot: `systemctl status gpuprov-interruption` says why")
    return interruption


@check(
    "cloud.interruption",
    severity="fatal",
    documented="AWS EC2 guide, Spot Instance interruption notices: two minutes' notice",
    action="replace",
    needs=NEEDS,
    applies=_watched,
    otherwise=OTHERWISE,
    says="The cloud has announced that it takes this spot machine away. When it is gone, `gpuprov up` makes another.",
)
def test_interruption(node: Facts) -> None:
    record = _read_interruption(node)
    notice = record.notice
    saw(expected="no notice", actual=f"{notice.action} at {notice.time}" if notice else "no notice")
    if notice is None:
        return
    at = notice.at
    seconds_left = (
        "" if at is None or node.collected is None or at < node.collected else f", in {at - node.collected:.0f} s"
    )
    fail(f"{notice.action} at {notice.time}{seconds_left}; {_hook_words(record.hook)}; `gpuprov up` restores the count")


def _hook_words(hook: Hook | None) -> str:
    if hook is None:
        return "no hook was run"
    if hook.state == "running":
        return "hooks.interrupted runs"
    if hook.result == "success":
        return "hooks.interrupted ended well"
    how = f"exit status {hook.status}" if hook.status is not None else hook.result or "unknown"
    last = f"; last line of its output: {hook.output[-1]}" if hook.output else ""
    return f"hooks.interrupted failed, {how}{last}"


@check(
    "cloud.metadata",
    severity="warn",
    action="reconfigure",
    needs=NEEDS,
    # In the sandbox there is no such service.
    applies=lambda e: _watched(e) and not e.simulated,
    otherwise=OTHERWISE,
    says="The machine's metadata service does not answer: the node would not hear that the cloud takes it away.",
)
def test_metadata(node: Facts, expected: Expected) -> None:
    interruption, maximum = _read_interruption(node), expected.most["cloud.silence"]
    if interruption.silent_since is None:
        saw(expected="answers", actual="answers")
        return
    if node.collected is None:
        unknown("the node's clock was not read")
    silent = node.collected - interruption.silent_since
    saw(expected=f"silent for {maximum:g} s at most", actual=f"silent for {silent:.0f} s")
    if silent > maximum:
        fail(f"no answer for {silent:.0f} s: {interruption.silent or 'no reason reported'}")


def _answered(node: Facts, expected: Expected) -> None:
    """A machine of the type that is not in that cloud, or a bundle made by hand, has no such answer."""
    if node.source("maintenance.json").state != "read":
        reason = "no lock says that this machine is in its type's cloud, and its metadata service does not answer"
        any_state = ("absent", "missing", "hung", "unreadable")
        end_unread(node, "maintenance.json", skips=reason if expected.packages is None else None, states=any_state)


@check(
    "cloud.metadata_token",
    severity="warn",
    action="reconfigure",
    reads=("maintenance.json",),
    applies=lambda e: e.maintenance is not None and e.maintenance.get("token") and not e.simulated,
    otherwise="its provider's metadata service has no tokens or no scheduled events",
    lock="only it says that the machine is in that cloud",
    without_lock="a service that answers without a token",
    says="The metadata service answers without a token: a program that can be made to fetch an address reads the "
    "machine's credentials. Terraform makes machines that want one; set http-tokens back to required.",
)
def test_token(node: Facts, expected: Expected) -> None:
    _answered(node, expected)
    status = node.metadata_openly
    if status is None:
        skip("an older probe, which did not ask without a token")
    saw(expected="HTTP 401", actual=f"HTTP {status}")
    if status < 400 or status == 404:
        fail(f"HTTP {status} without a token")


@check(
    "cloud.maintenance",
    severity="warn",
    action="replace",
    reads=("maintenance.json",),
    follows=("cloud.interruption",),
    applies=lambda e: e.maintenance is not None and not e.simulated,
    otherwise="its provider lists no scheduled events that gpuprov can ask for",
    lock="only it says that the machine is in that cloud",
    without_lock="what the metadata service lists, where it answers",
    says="The cloud has scheduled a reboot, a move or the end of this machine. Drain it before, or replace it now.",
)
def test_maintenance(node: Facts, expected: Expected) -> None:
    assert expected.maintenance is not None
    _answered(node, expected)
    harmless = tuple(expected.maintenance.get("harmless", ()))
    coming = [e for e in node.maintenance or () if e.kind not in harmless]
    descriptions = [f"{e.kind} {f'from {e.time} on' if e.time else 'has begun'}" for e in coming]
    saw(expected="no scheduled event", actual=descriptions or [e.kind for e in node.maintenance or ()] or "none")
    if coming:
        fail("; ".join(descriptions[:4]))
