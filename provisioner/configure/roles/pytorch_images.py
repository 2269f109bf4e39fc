"""Container images of the frameworks."""

from provisioner.configure.roles import Role

ROLE = Role()
