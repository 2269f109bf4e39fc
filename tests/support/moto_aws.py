"""EC2, IAM, S3, FSx and EFS on loopback: moto's server, with what it lacks for the AWS module.

Added to moto 5.2, each marked by the name of what it adds:
- placement groups: CreatePlacementGroup, DescribePlacementGroups, DeletePlacementGroup (InUse)
- Instance Connect endpoints: create, describe, delete
- spot requests of such instances: describe, cancel
- a launch template's interfaces (network cards, EFA), placement group, market, metadata options, profile and tags hold
  for the instances that are made from it
- the description of a security group's rule that names a group
- a launch template's own tags are not its instances', and an instance without user data has none
- IAM's policy simulator, which allows everything
- the architecture and root device of a registered image
- instance types that moto's copy of DescribeInstanceTypes lacks, made up from the catalogue (`SEEDED`)
and every call of Terraform is written down (`Cloud.calls`), as service:Action.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import boto3
from moto.core.responses import ActionResult, BaseResponse
from moto.ec2 import ec2_backends
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.elastic_network_interfaces import Attachment
from moto.ec2.models.instance_types import INSTANCE_TYPES, InstanceType, InstanceTypeBackend
from moto.ec2.models.instances import InstanceBackend
from moto.ec2.models.security_groups import SecurityGroupRule
from moto.ec2.responses import EC2Response
from moto.ec2.utils import convert_tag_spec
from moto.iam.responses import IamResponse
from moto.server import ThreadedMotoServer
from moto.servicequotas.responses import ServiceQuotasResponse
from moto.ssm import ssm_backends
from moto.ssm.models import Parameter

from provisioner import catalog
from provisioner.catalog.models import Machine
from tests.support import moto_s3

REGION = "us-east-1"
ACCOUNT = "123456789012"
UBUNTU = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
SEEDED = ("p3.2xlarge", "p3.8xlarge", "p3.16xlarge", "p6e-gb200.36xlarge")
"""Machines whose description moto lacks: what is said of them here is the catalogue's, and proves nothing about AWS."""

_INTERFACES_A_CARD = 16
_ids = itertools.count(1)


@dataclass
class Cloud:
    """A moto server. `images`: ids of images in REGION, for x86_64, for arm64, and a newer one for x86_64. `calls`:
    region and service:Action."""

    endpoint: str
    images: dict[str, str]
    calls: set[tuple[str, str]]

    def client(self, service: str, region: str = REGION) -> Any:
        """A boto3 client of it."""
        return boto3.client(
            service,
            region_name=region,
            endpoint_url=self.endpoint,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )

    @property
    def environment(self) -> dict[str, str]:
        """Where gpuprov and Terraform find it, and who they are there."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_EC2_METADATA_DISABLED": "true", "CHECKPOINT_DISABLE": "1",
        }  # fmt: skip

    def register(self, region: str) -> dict[str, str]:
        """Register the images in a region. Returns their ids by name."""
        ids = {}
        for name, architecture in (("x86_64", "x86_64"), ("arm64", "arm64"), ("newer", "x86_64")):
            ids[name] = self.client("ec2", region).register_image(
                Name=f"ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-{name}-server-test",
                Architecture=architecture,
                RootDeviceName="/dev/sda1",
                BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8}}],
                VirtualizationType="hvm",
            )["ImageId"]
            registered = ec2_backends[ACCOUNT][region].amis[ids[name]]
            registered.architecture, registered.root_device_name = architecture, "/dev/sda1"
        return ids

    def publish(self, image: str) -> None:
        """A new version of Canonical's public parameter (UBUNTU), which no account may write."""
        known = ssm_backends[ACCOUNT][REGION]._parameters[UBUNTU]
        timestamp, kind = datetime.now(UTC), "aws:ec2:image"
        known.append(Parameter(ACCOUNT, UBUNTU, image, "String", None, None, None, timestamp, len(known) + 1, kind))

    def provider(self, region: str = REGION) -> dict[str, Any]:
        """The provider block that reaches it, as JSON configuration."""
        services = ("ec2", "iam", "s3", "sts", "fsx", "efs")
        return {
            "region": region,
            "access_key": "test",
            "secret_key": "test",
            "max_retries": 2,
            "skip_metadata_api_check": True,
            "s3_use_path_style": True,
            "endpoints": [dict.fromkeys(services, self.endpoint)],
        }


@contextmanager
def serve() -> Iterator[Cloud]:
    """moto's server on a free port of loopback. One in a process: moto's state is the process's."""
    calls: set[tuple[str, str]] = set()
    _extend(calls)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line for every request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    cloud = Cloud(f"http://{host}:{port}", {}, calls)
    for name, value in (("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")):
        os.environ.setdefault(name, value)
    cloud.images |= cloud.register(REGION)
    try:
        yield cloud
    finally:
        server.stop()


def _extend(calls: set[tuple[str, str]]) -> None:
    _write_calls_down(calls)
    moto_s3.as_over_tls()
    for name, method in (
        ("create_placement_group", _create_placement_group),
        ("describe_placement_groups", _describe_placement_groups),
        ("delete_placement_group", _delete_placement_group),
        ("create_instance_connect_endpoint", _create_instance_connect_endpoint),
        ("describe_instance_connect_endpoints", _describe_instance_connect_endpoints),
        ("delete_instance_connect_endpoint", _delete_instance_connect_endpoint),
        ("describe_spot_instance_requests", _describe_spot_instance_requests),
        ("cancel_spot_instance_requests", _cancel_spot_instance_requests),
    ):
        setattr(EC2Response, name, method)
    IamResponse.simulate_principal_policy = _simulate_principal_policy
    ServiceQuotasResponse.list_service_quotas = lambda _: json.dumps({"Quotas": []})
    InstanceBackend.run_instances = _launch(InstanceBackend.run_instances)
    EC2Response.create_launch_template = _own_tags_apart(EC2Response.create_launch_template)
    EC2Response.describe_instance_attribute = _none_is_none(EC2Response.describe_instance_attribute)
    Attachment.__init__ = _with_card(Attachment.__init__)
    SecurityGroupRule.description = property(
        lambda rule: rule.ip_range.get("Description") or rule.source_group.get("Description")
    )
    known = catalog.load()
    for name in SEEDED:
        INSTANCE_TYPES[name] = _described(known.machine(name))
        InstanceTypeBackend.instance_types.append(InstanceType(name))


def _write_calls_down(calls: set[tuple[str, str]]) -> None:
    wrapped = BaseResponse.call_action

    def call_action(response: BaseResponse) -> Any:
        if "Terraform" in response.headers.get("User-Agent", ""):  # not what tests look up themselves
            calls.add((response.region, f"{response.service_name}:{response._get_action()}"))
        return wrapped(response)

    BaseResponse.call_action = call_action


def _simulate_principal_policy(self: Any) -> ActionResult:
    """All is allowed: moto checks no permission either."""
    names = self._get_param("ActionNames", [])
    rows = [{"EvalActionName": name, "EvalResourceName": "*", "EvalDecision": "allowed"} for name in names]
    return ActionResult({"EvaluationResults": rows, "IsTruncated": False})


# Placement groups


def _groups(response: Any) -> dict[str, dict[str, Any]]:
    backend = response.ec2_backend
    if not hasattr(backend, "placement_groups"):
        backend.placement_groups = {}
    return backend.placement_groups


def _create_placement_group(self: Any) -> ActionResult:
    name, groups = self._get_param("GroupName"), _groups(self)
    if name in groups:
        raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"The placement group '{name}' already exists.")
    number = f"pg-{next(_ids):017x}"
    groups[name] = {
        "GroupName": name,
        "GroupId": number,
        "State": "available",
        "Strategy": self._get_param("Strategy"),
        "GroupArn": f"arn:aws:ec2:{self.region}:{ACCOUNT}:placement-group/{name}",
    }
    self.ec2_backend.create_tags([number], self._parse_tag_specification().get("placement-group", {}))
    return ActionResult({"PlacementGroup": _placement_group(self, groups[name])})


def _placement_group(response: Any, group: dict[str, Any]) -> dict[str, Any]:
    tags = response.ec2_backend.describe_tags(filters={"resource-id": [group["GroupId"]]})
    return {**group, "Tags": [{"Key": tag["key"], "Value": tag["value"]} for tag in tags]}


def _describe_placement_groups(self: Any) -> ActionResult:
    names, groups = self._get_param("GroupNames", []), _groups(self)
    for name in names:
        if name not in groups:
            raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    return ActionResult({"PlacementGroups": [_placement_group(self, groups[name]) for name in names or groups]})


def _delete_placement_group(self: Any) -> ActionResult:
    name, groups = self._get_param("GroupName"), _groups(self)
    if name not in groups:
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    alive = [i for i in self.ec2_backend.all_instances() if i.state_code not in (32, 48)]
    if any(instance.placement.group_name == name for instance in alive):
        raise EC2ClientError("InvalidPlacementGroup.InUse", f"The placement group '{name}' is in use.")
    del groups[name]
    return ActionResult({})


# Instance Connect endpoints


def _endpoints(response: Any) -> dict[str, dict[str, Any]]:
    backend = response.ec2_backend
    if not hasattr(backend, "instance_connect_endpoints"):
        backend.instance_connect_endpoints = {}
    return backend.instance_connect_endpoints


def _create_instance_connect_endpoint(self: Any) -> ActionResult:
    subnet = self.ec2_backend.get_subnet(self._get_param("SubnetId"))
    tags = self._parse_tag_specification().get("instance-connect-endpoint", {})
    number = f"eice-{next(_ids):017x}"
    endpoint = {
        "InstanceConnectEndpointId": number,
        "InstanceConnectEndpointArn": f"arn:aws:ec2:{self.region}:{ACCOUNT}:instance-connect-endpoint/{number}",
        "OwnerId": ACCOUNT,
        "State": "create-complete",
        "DnsName": f"{number}.ec2-instance-connect-endpoint.{self.region}.amazonaws.com",
        "FipsDnsName": f"{number}.fips.ec2-instance-connect-endpoint.{self.region}.amazonaws.com",
        "SubnetId": subnet.id,
        "VpcId": subnet.vpc_id,
        "AvailabilityZone": subnet.availability_zone,
        "PreserveClientIp": self._get_param("PreserveClientIp"),
        "SecurityGroupIds": self._get_param("SecurityGroupIds", []),
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
    }
    _endpoints(self)[number] = endpoint
    return ActionResult({"InstanceConnectEndpoint": endpoint})


def _describe_instance_connect_endpoints(self: Any) -> ActionResult:
    known, requested = _endpoints(self), self._get_param("InstanceConnectEndpointIds", [])
    for number in requested:
        if number not in known:
            raise EC2ClientError("InvalidInstanceConnectEndpointId.NotFound", f"{number} does not exist")
    return ActionResult({"InstanceConnectEndpoints": [known[number] for number in requested or known]})


def _delete_instance_connect_endpoint(self: Any) -> ActionResult:
    endpoint = _endpoints(self).pop(self._get_param("InstanceConnectEndpointId"))
    return ActionResult({"InstanceConnectEndpoint": {**endpoint, "State": "delete-complete"}})


# Spot requests


def _describe_spot_instance_requests(self: Any) -> ActionResult:
    requested = self._get_param("SpotInstanceRequestIds", [])
    instances = {
        request: instance
        for instance in self.ec2_backend.all_instances()
        if (request := getattr(instance, "spot_instance_request_id", None)) in requested
    }
    described = [
        {
            "SpotInstanceRequestId": request,
            "InstanceId": instance.id,
            "InstanceInterruptionBehavior": "terminate",
            "State": "active" if instance.state_code == 16 else "closed",
            "Status": {"Code": "fulfilled", "Message": "Your spot request is fulfilled."},
            "Type": "one-time",
        }
        for request, instance in instances.items()
    ]
    return ActionResult({"SpotInstanceRequests": described})


def _cancel_spot_instance_requests(self: Any) -> ActionResult:
    requested = self._get_param("SpotInstanceRequestIds", [])
    cancelled = [{"SpotInstanceRequestId": request, "State": "cancelled"} for request in requested]
    return ActionResult({"CancelledSpotInstanceRequests": cancelled})


# What a launch template says holds for its instances


def _launch(wrapped: Any) -> Any:
    def run_instances(backend: Any, image: str, count: int, user_data: Any, groups: list[str], **kwargs: Any) -> Any:
        if not kwargs.get("launch_template"):
            return wrapped(backend, image, count, user_data, groups, **kwargs)
        data = backend._get_template_from_args(kwargs["launch_template"]).data
        placement = data.get("Placement", {}).get("GroupName", "")
        if placement and placement not in getattr(backend, "placement_groups", {}):
            raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{placement}' is unknown.")
        interfaces = data.get("NetworkInterfaces", [])
        if len(interfaces) > 1 and any("AssociatePublicIpAddress" in nic for nic in interfaces):
            raise EC2ClientError(
                "InvalidParameterCombination",
                "The associatePublicIPAddress parameter cannot be specified when launching with multiple network "
                "interfaces.",
            )
        # moto knows an interface by its device index alone
        places = [(int(nic.get("NetworkCardIndex", 0)), int(nic["DeviceIndex"])) for nic in interfaces]
        kwargs["nics"] = [
            {**nic, "DeviceIndex": card * _INTERFACES_A_CARD + device}
            for nic, (card, device) in zip(interfaces, places, strict=True)
        ]
        kwargs["block_device_mappings"] = data.get("BlockDeviceMappings", [])
        kwargs["metadata_options"] = data.get("MetadataOptions", {})
        kwargs["disable_api_termination"] = data.get("DisableApiTermination", False)
        reservation = wrapped(backend, image, count, user_data, groups, **kwargs)
        tags = convert_tag_spec(data.get("TagSpecifications", []))
        for instance in reservation.instances:
            instance.placement.group_name = placement
            market = data.get("InstanceMarketOptions", {}).get("MarketType")
            instance.lifecycle = market
            if market == "spot":
                instance.spot_instance_request_id = f"sir-{next(_ids):08x}"
            for nic, (card, device) in zip(interfaces, places, strict=True):
                interface = instance.nics[card * _INTERFACES_A_CARD + device]
                interface.network_card_index, interface.device_index = card, device
                interface.interface_type = nic.get("InterfaceType", "interface")
                interface.add_tags(tags.get("network-interface", {}))
            for device_ in instance.block_device_mapping.values():
                backend.create_tags([device_.volume_id], tags.get("volume", {}))
            profile = data.get("IamInstanceProfile", {}).get("Name")
            requested_profile = kwargs.get("iam_instance_profile_name") or kwargs.get("iam_instance_profile_arn")
            if profile and not requested_profile:  # what the request itself names moto associates afterwards
                backend.associate_iam_instance_profile(instance_id=instance.id, iam_instance_profile_name=profile)
        return reservation

    return run_instances


def _own_tags_apart(wrapped: Any) -> Any:
    def create_launch_template(self: Any) -> ActionResult:
        result: ActionResult = wrapped(self)
        data = self.ec2_backend.get_launch_template_by_name(self._get_param("LaunchTemplateName")).versions[0].data
        data["TagSpecifications"] = [
            spec for spec in data.get("TagSpecifications", []) if spec["ResourceType"] != "launch-template"
        ]
        return result

    return create_launch_template


def _none_is_none(wrapped: Any) -> Any:
    def describe_instance_attribute(self: Any) -> ActionResult:
        if self._get_param("Attribute") == "userData":
            instance = self.ec2_backend.get_instance(self._get_param("InstanceId"))
            if not instance.user_data:
                return ActionResult({"InstanceId": instance.id, "UserData": {}})
        described: ActionResult = wrapped(self)
        return described

    return describe_instance_attribute


def _with_card(wrapped: Any) -> Any:
    def init(attachment: Any, interface: Any) -> None:
        wrapped(attachment, interface)
        attachment.network_card_index = getattr(interface, "network_card_index", 0)

    return init


# Instance types that moto has not heard of


def _described(machine: Machine) -> dict[str, Any]:
    network = machine.network
    efas = network.ports if network.kind == "efa" else 0
    return {
        "InstanceType": machine.name,
        "CurrentGeneration": True,
        "SupportedUsageClasses": ["on-demand", "spot"],
        "SupportedRootDeviceTypes": ["ebs"],
        "SupportedVirtualizationTypes": ["hvm"],
        "BareMetal": False,
        "ProcessorInfo": {"SupportedArchitectures": ["arm64" if machine.cpu == "arm64" else "x86_64"]},
        "VCpuInfo": {"DefaultVCpus": machine.vcpus},
        "MemoryInfo": {"SizeInMiB": int(machine.memory_gib * 1024)},
        "InstanceStorageSupported": machine.local_nvme.count > 0,
        "EbsInfo": {"EbsOptimizedSupport": "default", "EncryptionSupport": "supported"},
        "NetworkInfo": {
            "MaximumNetworkCards": network.cards,
            "NetworkCards": [{"NetworkCardIndex": i, "MaximumNetworkInterfaces": 4} for i in range(network.cards)],
            "EfaSupported": efas > 0,
            **({"EfaInfo": {"MaximumEfaInterfaces": efas}} if efas else {}),
        },
        "PlacementGroupInfo": {"SupportedStrategies": ["cluster", "partition", "spread"]},
    }
