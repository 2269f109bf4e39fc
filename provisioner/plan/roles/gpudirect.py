"""GPUDirect RDMA: network cards that reach GPU memory."""

from provisioner.plan.roles import Role

ROLE = Role(
    parts=("gdrcopy",),
    units={"gpuprov-gpudirect.service": lambda on: on.gpu.vendor == "nvidia" and on.has("gdrcopy")},
)
