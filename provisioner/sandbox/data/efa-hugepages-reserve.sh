#!/bin/sh
# simulated by gpuprov: two endpoints for each processor, 110 MiB each, in pages of the default size
set -e
size=$(sed -n 's/^Hugepagesize: *\([0-9]*\) kB/\1/p' /proc/meminfo)
[ -n "$size" ] && [ "$size" -le 16384 ] || exit 0
processors=$(grep -c '^processor' /proc/cpuinfo)
pages=$((110 * 1024 * processors * 2 / size + 1))
[ "$(cat /proc/sys/vm/nr_hugepages)" -ge "$pages" ] || echo "$pages" >/proc/sys/vm/nr_hugepages
