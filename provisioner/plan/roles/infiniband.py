"""InfiniBand or RoCE, with DOCA-OFED or the distribution's drivers."""

from provisioner.plan.roles import Role

ROLE = Role(parts=("ofed",), units={"openibd.service": lambda on: on.has("ofed")})
