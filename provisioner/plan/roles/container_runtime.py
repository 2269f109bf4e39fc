"""docker, and the NVIDIA container toolkit."""

from provisioner.plan.roles import Role, always

ROLE = Role(
    parts=("container_toolkit",),
    units={"docker.service": always, "gpuprov-cdi.service": lambda on: on.has("container_toolkit")},
)
