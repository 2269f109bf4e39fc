#!/bin/sh
# Makes or removes one container of a sandbox cluster: a node, its mirror or its jump host.
#
#   node.sh create    replaces a leftover of the same workspace, refuses a container of anybody else
#   node.sh destroy   removes the container with its volumes, also when it is half made or not there
#
# A container is ours by its name and label, a volume and a network by their label: nothing is removed by its name alone.
#
# Everything comes in environment variables (GPUPROV_*), so that no value is ever part of a command line that a shell reads.
set -eu

network=gpuprov-$GPUPROV_OCTET
# Containers whose start or removal is not through, one file each. Where podman is killed in it, nothing else leads to the
# namespace that it has made and not written down, and to the firewall rules of a container that is gone.
records=/run/gpuprov/starting
record=$records/$GPUPROV_NAME.$$

private() (umask 077 && mkdir -p "$1")

say() { printf 'gpuprov sandbox: %s\n' "$*" >&2; }

podman() { command timeout 120 "$GPUPROV_PODMAN" --runtime "$GPUPROV_RUNTIME" "$@"; }

# podman's filter is a regular expression, in which a dot is any character.
exact=^$(printf '%s' "$GPUPROV_NAME" | sed 's/\./\\./g')\$

# Of a container whose removal was killed half way podman tells its labels in no other way.
label_of() { podman ps --all --filter "name=$exact" --format "{{index .Labels \"$1\"}}"; }

# The runtime may have made a container that podman has not written down as started.
delete_from_runtime() { command "$GPUPROV_RUNTIME" delete --force "$1" >/dev/null 2>&1 || true; }

# A container that is there already: ours is removed, another one stays and we stop: status 3.
clear_the_way() {
  if ! podman container exists "$GPUPROV_NAME"; then
    # A podman that was killed while it made one leaves the name taken by storage without a container. One that is at work
    # is through in a moment.
    podman container exists --external "$GPUPROV_NAME" || return 0
    sleep 2
    podman container exists "$GPUPROV_NAME" || podman rm --force --ignore --time 0 "$GPUPROV_NAME" >/dev/null
    podman container exists "$GPUPROV_NAME" || return 0
  fi
  owner=$(label_of gpuprov.workspace)
  if [ "$owner" != "$GPUPROV_WORKSPACE" ]; then
    say "a container $GPUPROV_NAME is there already and belongs to ${owner:-somebody else}; give this cluster another name"
    return 3
  fi
  remove_container
}

unmount_shm() {
  [ "$(podman container inspect --format '{{.State.Running}}' "$1" 2>/dev/null)" != true ] || return 0
  target=$(sed -n "s|^[^ ]* [^ ]* [^ ]* [^ ]* \([^ ]*/overlay-containers/$1/userdata/shm\) .*|\1|p" /proc/self/mountinfo)
  [ -z "$target" ] || umount "$target" || true
}

# The container with its volume, whichever of them is there. Whoever asks for its status switches `set -e` off in it.
remove_container() {
  private "$records"
  ids=$(podman ps --all --no-trunc --filter "name=$exact" --format "{{.ID}}")
  for id in $ids; do echo "removing $id"; done >"$record"
  podman rm --force --volumes --ignore --time 0 "$GPUPROV_NAME" >/dev/null 2>&1 || {
    # killed as it started it, podman does not know that it has mounted something
    for id in $ids; do unmount_shm "$id"; done
    podman rm --force --volumes --ignore --time 0 "$GPUPROV_NAME" >/dev/null || return
  }
  for id in $ids; do delete_from_runtime "$id"; done
  remove_volume || return
  rm -f "$record"
}

# By the octet, which one workspace has at a time: podman reads labels of volumes as CSV, and a path may hold anything.
owns_volume() {
  [ "$(podman volume inspect --format '{{index .Labels "gpuprov.octet"}}' "$GPUPROV_NAME")" = "$GPUPROV_OCTET" ]
}

# One of that name without our label is somebody's, or an older gpuprov's.
remove_volume() {
  podman volume exists "$GPUPROV_NAME" || return 0
  if owns_volume; then
    podman volume rm "$GPUPROV_NAME" >/dev/null
  else
    say "volume $GPUPROV_NAME does not have this cluster's label: it is left; \`podman volume rm $GPUPROV_NAME\` removes it"
  fi
}

ensure_volume() {
  if ! podman volume exists "$GPUPROV_NAME"; then
    podman volume create --label "gpuprov.octet=$GPUPROV_OCTET" "$GPUPROV_NAME" >/dev/null
    volume=$GPUPROV_NAME
  elif ! owns_volume; then
    say "volume $GPUPROV_NAME exists and does not have this cluster's label; remove it or give this cluster another name"
    exit 1
  fi
}

# Each sandbox has a network of its own: the store of its addresses goes with it, and nobody else's container is in it.
# Two nodes may try at once.
ensure_network() {
  podman network exists "$network" ||
    errors=$(podman network create --disable-dns --subnet "${GPUPROV_PRIVATE_IP%.*}.0/24" \
      --label "gpuprov.workspace=$GPUPROV_WORKSPACE" --label "gpuprov.octet=$GPUPROV_OCTET" "$network" 2>&1 >/dev/null) ||
    podman network exists "$network" || {
    say "$errors"
    exit 1
  }
  label=$(podman network inspect --format '{{index .Labels "gpuprov.octet"}}' "$network")
  [ "$label" = "$GPUPROV_OCTET" ] || {
    say "network $network exists and does not have a sandbox's label; remove it or rename it"
    exit 1
  }
}

# Somebody else's container of the same name is none of ours to remove, and nothing of ours is left then. One of ours that
# podman does not remove is an error: Terraform keeps it in its state.
destroy() {
  failed=0
  clear_the_way || failed=$?
  [ "$failed" = 3 ] || return "$failed"
  say "it is left as it is"
}

# An address keeps its MAC when its container is replaced: neighbours would send to the old one for half a minute.
mac_of() {
  # shellcheck disable=SC2046,SC2183 # four numbers, four words
  printf '0a:58:%02x:%02x:%02x:%02x' $(printf '%s' "$1" | tr . ' ')
}

# Terraform runs no destroy step for something whose making failed, so a failed making removes its own half. Its record
# stays: podman leaves the firewall rules of a network plugin that failed.
tidy() {
  rm -rf "$scratch"
  [ "$1" -ne 0 ] || return 0
  if [ -n "$made" ]; then
    remove_container
    echo "removing $made" >"$record"
  elif [ -n "$volume" ]; then
    remove_volume
  fi
}

# Not with podman's debug log, which would name the namespace: the monitor would then call podman with --syslog when the
# node reboots, and that one stops where no syslog runs.
start() {
  printf 'address %s\ncontainer %s\n' "$GPUPROV_PRIVATE_IP" "$made" >"$record"
  podman start "$GPUPROV_NAME" >/dev/null
  rm -f "$record"
}

create() {
  # A cloud that refuses this machine (gpuprov sandbox fault FILE SITE …), in its own words.
  if [ -n "${GPUPROV_REFUSAL:-}" ]; then
    say "$GPUPROV_REFUSAL"
    exit 1
  fi
  clear_the_way || exit 1
  private "$records"
  scratch=$(mktemp -d "${TMPDIR:-/tmp}/gpuprov-node-${GPUPROV_PROCESS_OF:-none}-XXXXXX") # goes with its run
  made=
  volume=
  trap 'tidy $?' EXIT
  trap 'exit 130' INT TERM
  ensure_network
  printf '%s\n' "$GPUPROV_LABELS" >"$scratch/labels"
  set -- --name "$GPUPROV_NAME" --network "$network" --ip "$GPUPROV_PRIVATE_IP" \
    --mac-address "$(mac_of "$GPUPROV_PRIVATE_IP")" \
    --label "gpuprov.cluster=$GPUPROV_CLUSTER" --label "gpuprov.node=$GPUPROV_NODE" --label "gpuprov.role=$GPUPROV_ROLE" \
    --label "gpuprov.workspace=$GPUPROV_WORKSPACE" --label "gpuprov.octet=$GPUPROV_OCTET" --label-file "$scratch/labels" \
    --annotation "gpuprov.octet=$GPUPROV_OCTET" # for the runtime, which knows no labels
  case $GPUPROV_ROLE in
  mirror)
    set -- "$@" --hostname mirror.gpuprov.internal --volume "$GPUPROV_MIRROR_DIR:/srv/mirror:ro" \
      --ulimit nofile=4096:4096 --ulimit nproc=4096:4096 "$GPUPROV_IMAGE" /usr/lib/gpuprov-sandbox/mirror
    ;;
  jump)
    for port in $GPUPROV_PORTS; do
      set -- "$@" --publish "$GPUPROV_PUBLIC_IP:$port:$port"
    done
    set -- "$@" --hostname jump.gpuprov.internal --stop-signal TERM --ulimit nofile=4096:4096 --ulimit nproc=4096:4096 \
      "$GPUPROV_IMAGE" /usr/lib/gpuprov-sandbox/jump
    ;;
  *)
    ensure_volume
    # Behind a jump host a node has no public address.
    [ -z "$GPUPROV_PUBLIC_IP" ] || set -- "$@" --publish "$GPUPROV_PUBLIC_IP:22:22"
    [ -z "${GPUPROV_PYTORCH:-}" ] || set -- "$@" --volume "$GPUPROV_PYTORCH:/opt/gpuprov-sandbox/pytorch:ro"
    # restart: a node that reboots ends its container, which then comes back with its disk and addresses
    set -- "$@" --hostname "$GPUPROV_NODE" --privileged --systemd=always --restart always --volume "$GPUPROV_NAME:/var/lib/docker" \
      --ulimit "nofile=$GPUPROV_NOFILE:$GPUPROV_NOFILE" --ulimit "nproc=$GPUPROV_NPROC:$GPUPROV_NPROC" \
      --add-host "mirror.gpuprov.internal:$GPUPROV_MIRROR_IP" "$GPUPROV_IMAGE" /sbin/init
    ;;
  esac
  made=$(podman create --pull never "$@")
  case $GPUPROV_ROLE in
  jump)
    mkdir -p "$scratch/gpuprov-sandbox"
    printf '%s\n' "$GPUPROV_JUMP" >"$scratch/gpuprov-sandbox/jump.json"
    printf '%s\n' "$GPUPROV_SSH_KEY" >"$scratch/gpuprov-sandbox/jump_keys"
    ;;
  node)
    seed=$scratch/gpuprov-sandbox/seed
    mkdir -p "$seed"
    cp "$GPUPROV_HARDWARE" "$scratch/gpuprov-sandbox/hardware.json"
    cp "$GPUPROV_HARDWARE" "$scratch/gpuprov-sandbox/healthy.json"
    chmod 0644 "$scratch/gpuprov-sandbox/hardware.json" "$scratch/gpuprov-sandbox/healthy.json" # nvidia-smi is for everybody
    printf '%s\n' "$GPUPROV_USER" >"$seed/user"
    printf '%s\n' "$GPUPROV_SSH_KEY" >"$seed/ssh_public_key"
    printf '%s' "$GPUPROV_USER_DATA" >"$seed/user_data"
    chmod 0600 "$seed/user_data"
    ;;
  esac
  [ "$GPUPROV_ROLE" = mirror ] || podman cp "$scratch/gpuprov-sandbox/." "$GPUPROV_NAME:/etc/gpuprov-sandbox"
  start
}

case "${1:-}" in
create) create ;;
destroy) destroy ;;
*)
  say "usage: node.sh create|destroy"
  exit 2
  ;;
esac
