#!/usr/bin/env bash
# Unpacks Debian packages below a folder, without installing them: no service of theirs starts on this machine.
#   apt-extract.sh DIR PACKAGE …
set -euo pipefail

folder=$1
shift
[ "$(cat "$folder/packages" 2>/dev/null)" = "$*" ] && exit 0

echo "unpacking $* below $folder" >&2
if ! apt-cache show "$@" >/dev/null 2>&1; then
  sudo=()
  [ "$(id -u)" = 0 ] || sudo=(sudo)
  "${sudo[@]}" apt-get update -qq || echo "apt-get update complained; going on with what is there" >&2
fi
rm -rf "$folder"
mkdir -p "$folder/archives"
(cd "$folder/archives" && apt-get download -qq "$@")
for archive in "$folder"/archives/*.deb; do
  dpkg-deb -x "$archive" "$folder"
done
rm -r "$folder/archives"
echo "$*" >"$folder/packages"
