"""Whether these credentials may do what `up` and `down` do, asked before anything is spent.

Two questions that change nothing: IAM's policy simulator for every action, and EC2's dry run of RunInstances for every
group. The simulator knows neither what a resource will be nor every condition, so that its no is a warning; the dry run
is EC2's own answer, and its no blocks.
https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from provisioner import yaml_text
from provisioner.errors import Diagnostic
from provisioner.plan import PlannedGroup
from provisioner.preflight import Finding
from provisioner.providers.aws import errors
from provisioner.providers.aws.client import Region
from provisioner.providers.aws.findings import unknown
from provisioner.providers.capacity import Way
from provisioner.providers.trouble import Trouble
from provisioner.text import few

TAG = "aws:ResourceTag/gpuprov-cluster"
WOULD = "DryRunOperation"
"""EC2's word for: it would have been done."""
POLICY = "docs/aws.md has the policy"
MOST = 6
"""Actions that are told one by one."""


@cache
def actions() -> Mapping[str, tuple[str, ...]]:
    """actions.yaml: what asks for them → names of actions."""
    text = files("provisioner.providers.aws").joinpath("actions.yaml").read_text(encoding="utf-8")
    return {key: tuple(names) for key, names in yaml_text.load(text).items()}


def wanted(*, own_vpc: bool, public: bool, instance_connect: bool, efs: bool = False, fsx: bool = False) -> list[str]:
    """What `up` calls, with what cluster.yaml asks for."""
    asks = {
        "always": True, "own_vpc": own_vpc, "public": public, "instance_connect": instance_connect, "efs": efs,
        "fsx": fsx,
    }  # fmt: skip
    return [name for key, asked in asks.items() if asked for name in actions()[key]]


def simulated(region: Region, cluster: str, names: Sequence[str]) -> list[Finding]:
    """What IAM's simulator says of these actions, and of those that remove what has the cluster's tag."""
    try:
        principal = _principal(region)
        if principal is None:
            return []
        tag = {"ContextKeyName": TAG, "ContextKeyType": "string", "ContextKeyValues": [cluster]}
        refused = _refused(region, principal, names, []) + _refused(region, principal, actions()["remove"], [tag])
    except Trouble as trouble:
        return [unknown("permissions", trouble, "iam:SimulatePrincipalPolicy and iam:GetRole")]
    if refused:
        told = few(refused, MOST, ",")
        said = f"IAM's simulator says that these credentials may not {told}"
        return [Finding("warning", "permissions", said, POLICY)]
    return [Finding("ok", "permissions", f"{len(names) + len(actions()['remove'])} actions, by IAM's simulator")]


def _principal(region: Region) -> str | None:
    """The ARN whose policies count: of a session its role's. None for the account's root, whom no policy binds."""
    arn = str(region.ask("sts", "get_caller_identity")["Arn"])
    if arn.endswith(":root"):
        return None
    if ":assumed-role/" in arn:  # it has no path there, and the role may have one
        return str(region.ask("iam", "get_role", RoleName=arn.split("/")[1])["Role"]["Arn"])
    return arn


def _refused(region: Region, principal: str, names: Sequence[str], context: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = region.all(
        "iam", "simulate_principal_policy", "EvaluationResults", PolicySourceArn=principal, ActionNames=list(names),
        ContextEntries=list(context),
    )  # fmt: skip
    decided = {row["EvalActionName"]: row["EvalDecision"] for row in rows}
    return [name for name in names if decided.get(name) != "allowed"]


def tried(
    region: Region, groups: Sequence[PlannedGroup], images: Mapping[str, str | None], subnet: str | None
) -> Iterator[Finding]:
    """EC2's dry run of one machine of each group. `images`: group → id; `subnet`: one of cluster.yaml's, where it names
    any: without it EC2 tries in the account's default VPC."""
    for group in groups:
        image = images.get(group.name)
        if image is None:
            continue
        market = {"InstanceMarketOptions": {"MarketType": "spot"}} if group.spec.capacity.kind == "spot" else {}
        place = {"SubnetId": subnet} if subnet else {}
        try:
            region.ask(
                "ec2", "run_instances", DryRun=True, MinCount=1, MaxCount=1, ImageId=image,
                InstanceType=group.machine.name, **market, **place,
            )  # fmt: skip
        except Trouble as trouble:
            yield _said(region, group, image, trouble)
        else:
            raise AssertionError("a dry run has no other answer than an error")


def _said(region: Region, group: PlannedGroup, image: str, trouble: Trouble) -> Finding:
    """What a dry run has answered, by the class of its error (errors.yaml)."""
    subject = f"group {group.name}"
    if trouble.code == WOULD:
        return Finding("ok", subject, "EC2 would start a machine (dry run)")
    if trouble.code in ("VPCIdNotSpecified", "MissingInput"):
        return Finding("unknown", subject, "EC2 has no default VPC to try RunInstances in", "nothing has to be done")
    way = Way(group.spec.capacity.kind, "")
    said = Diagnostic(f"api error {trouble.code}: {trouble.message}" if trouble.code else trouble.message)
    error = errors.read(said, region.name, group, way, errors.decoder(region))
    if error.kind == "image":
        said_ = f"the lock's image {image} is not available: {error.text}"
        return Finding("blocks", subject, said_, error.hint)
    if error.kind in ("denied", "terms", "credentials"):
        return Finding("blocks", subject, f"EC2 would start no machine: {error.text}", error.hint)
    if error.kind in ("spot-refused", "quota"):
        other = bool(group.spec.capacity.fallback)
        status: Literal["warning", "blocks"] = "warning" if other else "blocks"
        return Finding(status, subject, f"EC2 would start no {way.kind} machine: {error.text}", error.hint)
    return unknown(subject, trouble, "ec2:RunInstances")
