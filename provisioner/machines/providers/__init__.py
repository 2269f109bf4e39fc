"""One folder for each provider. cluster.yaml's models take a site and a state of every folder: they are imported first,
because a folder's module that came before them would be half there when they look into it."""

import provisioner.spec  # noqa: F401
