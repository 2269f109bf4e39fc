"""The real AWS provider, started once for many commands of Terraform.

A plan takes ten seconds of processor time, one of which is about the plan: the provider starts, describes its 1,500
resources, of which terraform/aws uses thirty, and looks through all of them twice before it says that its own arguments
are valid. Here it runs on its own (`-debug`, TF_REATTACH_PROVIDERS,
https://developer.hashicorp.com/terraform/plugin/debugging) behind a socket that passes every call on as it is, but for
two: the description is asked for once and holds only what terraform/aws uses, so that Terraform refuses anything else
as unknown to the provider; and the same arguments of the provider are validated once.

One process serves one command at a time: it keeps the region and the keys of whoever configured it last.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

# Terraform is started from this process: gRPC's own handlers of fork() have nothing to do in a child that becomes it.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

import grpc
from tf.gen import tfplugin_pb2 as pb

from provisioner.common.paths import data
from tests.support.moto_aws import Cloud
from tests.support.terraform_plugins import PROVIDER, mirror

STARTED_WITHIN_S = 60
LARGEST = [("grpc.max_receive_message_length", 256 << 20), ("grpc.max_send_message_length", 256 << 20)]
"""The whole description is 20 MB; gRPC takes 4 unless told."""
DESCRIBE = "/tfplugin5.Provider/GetSchema"
PREPARE = "/tfplugin5.Provider/PrepareProviderConfig"
SCHEMA = pb.GetProviderSchema.Response
"""tfplugin6's; tfplugin5 gives the same numbers to the same fields."""


def binary() -> Path | None:
    """The provider's program where this machine has it unpacked, the newest of several."""
    plugin_folder = mirror()
    return max(plugin_folder.glob(f"{PROVIDER}/*/*/terraform-provider-aws*")) if plugin_folder else None


def used() -> frozenset[str]:
    """Types of resources and data sources in terraform/aws."""
    texts = (file.read_text(encoding="utf-8") for file in (data("terraform") / "aws").glob("*.tf"))
    return frozenset(re.findall(r'^(?:resource|data) "(aws_\w+)"', "\n".join(texts), re.M))


@contextmanager
def running(cloud: Cloud) -> Iterator[dict[str, str]]:
    """What Terraform's environment has while the provider runs, which finds that cloud and nobody's keys; nothing where
    the registry has to give the provider."""
    program = binary()
    if program is None:
        yield {}
        return
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "TF_"))}
    with subprocess.Popen(
        [program, "-debug"], env=environment | cloud.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    ) as process, tempfile.TemporaryDirectory(prefix="gpuprov-aws-") as folder:  # fmt: skip
        try:
            settings = _reattach_settings(process)
            (about,) = settings.values()
            with grpc.insecure_channel(f"unix:{about['Addr']['String']}", options=LARGEST) as channel:
                server = grpc.server(futures.ThreadPoolExecutor(max_workers=64), options=LARGEST)
                server.add_generic_rpc_handlers((_Passed(channel),))
                address = f"{folder}/aws.sock"
                server.add_insecure_port(f"unix:{address}")
                server.start()
                about["Addr"]["String"] = address
                try:
                    yield {"TF_REATTACH_PROVIDERS": json.dumps(settings)}
                finally:
                    server.stop(grace=None).wait()
        finally:
            process.terminate()


def _reattach_settings(process: subprocess.Popen[str]) -> dict[str, Any]:
    """What the provider prints when it listens."""
    assert process.stdout is not None
    late = threading.Timer(STARTED_WITHIN_S, process.kill)
    late.start()
    try:
        for line in process.stdout:
            if "TF_REATTACH_PROVIDERS=" in line:
                settings: dict[str, Any] = json.loads(line.partition("=")[2].strip().strip("'"))
                return settings
    finally:
        late.cancel()
    raise AssertionError(f"the AWS provider ended before it listened: exit status {process.wait()}")


class _Passed(grpc.GenericRpcHandler):
    """Every call passed on in its bytes, those whose answer never changes once."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._prepared: dict[bytes, bytes] = {}

    @cached_property
    def _description(self) -> bytes:
        description = SCHEMA.FromString(self._channel.unary_unary(DESCRIBE)(b""))
        used_types = used()
        for table in (description.resource_schemas, description.data_source_schemas):
            for name in set(table) - used_types:
                del table[name]
        serialized: bytes = description.SerializeToString()
        return serialized

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = details.method
        if method == DESCRIBE:
            return grpc.unary_unary_rpc_method_handler(lambda *_: self._description)
        call = self._channel.unary_unary(method)

        def passed(request: bytes, context: grpc.ServicerContext) -> bytes:
            if method == PREPARE and request in self._prepared:
                return self._prepared[request]
            begun = call.future(request)
            context.add_callback(begun.cancel)  # Terraform was killed: so is what it asked for
            try:
                answer: bytes = begun.result()
            except grpc.FutureCancelledError:
                context.abort(grpc.StatusCode.CANCELLED, "Terraform is gone")
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())
            if method == PREPARE:
                self._prepared[request] = answer
            return answer

        return grpc.unary_unary_rpc_method_handler(passed)
