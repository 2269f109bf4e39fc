"""InfiniBand or RoCE, with DOCA-OFED or the distribution's drivers."""

from provisioner.roles import Role

ROLE = Role(parts=("ofed",), units={"openibd.service": lambda on: on.has("ofed")})
