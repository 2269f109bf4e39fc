"""How nodes and programs are reached: ssh, host keys, processes."""
