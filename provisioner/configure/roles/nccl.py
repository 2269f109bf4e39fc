"""NCCL and its configuration."""

from provisioner.configure.roles import Role

ROLE = Role(parts=("nccl",))
