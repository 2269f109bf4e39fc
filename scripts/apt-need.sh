#!/usr/bin/env bash
# Installs those of the named Debian packages that are missing. Does nothing, and needs no root, where none is.
set -euo pipefail

missing=()
for package in "$@"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo)
echo "installing ${missing[*]}" >&2
"${sudo[@]}" apt-get update -qq || echo "apt-get update complained; going on with what is there" >&2
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
