#!/bin/sh
# Four nights of a golden image in the sandbox: built, unchanged, a bad driver release that no channel ever sees, a good one; then
# promoted, rolled back, pruned. Makes its files in a folder of its own and removes its nodes.
#
#   scripts/nights.sh GPUPROV
set -eu
gpuprov=$1
folder=$(mktemp -d)
cd "$folder"
mkdir images
recipe=images/desk.yaml

say() { printf '\n== %s\n' "$*"; }

write() {
  cat >"$recipe" <<END
name: desk
sites: { lab: { provider: aws, region: us-east-1 } }
groups: { l4: { machine: g6.xlarge } }
stack: { driver: "$1" }
image: { keep: 1 }
END
}

write 580
say "the first night: everything is new"
"$gpuprov" image nightly "$recipe" --sandbox
"$gpuprov" image promote "$recipe" candidate --sandbox
"$gpuprov" image promote "$recipe" stable --sandbox
say "the second night: nothing is new"
"$gpuprov" image nightly "$recipe" --sandbox
say "the third night: a driver release that is bad for one GPU"
write 595
"$gpuprov" sandbox fault "$recipe" lab bad-driver-release:595.91.07
"$gpuprov" image nightly "$recipe" --sandbox && exit 1
"$gpuprov" image list "$recipe" --sandbox
say "the fourth night: the vendor has mended it"
"$gpuprov" sandbox clear "$recipe" lab
"$gpuprov" image nightly "$recipe" --sandbox
"$gpuprov" image diff "$recipe" stable nightly --sandbox | head -n 5
"$gpuprov" image promote "$recipe" candidate --sandbox
"$gpuprov" image promote "$recipe" stable --sandbox
"$gpuprov" image rollback "$recipe" stable --sandbox
"$gpuprov" image prune "$recipe" --sandbox --yes
say "the page of the nights: $folder/images/.gpuprov/desk.image.sandbox/book/nights.html"
