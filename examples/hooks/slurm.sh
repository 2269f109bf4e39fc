#!/bin/sh
# gpuprov's hooks for Slurm. In cluster.yaml, with this file beside it:
#   hooks: { drain: sh slurm.sh, resume: sh slurm.sh }
# Nodes have the same names in Slurm as in cluster.yaml. A drain that somebody else ordered is neither changed nor lifted.
set -eu

node=$GPUPROV_NODE
stands=$(sinfo --noheader --nodes "$node" --format '%T|%E' | head -n 1) # drained|the reason

case $GPUPROV_STEP in
drain)
  case $stands in
  drain*'|gpuprov '* | [!d]* | down*) # ours, or in service, or gone
    scontrol update nodename="$node" state=drain reason="gpuprov $GPUPROV_ACTION: $GPUPROV_REASON" ;;
  drain*)
    echo "drained already: ${stands#*|}" ;;
  *)
    echo "Slurm does not know the state of $node: $stands" >&2
    exit 1 ;;
  esac
  # A job on a bad node ends by itself; before a machine is changed or thrown away it must have ended.
  case $GPUPROV_ACTION in
  upgrade | replace | maintain)
    while [ -n "$(squeue --noheader --nodelist "$node")" ]; do sleep 15; done ;;
  esac ;;
resume)
  case $stands in
  drain*'|gpuprov '* | down*'|gpuprov '*)
    scontrol update nodename="$node" state=resume ;;
  *)
    echo "not drained by gpuprov, left as it is: $stands" ;;
  esac ;;
esac
