"""CUDA toolkit and cuDNN."""

from provisioner.plan.roles import Role

ROLE = Role(parts=("cuda", "cudnn"))
