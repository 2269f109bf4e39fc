"""AMD driver and ROCm. It also removes packages that only an earlier lock had."""

from provisioner.plan.roles import Role

ROLE = Role(parts=("rocm",), all_package_names=True)
