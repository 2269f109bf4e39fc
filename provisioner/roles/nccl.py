"""NCCL and its configuration."""

from provisioner.roles import Role

ROLE = Role(parts=("nccl",))
