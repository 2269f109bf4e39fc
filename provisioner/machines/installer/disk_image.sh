# shellcheck shell=sh
# Runs in the initramfs in place of mounting a root file system (disk_image.py): writes a disk image to the machine's
# disk. The first MiB, with the partition table, is written last, when all the rest was there and had its SHA-256: what
# was cut short does not start. Ends with a restart from that disk, or with the machine switched off.
# shellcheck disable=SC1091,SC2154
PATH=/usr/lib/gpuprov:$PATH
. /gpuprov-target
set --
. /gpuprov-guard
. /scripts/functions

fetch() { # of this installation's server, whose certificate is known
    [ ! -f /gpuprov-ca.pem ] || set -- --cacert /gpuprov-ca.pem "$@"
    curl --silent --show-error --fail --connect-timeout 20 --keepalive-time 20 "$@"
}

tell() {
    fetch --max-time 20 -o /dev/null "$report/$1" 2>/dev/null
}

say() {
    for tty in /dev/console /dev/tty1; do
        [ -w "$tty" ] && echo "gpuprov: $1" > "$tty" 2>/dev/null
    done
}

ends() { # zeros over the partition table, and over its copy at the end
    sectors=$(cat "/sys/block/${disk##*/}/size")
    dd if=/dev/zero of="$disk" bs=1M count=1 conv=notrunc,fsync 2>/dev/null &&
        dd if=/dev/zero of="$disk" bs=512 seek=$((sectors - 2048)) count=2048 conv=notrunc,fsync 2>/dev/null
}

undo() { # why, and in a word: leave nothing that starts
    umount /target/dev 2>/dev/null
    umount /target 2>/dev/null
    ends
    stop "$1; what was on $disk is lost" "$2"
}

written() { # all but the first MiB, which stays in memory; whether it is the image
    rm -f /tmp/first /tmp/pipe /tmp/digest /tmp/whole
    mkfifo /tmp/pipe
    sha256sum < /tmp/pipe > /tmp/digest &
    summing=$!
    fetch "$report/disk.zst" | zstd -dcq | tee /tmp/pipe | {
        dd of=/tmp/first bs=1M count=1 iflag=fullblock &&
            dd of="$disk" bs=1M seek=1 iflag=fullblock conv=notrunc,fsync && echo yes > /tmp/whole
    } 2>/dev/null
    wait "$summing"
    read -r digest _ < /tmp/digest
    [ -f /tmp/whole ] && [ "$digest" = "$image_sha256" ]
}

grown() { # the last partition and its file system, to the end of the disk
    sfdisk --quiet --relocate gpt-bak-std "$disk" || return 1
    last=$(sfdisk --dump "$disk" | sed -n 's/^\(\/dev[^ ]*\) *: *start= *\([0-9]*\),.*/\2 \1/p' | sort -n | tail -n 1)
    root=${last#* }
    number=${root#"$disk"}
    echo ', +' | sfdisk --quiet --no-tell-kernel -N "${number#p}" "$disk" || return 1
    blockdev --rereadpt "$disk"
    udevadm settle --timeout=30
    [ -b "$root" ] || return 1
    [ "$(blkid -p -o value -s TYPE "$root")" = ext4 ] || return 0 # another one grows at first boot
    e2fsck -fp "$root" > /dev/null
    [ $? -le 1 ] && resize2fs "$root" > /dev/null 2>&1
}

started_by_firmware() { # an entry of its own; where the firmware keeps none, EFI/BOOT/BOOTX64.EFI is what it looks for
    mount -t efivarfs efivarfs /sys/firmware/efi/efivars 2>/dev/null
    esp=$(sfdisk --dump "$disk" | sed -n 's/^\(\/dev[^ ]*\) *:.*type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B.*/\1/p')
    esp=${esp#"$disk"}
    for old in $(efibootmgr 2>/dev/null | sed -n 's/^Boot\([0-9A-F]\{4\}\)[* ] gpuprov.*/\1/p'); do
        efibootmgr --quiet --bootnum "$old" --delete-bootnum
    done
    efibootmgr --quiet --create --disk "$disk" --part "${esp#p}" --label gpuprov --loader '\EFI\BOOT\BOOTX64.EFI' ||
        say "the firmware kept no boot entry; it has to find EFI/BOOT/BOOTX64.EFI by itself"
}

seeded() { # what it is to be called and whom it lets in, read by cloud-init; its own host key, which nobody else has
    mkdir -p /target
    mount -t "$(blkid -p -o value -s TYPE "$root")" "$root" /target || return 1
    [ -x /target/usr/bin/cloud-init ] && [ -x /target/usr/bin/ssh-keygen ] || return 1
    mkdir -p /target/var/lib/cloud/seed/nocloud
    for name in user-data meta-data network-config; do
        [ ! -f "/gpuprov-$name" ] || cp "/gpuprov-$name" "/target/var/lib/cloud/seed/nocloud/$name"
    done
    chmod 600 /target/var/lib/cloud/seed/nocloud/*
    echo "$token" > /target/etc/gpuprov-installed
    rm -f /target/etc/ssh/ssh_host_*
    mount -o bind /dev /target/dev
    chroot /target /usr/bin/ssh-keygen -q -t ed25519 -N '' -C '' -f /etc/ssh/ssh_host_ed25519_key || return 1
    cp /target/etc/ssh/ssh_host_ed25519_key.pub /tmp/host-key
    umount /target/dev && sync && umount /target
}

mkdir -p /tmp
[ -d /sys/firmware/efi ] || before_network="it was started by BIOS, and the image starts by UEFI alone: switch its boot mode"
say "asking for an address"
(configure_networking)
cat /run/net-*.conf 2>/dev/null | sed -n "s/^IPV4DNS[01]='\([1-9][0-9.]*\)'/nameserver \1/p" > /etc/resolv.conf
[ -z "${before_network:-}" ] || stop "$before_network" bios
machine
ls /run/net-*.conf > /dev/null 2>&1 || stop "no network gave it an address" network
udevadm settle --timeout=60
disks
if [ "$chosen" = by-size ]; then disk=$(smallest); else disk=$(readlink -f "$chosen"); fi
if [ ! -b "$disk" ] || [ ! -d "/sys/block/${disk##*/}" ]; then stop "there is no disk $chosen" no-disk; fi
[ $(($(cat "/sys/block/${disk##*/}/size") * 512)) -ge "$image_bytes" ] || stop "$disk is smaller than the image" small
fetch --max-time 60 --head "$report/disk.zst" > /dev/null || stop "the image can't be fetched from this computer's network" fetch

say "writing the image to $disk"
ends || undo "$disk can't be written" disk
for try in 1 2 3; do
    written && break
    [ "$try" -lt 3 ] || undo "what was fetched three times is not the image with SHA-256 $image_sha256" image
    say "what was fetched is not the image; once more"
done
dd if=/tmp/first of="$disk" bs=1M conv=notrunc,fsync 2>/dev/null || undo "$disk can't be written" disk
blockdev --rereadpt "$disk"
udevadm settle --timeout=30
grown || undo "its last partition can't be grown" system
seeded || undo "its last partition holds no system with cloud-init and sshd" system
started_by_firmware
for _ in 1 2 3 4 5 6; do
    fetch --max-time 20 --data-binary @/tmp/host-key "$report/installed" > /dev/null && reported=yes && break
    sleep 10
done
[ -n "${reported:-}" ] || say "installed, and nobody hears that it is"
say "INSTALLED: starting from $disk"
sync
sleep 1
reboot -f
sleep 3600
