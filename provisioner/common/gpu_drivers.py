"""Kernel modules that take NVIDIA's GPUs before NVIDIA's own driver does."""

from __future__ import annotations

OTHER_DRIVERS = ("nouveau", "nova_drm", "nova", "nova_core")
"""In the order in which they can be taken out. Role nvidia_driver denies and unloads them, driver.nouveau_absent looks
for them. Names: the kernel's drivers/gpu/drm/nouveau, drivers/gpu/drm/nova (nova.ko at first, then nova-drm.ko),
drivers/gpu/nova-core."""
