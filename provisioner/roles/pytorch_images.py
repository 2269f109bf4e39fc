"""Container images of the frameworks."""

from provisioner.roles import Role

ROLE = Role()
