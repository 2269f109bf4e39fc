"""The part of a simulated image that plays load/multi_node_launcher.py: several nodes at work.

The nodes really find each other over TCP, so that one that can't be reached fails; what they reach together is worked
out from the lines that their container runtimes have put there (node/between.py): the slowest node's rate, and nothing
at all where one of them, or the path between two of them, is broken. Unlike the real one, busybox's nc listens on all
addresses of the simulated node.
"""

from __future__ import annotations

TOGETHER = r"""#!/bin/sh
# Simulated by gpuprov: this is no PyTorch, and nothing is added up.
place=/etc/gpuprov-sandbox met=/tmp/gpuprov-met
while [ $# -gt 0 ]; do
  case "$1" in --nodes) nodes=$2;; --node) node=$2;; --address) address=$2;; --port) port=$2;; esac
  shift
done
gpus=0
for device in /dev/dri/renderD*; do [ -e "$device" ] && gpus=$((gpus + 1)); done
[ -r $place/gpus ] && gpus=$(cat $place/gpus)
[ "$gpus" -gt 0 ] || { echo "Error: PyTorch sees no GPU (simulated by gpuprov)" >&2; exit 75; }
# GPUs that come as plain devices (AMD) have no runtime that could say more.
mine="$(busybox hostname)|300|NET/IB+GDR|well||31"
[ -r $place/between ] && mine=$(cat $place/between)
give_up() { echo "Error: $1 (simulated by gpuprov)" >&2; exit 1; }
if [ "$node" = 0 ]; then
  echo "@gpuprov-load-1 phase all_reduce"
  echo "$mine" > $met
  : > $met.sent
  busybox nc -ll -p "$port" -e /usr/bin/gpuprov-meet "$nodes" &
  trap "kill $!" EXIT
  tries=0
  while [ "$(busybox wc -l < $met)" -lt "$nodes" ]; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || give_up "$(busybox wc -l < $met) of $nodes nodes came to the rendezvous"
    sleep 0.2
  done
else
  tries=0
  until echo "$mine" | busybox nc -w 3 "$address" "$port" > $met && [ -s $met ]; do
    tries=$((tries + 1))
    [ $tries -lt 20 ] || give_up "no answer from the first node, $address port $port"
    sleep 0.5
  done
fi
busybox awk -F'|' -v gpus="$gpus" -v me="${mine%%|*}" '
  { names[$1]; paths[$1] = $5; if (NR == 1 || $2 + 0 < least) least = $2 + 0; if ($4 == "fails") broken = $1;
    if ($6 + 0 > slowest) slowest = $6 + 0 }
  NR == 1 || $3 ~ /Socket/ { way = $3 }
  END {
    for (name in paths) {
      count = split(paths[name], list, ",")
      for (i = 1; i <= count; i++) {
        split(list[i], path, "=")
        if (!(path[1] in names)) continue
        if (path[2] == "fails") broken = "the path from " name " to " path[1]
        else least = least * 0.4
      }
    }
    if (broken == me || broken ~ /^the path/) { print "!NCCL: unhandled system error, a transfer timed out"; exit }
    if (broken != "") { print "!a process on another node failed"; exit }
    printf "@gpuprov-load-1 result {\"simulated\": true, \"torch\": \"simulated\", \"device\": \"cuda\", \"wrong\": 0, "
    printf "\"train\": null, \"ranks\": %d, \"gpus\": [{\"rank\": 0, \"index\": 0}], ", NR * gpus
    printf "\"all_reduce\": [{\"bytes\": 1073741824, \"busbw_gbps\": %.2f}, ", least * 0.97
    printf "{\"bytes\": 4294967296, \"busbw_gbps\": %.2f}], ", least
    printf "\"latency_us\": %.1f, ", slowest
    printf "\"transports\": {\"P2P\": %d, \"%s\": %d}}\n", NR * 48, way, NR * 16
  }' $met > $met.said
if [ "$node" = 0 ]; then
  tries=0
  while [ "$(busybox wc -l < $met.sent)" -lt $((nodes - 1)) ] && [ $tries -lt 25 ]; do
    sleep 0.2
    tries=$((tries + 1))
  done
fi
read -r said < $met.said
case "$said" in "!"*) give_up "${said#!}";; esac
if [ "$node" = 0 ]; then echo "$said"; fi
"""
MEET = r"""#!/bin/sh
# Simulated by gpuprov: one node comes to the rendezvous, waits until all $1 have come, and hears of all.
met=/tmp/gpuprov-met tries=0
read -r line
echo "$line" >> $met
while [ "$(busybox wc -l < $met)" -lt "$1" ] && [ $tries -lt 100 ]; do
  sleep 0.2
  tries=$((tries + 1))
done
cat $met
echo sent >> $met.sent
"""
