"""CUDA toolkit and cuDNN."""

from provisioner.roles import Role

ROLE = Role(parts=("cuda", "cudnn"))
