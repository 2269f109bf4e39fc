"""The simulator: runs on sandbox nodes as gpuprov_node, with Python's standard library only.

Each tool is a small program that calls `main.main(tool)`; what it prints comes from hardware.json, from which packages
are installed and from which kernel modules are loaded.
"""
