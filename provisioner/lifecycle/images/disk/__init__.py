"""Disks of images for machines of one's own: a GPT disk with an EFI system partition and a root file system.

tools.py (what has to be installed), identity.py (UUIDs), base_system.py and bootable.sh (a root file system that
boots), newest.py (its newest packages), layout.py (root file system → disk), first_boot.py (what a virtual machine is
told), virtual_machine.py (QEMU).
"""
