"""File systems of the network. Its mount units are called as their paths (roles.of_unit), and what is mounted is known
only once Terraform has made it: provisioner/machines/mounts.py has its variables."""

from provisioner.plan.roles import Role

ROLE = Role(parts=("lustre", "mount_s3"))
