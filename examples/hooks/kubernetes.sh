#!/bin/sh
# gpuprov's hooks for Kubernetes. In cluster.yaml, with this file beside it:
#   hooks: { drain: sh kubernetes.sh, resume: sh kubernetes.sh }
# Nodes have the same names in Kubernetes as in cluster.yaml. The taint is gpuprov's own, so that a cordon of somebody
# else's is never lifted.
set -eu

node=$GPUPROV_NODE
taint=gpuprov/out-of-service

ask() {
  kubectl get node "$node" --output "jsonpath=$1"
}

case $GPUPROV_STEP in
drain)
  kubectl taint --overwrite node "$node" "$taint=$GPUPROV_ACTION:NoSchedule"
  kubectl annotate --overwrite node "$node" "gpuprov/reason=$GPUPROV_REASON"
  # Pods on a bad node end by themselves; before a machine is changed or thrown away they must be gone.
  case $GPUPROV_ACTION in
  upgrade | replace | maintain)
    [ "$(ask '{.spec.unschedulable}')" = true ] || kubectl annotate --overwrite node "$node" gpuprov/cordoned=yes
    kubectl drain "$node" --ignore-daemonsets --delete-emptydir-data ;;
  esac ;;
resume)
  [ "$(ask '{.metadata.annotations.gpuprov/cordoned}')" != yes ] || kubectl uncordon "$node"
  kubectl annotate node "$node" gpuprov/reason- gpuprov/cordoned-
  case " $(ask '{.spec.taints[*].key}') " in
  *" $taint "*) kubectl taint node "$node" "$taint-" ;;
  esac ;;
esac
