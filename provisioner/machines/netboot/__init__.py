"""Machines that start from the network, without MAAS and without virtual media: dnsmasq answers those that cluster.yaml
names (dnsmasq.py) with iPXE, iPXE asks this computer what to do (serve.py), and by what is written down of a machine it
is given its installer once (ipxe.py), or told to start from its own disk."""
