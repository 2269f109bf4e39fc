"""Whether these credentials may do what `up` and `down` do, asked before anything is spent.

Two questions that change nothing: IAM's policy simulator for every action of actions.yaml, and EC2's dry run of
RunInstances for every group. The simulator knows neither what a resource will be nor every condition, so that its no
is a warning; the dry run is EC2's own answer, and its no blocks.
https://docs.aws.amazon.com/IAM/latest/APIReference/API_SimulatePrincipalPolicy.html
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from provisioner.common.errors import Diagnostic
from provisioner.common.preflight import Finding
from provisioner.common.text import few
from provisioner.machines.providers import actions
from provisioner.machines.providers.aws import errors
from provisioner.machines.providers.aws.client import Region
from provisioner.machines.providers.aws.findings import unknown
from provisioner.machines.providers.aws.site import AwsSite
from provisioner.machines.providers.capacity import Way
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import PlannedGroup

TAG = "aws:ResourceTag/gpuprov-cluster"
TAGGED = {"Null": {TAG: "false"}}
"""The condition of what policies allow on what has the tag (actions.yaml)."""
WOULD = "DryRunOperation"
"""EC2's word for: it would have been done."""
POLICY = "`gpuprov docs aws permissions` has the policy"
MOST = 6
"""Actions that are told one by one."""


def required(site: AwsSite) -> frozenset[str]:
    """What `up` and `down` call for the resources that cluster.yaml asks for, where the simulator can decide it: of
    roles by their name it knows nothing as long as there is none."""
    features = {
        "own_vpc": site.vpc is None, "nat": site.vpc is None and site.internet == "nat",
        "public": site.internet == "public", "instance_connect": site.connect == "instance-connect",
        "efs": site.storage.efs is not None, "fsx": site.storage.fsx is not None,
    }  # fmt: skip
    table = actions.load("aws")
    by_name = {name for row in table.statements if row.resource != ("*",) for name in row.actions}
    present = table.with_features(name for name, enabled in features.items() if enabled)
    return table.of_resources(present) - by_name


def simulated(region: Region, cluster: str, names: Collection[str]) -> list[Finding]:
    """What IAM's simulator says of these actions. Those that policies allow on what has the cluster's tag get it."""
    rows = [row for row in actions.load("aws").statements if row.condition == TAGGED and not row.policies]
    tagged = {name for row in rows for name in row.actions}
    try:
        principal = _principal(region)
        if principal is None:
            return []
        tag = {"ContextKeyName": TAG, "ContextKeyType": "string", "ContextKeyValues": [cluster]}
        refused = _refused(region, principal, sorted(set(names) - tagged), [])
        refused += _refused(region, principal, sorted(tagged.intersection(names)), [tag])
    except Trouble as error:
        return [unknown("permissions", error, "iam:SimulatePrincipalPolicy and iam:GetRole")]
    if refused:
        listed = few(sorted(refused), MOST, ",")
        message = f"IAM's simulator says that these credentials may not {listed}"
        return [Finding("warning", "permissions", message, POLICY)]
    return [Finding("ok", "permissions", f"{len(names)} actions, by IAM's simulator")]


def _principal(region: Region) -> str | None:
    """The ARN whose policies count: of a session its role's. None for the account's root, whom no policy binds."""
    arn = str(region.ask("sts", "get_caller_identity")["Arn"])
    if arn.endswith(":root"):
        return None
    if ":assumed-role/" in arn:  # it has no path there, and the role may have one
        return str(region.ask("iam", "get_role", RoleName=arn.split("/")[1])["Role"]["Arn"])
    return arn


def _refused(region: Region, principal: str, names: Sequence[str], context: Sequence[Mapping[str, Any]]) -> list[str]:
    if not names:
        return []
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
        network = {"SubnetId": subnet} if subnet else {}
        try:
            region.ask(
                "ec2", "run_instances", DryRun=True, MinCount=1, MaxCount=1, ImageId=image,
                InstanceType=group.machine.name, **market, **network,
            )  # fmt: skip
        except Trouble as error:
            yield _dry_run_finding(region, group, image, error)
        else:
            raise AssertionError("a dry run has no other answer than an error")


def _dry_run_finding(region: Region, group: PlannedGroup, image: str, api_error: Trouble) -> Finding:
    """What a dry run has answered, by the class of its error (errors.yaml)."""
    subject = f"group {group.name}"
    if api_error.code == WOULD:
        return Finding("ok", subject, "EC2 would start a machine (dry run)")
    if api_error.code in ("VPCIdNotSpecified", "MissingInput"):
        return Finding("unknown", subject, "EC2 has no default VPC to try RunInstances in", "nothing has to be done")
    option = Way(group.spec.capacity.kind, "")
    diagnostic = Diagnostic(f"api error {api_error.code}: {api_error.message}" if api_error.code else api_error.message)
    error = errors.read(diagnostic, region.name, group, option, errors.decoder(region))
    if error.kind == "image":
        message = f"the lock's image {image} is not available: {error.text}"
        return Finding("blocks", subject, message, error.hint)
    if error.kind in ("denied", "terms", "credentials"):
        return Finding("blocks", subject, f"EC2 would start no machine: {error.text}", error.hint)
    if error.kind in ("spot-refused", "quota"):
        other = bool(group.spec.capacity.fallback)
        status: Literal["warning", "blocks"] = "warning" if other else "blocks"
        return Finding(status, subject, f"EC2 would start no {option.kind} machine: {error.text}", error.hint)
    return unknown(subject, api_error, "ec2:RunInstances")
