#!/usr/bin/env bash
# terraform fmt and validate for every module and example. Usage: terraform/lint.sh TERRAFORM [ARGUMENT…]
# TF_CLI_CONFIG_FILE, where it names a file, says where providers come from.
set -euo pipefail
cd "$(dirname "$0")"
[ -f "${TF_CLI_CONFIG_FILE:-}" ] || unset TF_CLI_CONFIG_FILE

"$@" fmt -check -recursive -diff .
for folder in */ */examples/*/; do
  [ -e "$folder/main.tf" ] || continue
  scratch=$(mktemp -d)
  cp -r . "$scratch/terraform"
  (cd "$scratch/terraform/$folder" && "$@" init -backend=false -input=false >/dev/null && "$@" validate -no-color)
  rm -rf "$scratch"
done
