"""The plugin protocol (version 6) for a Cloud.

Terraform starts no process for it: TF_REATTACH_PROVIDERS tells where it listens
(https://developer.hashicorp.com/terraform/plugin/debugging), a socket that only this user may open. Terraform then
installs no provider of that source and writes none into its lock file.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from typing import Any

# Terraform is started from this process: gRPC's own handlers of fork() have nothing to do in a child that becomes it.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import grpc
from tf.gen import tfplugin_pb2 as pb
from tf.gen import tfplugin_pb2_grpc as rpc

from tests.support.schema_provider.cloud import Cloud, schema
from tests.support.schema_provider.values import UNKNOWN, Unknown, decode, encode, mapped

NESTING = {"single": 1, "list": 2, "set": 3, "map": 4, "group": 5}
"""Schema.NestedBlock.NestingMode of tfplugin6.proto."""


@contextmanager
def serving(*clouds: Cloud) -> Iterator[dict[str, str]]:
    """What Terraform's environment has while these clouds answer."""
    with tempfile.TemporaryDirectory(prefix="gpuprov-cloud-") as folder:
        servers, known = [], {}
        for cloud in clouds:
            address = f"{folder}/{cloud.name}.sock"
            server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
            rpc.add_ProviderServicer_to_server(Answers(cloud), server)
            server.add_insecure_port(f"unix:{address}")
            server.start()
            servers.append(server)
            known[f"registry.terraform.io/{schema(cloud.name)[0]}"] = {
                "Protocol": "grpc", "ProtocolVersion": 6, "Pid": os.getpid(), "Test": True,
                "Addr": {"Network": "unix", "String": address},
            }  # fmt: skip
        try:
            # Nothing of this machine's own configuration, and no question to the network.
            yield {
                "TF_REATTACH_PROVIDERS": json.dumps(known), "TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1",
            }  # fmt: skip
        finally:
            for server in servers:
                server.stop(grace=None).wait()


class Answers(rpc.ProviderServicer):
    """What Terraform asks of a provider. Names and shapes are tfplugin6.proto's."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._schema = schema(cloud.name)[1]

    def GetProviderSchema(self, request: Any, context: Any) -> Any:
        document = self._schema
        return pb.GetProviderSchema.Response(
            provider=_proto(document["provider"]),
            resource_schemas={name: _proto(table) for name, table in document["resource_schemas"].items()},
            data_source_schemas={name: _proto(table) for name, table in document["data_source_schemas"].items()},
            server_capabilities=pb.ServerCapabilities(plan_destroy=False),
        )

    def ValidateProviderConfig(self, request: Any, context: Any) -> Any:
        return pb.ValidateProviderConfig.Response()

    def ConfigureProvider(self, request: Any, context: Any) -> Any:
        return pb.ConfigureProvider.Response()

    def StopProvider(self, request: Any, context: Any) -> Any:
        return pb.StopProvider.Response()

    def ValidateDataResourceConfig(self, request: Any, context: Any) -> Any:
        return pb.ValidateDataResourceConfig.Response()

    def ValidateResourceConfig(self, request: Any, context: Any) -> Any:
        config, rules = decode(request.config.msgpack), self._cloud.rules(request.type_name)
        wrong = [
            f'"{first}": conflicts with {second}'
            for first, second in rules.get("conflicts", [])
            if _certain(config, first) and _certain(config, second)
        ]
        wrong += [
            f'"{first}": all of `{first},{second}` must be specified'
            for first, second in rules.get("required_with", [])
            if _certain(config, first) and not _is_configured(config, second)
        ]
        for path, values in rules.get("one_of", {}).items():
            wrong += [
                f"expected {path} to be one of {json.dumps(values)}, got {value}"
                for value in _at(config, path)
                if value is not None and not isinstance(value, Unknown) and value not in values
            ]
        return pb.ValidateResourceConfig.Response(diagnostics=[_error(message) for message in wrong])

    def UpgradeResourceState(self, request: Any, context: Any) -> Any:
        return pb.UpgradeResourceState.Response(upgraded_state=_packed(json.loads(request.raw_state.json)))

    def PlanResourceChange(self, request: Any, context: Any) -> Any:
        kind, prior, desired = (
            request.type_name,
            decode(request.prior_state.msgpack),
            decode(request.proposed_new_state.msgpack),
        )
        if desired is None:
            return pb.PlanResourceChange.Response(planned_state=_packed(None))
        replacing, config = self._replacing_paths(kind, prior, desired), decode(request.config.msgpack)

        def leaf(path: str, attribute: Mapping[str, Any], value: Any) -> Any:
            if not attribute.get("computed"):
                return value
            # What the configuration does not say is the cloud's to tell: kept while the resource stands.
            return UNKNOWN if value is None or (replacing and not _is_configured(config, path)) else value

        planned = mapped(self._schema["resource_schemas"][kind]["block"], desired, leaf)
        return pb.PlanResourceChange.Response(
            planned_state=_packed(planned),
            requires_replace=[
                pb.AttributePath(steps=[pb.AttributePath.Step(attribute_name=path.split(".")[0])]) for path in replacing
            ],
        )

    def _replacing_paths(self, kind: str, prior: Any, desired: Any) -> list[str]:
        """The attributes whose change makes a new resource."""
        if prior is None:
            return []
        rules = self._cloud.rules(kind).get("force_new", [])
        return [path for path in rules if _at(prior, path) != _at(desired, path)]

    def ApplyResourceChange(self, request: Any, context: Any) -> Any:
        kind, prior, planned = (
            request.type_name,
            decode(request.prior_state.msgpack),
            decode(request.planned_state.msgpack),
        )
        if planned is None:
            wrong = self._cloud.delete(kind, prior["id"])
            new = prior if wrong else None
        elif prior is None:
            new, wrong = self._cloud.create(kind, planned)
        else:
            new, wrong = self._cloud.update(kind, planned)
            new = new or prior
        return pb.ApplyResourceChange.Response(new_state=_packed(new), diagnostics=[_error(wrong)] if wrong else [])

    def ReadResource(self, request: Any, context: Any) -> Any:
        state = decode(request.current_state.msgpack)
        resource, wrong = self._cloud.read(request.type_name, state["id"])
        return pb.ReadResource.Response(
            new_state=_packed(state if wrong else resource), diagnostics=[_error(wrong)] if wrong else []
        )

    def ImportResourceState(self, request: Any, context: Any) -> Any:
        resource, wrong = self._cloud.read(request.type_name, request.id)
        if resource is None:
            wrong = wrong or f"Cannot import non-existent remote object: {request.type_name} {request.id}"
            return pb.ImportResourceState.Response(diagnostics=[_error(wrong)])
        imported = pb.ImportResourceState.ImportedResource(type_name=request.type_name, state=_packed(resource))
        return pb.ImportResourceState.Response(imported_resources=[imported])

    def ReadDataSource(self, request: Any, context: Any) -> Any:
        result, wrong = self._cloud.data(request.type_name, decode(request.config.msgpack))
        return pb.ReadDataSource.Response(state=_packed(result), diagnostics=[_error(wrong)] if wrong else [])


def _packed(value: Any) -> Any:
    return pb.DynamicValue(msgpack=encode(value))


def _error(text: str) -> Any:
    return pb.Diagnostic(severity=pb.Diagnostic.ERROR, summary=text)


def _at(value: Any, path: str) -> list[Any]:
    """Every value at a path such as os_disk.caching, through all blocks of a list."""
    values = [value]
    for name in path.split("."):
        inner_values = [item.get(name) for item in values if isinstance(item, dict)]
        values = [inner for item in inner_values for inner in (item if isinstance(item, list) else [item])]
    return values


def _is_configured(config: Any, path: str) -> bool:
    return any(value is not None for value in _at(config, path))


def _certain(config: Any, path: str) -> bool:
    """Whether it is there and known: what is not known yet may still be null.
    github.com/hashicorp/terraform-plugin-sdk, helper/schema/schema.go, validateConflictingAttributes"""
    return any(value is not None and not isinstance(value, Unknown) for value in _at(config, path))


def _proto(table: Mapping[str, Any]) -> Any:
    return pb.Schema(version=table.get("version", 0), block=_block(table["block"]))


def _block(block: Mapping[str, Any]) -> Any:
    flags = ("required", "optional", "computed", "sensitive", "deprecated")
    return pb.Schema.Block(
        attributes=[
            pb.Schema.Attribute(
                name=name, type=json.dumps(attribute["type"]).encode(),
                **{flag: attribute.get(flag, False) for flag in flags}
            )
            for name, attribute in block.get("attributes", {}).items()
        ],
        block_types=[
            pb.Schema.NestedBlock(
                type_name=name, block=_block(nested["block"]), nesting=NESTING[nested["nesting_mode"]],
                min_items=nested.get("min_items", 0), max_items=nested.get("max_items", 0),
            )
            for name, nested in block.get("block_types", {}).items()
        ],
    )  # fmt: skip
