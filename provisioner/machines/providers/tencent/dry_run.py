"""RunInstances without making anything: Tencent Cloud's own answer to whether it would start these machines.

It looks at permissions, the request, the account, quotas and stock, and costs nothing.
https://cloud.tencent.com/document/api/213/15730 (DryRun)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from provisioner.common.errors import Diagnostic
from provisioner.common.preflight import Finding
from provisioner.machines.providers.capacity import LATER, Way
from provisioner.machines.providers.cloud_errors import CloudError
from provisioner.machines.providers.tencent import errors, stock
from provisioner.machines.providers.tencent.client import Region
from provisioner.machines.providers.tencent.findings import unknown
from provisioner.machines.providers.tencent.site import TencentSite
from provisioner.machines.providers.trouble import Trouble
from provisioner.plan.models import PlannedGroup

MOST = 100
"""Machines of one call: InstanceCount goes to 500, and to 100 where the account has not asked for more (unverified)."""

NO_NETWORK = (
    "MissingParameter", "UnsupportedOperation.NoVpcNetwork", "InvalidParameterValue.BasicNetworkInstanceFamily",
    "InvalidParameterValue.VpcId", "InvalidParameterValue.Subnet", "InvalidParameterValue.MustDhcpEnabledVpc",
)  # fmt: skip
"""Beginnings of codes that say nothing of the machines where the VPC is still to be made: it is tried without one."""


def request(site: TencentSite, group: PlannedGroup, image: str, option: Way, number: int) -> dict[str, Any]:
    """RunInstances for that many machines of a group, as the module would ask for one."""
    disk: dict[str, Any] = {
        "DiskType": site.disk.type,
        "DiskSize": group.spec.storage.root_gb,
        "Encrypt": site.disk.encrypt,
    }
    if site.disk.kms_key:
        disk["KmsKeyId"] = site.disk.kms_key
    arguments: dict[str, Any] = {
        "DryRun": True, "InstanceCount": min(number, MOST), "InstanceType": group.machine.name, "ImageId": image,
        "Placement": {"Zone": option.zone}, "InstanceChargeType": stock.CHARGE[option.kind], "SystemDisk": disk,
    }  # fmt: skip
    if option.kind == "spot" and site.spot_max_price:
        options = {"MaxPrice": f"{site.spot_max_price:g}", "SpotInstanceType": "one-time"}
        arguments["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": options}
    if site.vpc is not None and option.zone in site.vpc.subnets:
        arguments["VirtualPrivateCloud"] = {"VpcId": site.vpc.id, "SubnetId": site.vpc.subnets[option.zone]}
    if site.role:
        arguments["CamRoleName"] = site.role
    return arguments


def ask(
    region: Region, site: TencentSite, group: PlannedGroup, image: str, option: Way, number: int
) -> CloudError | None:
    """Why Tencent Cloud would not start that many machines in this way; None where it would. Raises Trouble where that
    could not be asked."""
    try:
        region.ask("cvm", "RunInstances", **request(site, group, image, option, number))
    except Trouble as error:
        if not error.code or error.kind in ("silent", "settings", "throttled"):
            raise
        if site.vpc is None and error.code.startswith(NO_NETWORK):
            reason = f"it cannot be tried before there is a VPC ({error.message})"
            raise Trouble("refused", reason, error.code) from None
        diagnostic = Diagnostic(f"[TencentCloudSDKError] Code={error.code}, Message={error.message}")
        return errors.read(diagnostic, region.name, group, option, international=region.international)
    return None


def ask_in_turn(
    region: Region, site: TencentSite, group: PlannedGroup, image: str, number: int, zones: Sequence[str]
) -> tuple[Way | None, list[Finding]]:
    """The way in which that many machines can be had now, None where none was found to; and what is to be said of
    it."""
    subject, machines, findings = f"group {group.name}", f"{number} × {group.machine.name}", list[Finding]()
    for kind in dict.fromkeys((group.spec.capacity.kind, *group.spec.capacity.fallback)):
        for zone in zones:
            option = Way(kind, zone)
            try:
                error = ask(region, site, group, image, option, number)
            except Trouble as api_error:
                return None, [*findings, unknown(subject, api_error, "cvm:RunInstances")]
            if error is None:
                tried = min(number, MOST)
                message = (
                    f"Tencent Cloud would start {tried} × {group.machine.name} as {option} at this moment (dry run)"
                )
                return option, [*findings, Finding("ok", subject, message)]
            if error.then == "stop":
                return None, [
                    *findings,
                    Finding("blocks", subject, f"{machines}, {option}: {error.summary}", error.hint),
                ]
            findings.append(Finding("warning", subject, f"{machines}, {option}: {error.summary}", error.hint))
            if error.then == "kind":
                break
    message = f"Tencent Cloud has not {machines} in {', '.join(zones)} now"
    return None, [*findings, Finding("blocks", subject, message, LATER, no_capacity=True)]
