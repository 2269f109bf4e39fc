"""Machines behind moto's addresses: every EC2 instance that gets an elastic address is a sandbox node.

EC2 → here: RunInstances gives the instance an address of podman's network, AllocateAddress gives one of loopback,
AssociateAddress boots the node (its user data says who may log in); one with a single interface has its public address
from RunInstances, which boots it. StopInstances stops the node, CreateImage makes a container image of it, from which
instances of that AMI boot. GetConsoleOutput shows the node's host keys, TerminateInstances removes it. Everything else
is moto's.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import moto.ec2.models.elastic_ip_addresses as addresses
from moto.core.responses import ActionResult
from moto.core.types import Base64EncodedString
from moto.ec2.models.amis import AmiBackend
from moto.ec2.models.elastic_ip_addresses import ElasticAddressBackend
from moto.ec2.models.instances import InstanceBackend
from moto.ec2.responses import EC2Response

from provisioner import catalog
from provisioner.common.events import Events
from provisioner.common.paths import data
from provisioner.lifecycle.images.builder import without_gpus
from provisioner.machines.providers.sandbox.images import with_docker_store
from provisioner.sandbox import assets, network
from provisioner.sandbox.hardware import hardware
from provisioner.sandbox.runtime import ulimit_options
from provisioner.sandbox.systems import system
from provisioner.stack.models import Lock

DEADLINE_S = 150


@dataclass
class Machines:
    """The containers behind one moto server. `folder` is theirs; `cluster` is a label by which people find them."""

    folder: Path
    cluster: str
    lock: Lock
    running: dict[str, str] = field(default_factory=dict)
    """Instance id → container."""
    images: dict[str, str] = field(default_factory=dict)
    """AMI that was made here → container image."""

    def __post_init__(self) -> None:
        self.octet = network.allocate_octet(self.folder)
        self.assets = assets.prepare(self.lock.groups.values(), Events())
        self.prefix = network.of_octet(self.octet).subnet
        self.numbers = itertools.count(network.FIRST)
        self._run(
            "create",
            "mirror",
            self._name("mirror"),
            {"MIRROR_DIR": str(self.assets.mirror), "PRIVATE_IP": self._mirror},
        )

    @property
    def _mirror(self) -> str:
        return f"{self.prefix}.{network.MIRROR}"

    def _name(self, part: str) -> str:
        return f"gpuprov-{self.cluster}-{part}.{self.octet}"

    def boot(self, instance: Any, address: str) -> None:
        """A node with the hardware of the instance's type, at its private address and at that public one."""
        tags = {tag["key"]: tag["value"] for tag in instance.get_tags()}
        known, group = catalog.load(), tags["gpuprov-group"]
        if instance.instance_type in known.names():
            machine = known.machine(instance.instance_type)
        else:  # a builder of images
            machine = without_gpus(known.machine("p4d.24xlarge"), instance.instance_type)
        described = hardware(machine, known.gpu(machine.gpu_model), instance.id, known)
        described |= {"os": system(self.lock.groups[group].os), "spot": instance.lifecycle == "spot"}
        file = self.folder / f"{instance.id}.json"
        file.write_text(json.dumps(described))
        user = _user(instance.user_data.decode())
        ulimits = dict(item.split("=") for item in ulimit_options()[1::2])
        name = self._name(f"{tags['gpuprov-node']}-{instance.id[-6:]}")
        self._run("create", "node", name, {
            "IMAGE": self.images.get(getattr(instance, "image_id", ""))
            or self.assets.image_of(self.lock.groups[group]),
            "NODE": tags["gpuprov-node"], "PRIVATE_IP": instance.private_ip, "PUBLIC_IP": address,
            "MIRROR_IP": self._mirror, "HARDWARE": str(file), "USER": user["name"],
            "SSH_KEY": user["ssh_authorized_keys"][0], "USER_DATA": "",
            "NOFILE": ulimits["nofile"].split(":")[0], "NPROC": ulimits["nproc"].split(":")[0],
        })  # fmt: skip
        self.running[instance.id] = name

    def remove(self, instance: str) -> None:
        if name := self.running.pop(instance, None):
            self._run("destroy", "node", name, {})

    def stop(self, instance: str) -> None:
        podman = self.assets.podman.path
        subprocess.run(
            [podman, "stop", "--time", "20", self.running[instance]], check=True, timeout=60, capture_output=True
        )

    def capture(self, instance: str, ami: str) -> None:
        """What is on the disk of a machine that stands still, docker's store with it."""
        name = f"localhost/gpuprov-test-ami:{ami}"
        with_docker_store(self.running[instance], self.assets.podman)
        command = [self.assets.podman.path, "commit", "--quiet", self.running[instance], name]
        subprocess.run(command, check=True, timeout=300, capture_output=True)
        self.images[ami] = name

    def close(self) -> None:
        for instance in list(self.running):
            self.remove(instance)
        for name in self.images.values():
            subprocess.run(
                [self.assets.podman.path, "rmi", "--force", name], check=False, timeout=60, capture_output=True
            )
        self._run("destroy", "mirror", self._name("mirror"), {})
        network.release_octet(self.folder)

    def console(self, instance: str) -> str:
        """What cloud-init writes there at first boot; nothing while there is no such node."""
        if instance not in self.running:
            return ""
        podman = self.assets.podman
        host_key = subprocess.run(
            [podman.path, "exec", self.running[instance], "cat", "/etc/ssh/ssh_host_ed25519_key.pub"],
            capture_output=True, text=True, timeout=30, check=False,
        ).stdout  # fmt: skip
        return f"-----BEGIN SSH HOST KEY KEYS-----\r\n{host_key.strip()}\r\n-----END SSH HOST KEY KEYS-----\r\n"

    def _run(self, command: str, role: str, name: str, values: Mapping[str, str]) -> None:
        common = {
            "PODMAN": self.assets.podman.path, "RUNTIME": self.assets.podman.runtime, "CLUSTER": self.cluster,
            "NODE": "", "WORKSPACE": str(self.folder), "OCTET": str(self.octet), "IMAGE": self.assets.image,
            "LABELS": "", "ROLE": role, "NAME": name,
        }  # fmt: skip
        environment = {f"GPUPROV_{key}": value for key, value in {**common, **values}.items()}
        script = data("terraform") / "sandbox" / "node.sh"
        subprocess.run(["sh", str(script), command], env={**os.environ, **environment}, check=True, timeout=DEADLINE_S)


def _user(text: str) -> dict[str, Any]:
    """The access user of a cloud-config."""
    assert text.startswith("#cloud-config\n")
    user: dict[str, Any] = json.loads(text.removeprefix("#cloud-config\n"))["users"][0]
    return user


@contextmanager
def behind_moto(machines: Machines) -> Iterator[Machines]:
    """moto's instances are these machines until the block ends; what is left of them then is removed."""
    launch, stop = InstanceBackend.run_instances, InstanceBackend.terminate_instances
    halt, image = InstanceBackend.stop_instances, AmiBackend.create_image
    associate, console, free = (
        ElasticAddressBackend.associate_address,
        EC2Response.get_console_output,
        addresses.random_ip,
    )
    public = itertools.count(network.FIRST)

    def run_instances(backend: Any, *arguments: Any, **options: Any) -> Any:
        reservation = launch(backend, *arguments, **options)
        for instance in reservation.instances:
            nic = instance.nics[0]
            nic.private_ip_addresses[0]["PrivateIpAddress"] = f"{machines.prefix}.{next(machines.numbers)}"
            nic.private_ip_address = nic.private_ip_addresses[0]["PrivateIpAddress"]
            if nic.public_ip:
                nic.public_ip = addresses.random_ip()
                machines.boot(instance, nic.public_ip)
        return reservation

    def stop_instances(backend: Any, ids: list[str]) -> Any:
        for number in ids:
            machines.stop(number)
        return halt(backend, ids)

    def create_image(backend: Any, instance_id: str, *arguments: Any, **options: Any) -> Any:
        """moto 5.2 does not know that snapshots of an image may have tags."""
        specifications = options["tag_specifications"]
        options["tag_specifications"] = [
            specification for specification in specifications if specification["ResourceType"] != "snapshot"
        ]
        created = image(backend, instance_id, *arguments, **options)
        machines.capture(instance_id, created.id)
        return created

    def enable_image_deprecation(response: Any) -> ActionResult:
        return ActionResult({"Return": True})

    def terminate_instances(backend: Any, ids: list[str]) -> Any:
        done = stop(backend, ids)
        for number in ids:
            machines.remove(number)
        return done

    def associate_address(backend: Any, **options: Any) -> Any:
        address = associate(backend, **options)
        instance = options.get("instance") or address.eni.instance
        machines.boot(instance, address.public_ip)
        return address

    def get_console_output(response: Any) -> ActionResult:
        number = response._get_param("InstanceId")
        return ActionResult(
            {"InstanceId": number, "Output": Base64EncodedString.from_raw_string(machines.console(number))}
        )

    InstanceBackend.run_instances, InstanceBackend.terminate_instances = run_instances, terminate_instances
    InstanceBackend.stop_instances, AmiBackend.create_image = stop_instances, create_image
    EC2Response.enable_image_deprecation = enable_image_deprecation
    ElasticAddressBackend.associate_address = associate_address
    EC2Response.get_console_output = get_console_output
    addresses.random_ip = lambda: f"127.77.{machines.octet}.{next(public)}"
    try:
        yield machines
    finally:
        InstanceBackend.run_instances, InstanceBackend.terminate_instances = launch, stop
        InstanceBackend.stop_instances, AmiBackend.create_image = halt, image
        ElasticAddressBackend.associate_address, EC2Response.get_console_output = associate, console
        addresses.random_ip = free
        machines.close()
