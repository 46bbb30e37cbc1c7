#!/usr/bin/env bash
# Makes what a throw-away guest boots, out of unmodified Debian packages; no root, nothing installed.
# usage: mkguest.sh 6.1|6.12|7.3   prints a folder holding kernel (for -kernel), modules.cpio, release
#        mkguest.sh tools          prints a folder holding tools.cpio: nvme-cli, fio, mkfs, busybox ...
# The two are apart because the tools are the same for every kernel. guest.py puts them together.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/../../scripts/lib.sh"

PACKAGES=(busybox-static fio nvme-cli ktls-utils keyutils e2fsprogs xfsprogs util-linux pciutils dash dmsetup cryptsetup-bin)
PROGRAMS=(usr/bin/fio usr/sbin/nvme usr/sbin/mke2fs usr/sbin/e2fsck usr/sbin/mkfs.xfs usr/sbin/xfs_repair
          usr/sbin/blkdiscard usr/bin/lspci usr/bin/setpci usr/bin/dash usr/sbin/dmsetup usr/sbin/cryptsetup usr/sbin/tlshd usr/bin/keyctl)
MODULES=(nvme nvme-core nvme-fabrics nvme-tcp xfs ext4 vfio-pci vfio_iommu_type1 uio_pci_generic
         loop brd null_blk dm-mod dm-log-writes dm-crypt dm-mirror aesni-intel xts ecb gcm ghash_generic ctr sha256_generic algif_skcipher
         vhost_scsi target_core_file target_core_iblock nvmet nvmet-tcp nvme-loop tls virtio_pci virtio_blk virtio_net virtio_scsi virtio_balloon crc32c_generic crc32c-intel)
# Closure members whose files no program above needs (fio alone asks for half of Ceph).
UNNEEDED='^(perl.*|libperl.*|python3.*|libpython3.*|dpkg|passwd|adduser|login.*|debconf|systemd.*|coreutils|libicu.*|media-types|netbase|tzdata|ca-certificates|openssl.*|mailcap|mime-support)='

make_tools() {
  local dest=$1
  say "making the guest's tools"
  apt_private
  apt_closure trixie "${PACKAGES[@]}" > "$dest/packages"
  grep -Ev "$UNNEEDED" "$dest/packages" | apt_unpack "$dest/root"
  python3 "$HERE/mkinitramfs.py" tools "$dest/root" "$dest/tools.cpio" "${PROGRAMS[@]}" >&2
  rm -rf "$dest/root"
}

# newest_kernel REGEX : the newest package of that kernel series
newest_kernel() { apt-cache pkgnames linux- | grep -E "^$1\$" | grep -v -e dbg -e unsigned | sort -V | tail -n 1; }

make_kernel() {
  local dest=$1 name packages moddir
  say "making the guest kernel $KERNEL"
  apt_private
  case $KERNEL in
    6.1)  name=$(newest_kernel 'linux-image-6\.1\.0-.*-cloud-amd64'); packages=$name ;;
    6.12) name=$(newest_kernel 'linux-image-6\.12\..*-cloud-amd64'); packages=$name ;;
    7.3)  name=$(newest_kernel 'linux-binary-7\..*-cloud-amd64'); packages="$name ${name/binary/modules} ${name/binary/base}" ;;
  esac
  [ -n "$name" ] || die "Debian has no cloud kernel $KERNEL (any more)"
  for name in $packages; do
    apt-cache show "$name" | awk '/^Version:/ {v = $2} /^Filename:/ {print v, $2; exit}' |
      { read -r version file; echo "$name=$version ${name}_${version/:/%3a}_amd64.deb"; }
  done | apt_unpack "$dest/root"
  moddir=$(find "$dest/root/usr/lib/modules" -mindepth 1 -maxdepth 1 -type d -name '*cloud-amd64' | head -n 1)
  basename "$moddir" > "$dest/release"
  python3 "$HERE/mkinitramfs.py" kernel "$(find "$dest/root" -name 'vmlinuz*' -type f | head -n 1)" "$dest/kernel" >&2
  python3 "$HERE/mkinitramfs.py" modules "$moddir" "$dest/modules.cpio" "${MODULES[@]}" >&2
  rm -rf "$dest/root"
}

hash=$(content_hash "$HERE/../../scripts/lib.sh" "$HERE"/{mkguest.sh,mkinitramfs.py,cpio.py})
case ${1:-} in
  tools) built_once "guest-tools-$hash" make_tools ;;
  6.1|6.12|7.3) KERNEL=$1; built_once "guest-$KERNEL-$hash" make_kernel ;;
  *) die "usage: mkguest.sh 6.1|6.12|7.3|tools" ;;
esac
