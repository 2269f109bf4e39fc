"""CUDA toolkit and cuDNN."""

from provisioner.configure.roles import Role

ROLE = Role(parts=("cuda", "cudnn"))
