# shellcheck shell=sh
# Runs as root in the root file system of an image, with the EFI system partition at /boot/efi: has its bootloader,
# kernel and initramfs put there, by the distribution's own packages.
# GPUPROV_ROOT: UUID of the root file system; GPUPROV_ESP: volume id of the EFI system partition.
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C SYSTEMD_RELAX_ESP_CHECKS=1

cat >/etc/fstab <<END
UUID=$GPUPROV_ROOT / ext4 defaults,errors=remount-ro 0 1
UUID=$GPUPROV_ESP /boot/efi vfat umask=0077,nofail 0 2
END

# Boot entries are named after the image: a machine-id is made at first boot (machine-id(5)), and is none of theirs.
mkdir -p /etc/kernel
echo gpuprov >/etc/kernel/entry-token
printf 'layout=bls\nBOOT_ROOT=/boot/efi\n' >/etc/kernel/install.conf
echo "root=UUID=$GPUPROV_ROOT ro console=tty0 console=ttyS0,115200n8" >/etc/kernel/cmdline

bootctl install --esp-path=/boot/efi --no-variables --quiet
found=
for kernel in /boot/vmlinuz-*; do
  version=${kernel#/boot/vmlinuz-}
  [ -d "/lib/modules/$version" ] || continue
  # What the roles wrote to modprobe.d (nouveau, for one) belongs into it; the package's hook puts both into the partition.
  # One that has it already stays: emulated processors make another in ten minutes.
  initrd=/boot/initrd.img-$version
  newer=$(find /etc/modprobe.d /usr/lib/modprobe.d /etc/initramfs-tools /usr/share/initramfs-tools \
    "/lib/modules/$version/updates" -newer "$initrd" -print -quit 2>/dev/null) || newer=unknown
  [ -z "$newer" ] || update-initramfs -c -k "$version" >/dev/null
  [ -f "/boot/efi/loader/entries/gpuprov-$version.conf" ] || kernel-install add "$version" "$kernel" "$initrd"
  [ -f "/boot/efi/loader/entries/gpuprov-$version.conf" ]
  found=$version
done
if [ -z "$found" ]; then
  echo "no kernel is installed in /boot" >&2
  exit 1
fi
# a seed of random numbers that all machines would share
rm -f /boot/efi/loader/random-seed
: >/etc/machine-id
echo "$found"
