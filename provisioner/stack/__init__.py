"""The stack: which versions go together, and cluster.lock, which says exactly what is installed.

wanted = stack.solve(spec)              # group → Stack, images still without digests
lock = Lock(request=stack.request(spec), …)
lockfile.write(path, lock); lockfile.read(path)
"""

from provisioner.stack.conflict import StackConflict
from provisioner.stack.explain import alternatives
from provisioner.stack.solve import request, solve

__all__ = ["StackConflict", "alternatives", "request", "solve"]
