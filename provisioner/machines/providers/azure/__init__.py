"""Azure: virtual machines made by terraform/azure."""
