"""`python -m provisioner` is `gpuprov`."""

from provisioner.cli.main import main

main()
