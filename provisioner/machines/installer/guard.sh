# shellcheck shell=sh
# Runs in the installer before it writes to any disk; ends with the machine switched off where it must not be installed.
# Called with `machine` (is it the one that is meant?) and `disks` (do they hold anything?).
serials='@SERIALS@'
reinstall='@REINSTALL@'
report='@REPORT@'

tell() { # whoever gave the installer, as a path
    [ -z "$report" ] || wget -q -T 10 -O /dev/null "$report/$1" 2>/dev/null
}

stop() { # why, and in a word
    tell "refused/$2"
    for tty in /dev/console /dev/ttyS0 /dev/tty1; do
        [ -w "$tty" ] && echo "gpuprov: NOT INSTALLED: $1" > "$tty" 2>/dev/null
    done
    sync
    sleep 5
    poweroff -f 2>/dev/null || echo o > /proc/sysrq-trigger
    sleep 3600
}

same() { # two texts, whatever their case and blanks
    [ "$(echo "$1" | tr '[:upper:]' '[:lower:]' | tr -d ' \t')" = "$(echo "$2" | tr '[:upper:]' '[:lower:]' | tr -d ' \t')" ]
}

machine() {
    for file in product_serial chassis_serial product_uuid; do
        mine=$(cat "/sys/class/dmi/id/$file" 2>/dev/null)
        [ -n "$mine" ] || continue
        for wanted in $serials; do
            same "$mine" "$wanted" && return 0
        done
    done
    stop "this machine is not the one that it was made for ($serials)" machine
}

device() { # the kernel writes a slash of a device's name as ! (cciss!c0d0)
    echo "/dev/$(echo "$1" | tr '!' '/')"
}

whole_disks() { # that can be written to and stay: no CD, no USB stick, no virtual drive of the BMC
    for path in /sys/block/*; do
        name=${path##*/}
        case "$name" in loop* | ram* | zram* | sr* | fd* | dm-* | md* | mtdblock* | mmcblk*boot*) continue ;; esac
        [ "$(cat "$path/removable" 2>/dev/null)" = 0 ] || continue
        [ "$(cat "$path/ro" 2>/dev/null)" = 0 ] || continue
        [ "$(cat "$path/size" 2>/dev/null)" -gt 0 ] || continue
        case "$(readlink -f "$path/device" 2>/dev/null)" in */usb*) continue ;; esac
        # a path of an NVMe disk with two ports: the kernel shows it beside the disk and makes no device of it
        [ "$(cat "$path/hidden" 2>/dev/null)" != 1 ] || continue
        [ -e "$(device "$name")" ] || continue
        echo "$name"
    done
}

blank() { # the first and the last MiB: partition tables, file systems, RAID and volume labels; what can't be read is not blank
    size=$(cat "/sys/block/$1/size")
    { dd "if=$(device "$1")" bs=1M count=1 2>/dev/null &&
      dd "if=$(device "$1")" bs=512 skip=$((size > 2048 ? size - 2048 : 0)) count=2048 2>/dev/null; } > /tmp/gpuprov-ends ||
        return 1
    [ -s /tmp/gpuprov-ends ] || return 1
    [ "$(tr -d '\0' < /tmp/gpuprov-ends | wc -c)" -eq 0 ]
}

disks() {
    found=$(whole_disks)
    [ -n "$found" ] || stop "no disk was found to install on" no-disk
    if [ "$reinstall" != yes ]; then
        for name in $found; do
            blank "$name" || stop "disk $(device "$name") holds data or can't be read; say reinstall for this machine to overwrite it" data
        done
    fi
}

smallest() { # of at least 32 GB
    best='' least=0
    for name in $(whole_disks); do
        size=$(cat "/sys/block/$name/size" 2>/dev/null)
        [ "${size:-0}" -ge 62500000 ] || continue
        if [ -z "$best" ] || [ "$size" -lt "$least" ]; then best=$name least=$size; fi
    done
    [ -n "$best" ] || stop "no disk of at least 32 GB was found" small
    device "$best"
}

"$@"
