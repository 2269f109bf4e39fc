"""Container images of the frameworks."""

from provisioner.plan.roles import Role

ROLE = Role()
