"""Unattended installation of a machine that has only a BMC: what the installer is told (seed.py), the ISO image that it
starts from (iso.py), and the web server that the BMC fetches it from (serve.py)."""
