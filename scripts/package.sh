#!/usr/bin/env bash
# Builds the packages, checks them, and installs the daemon's: in a fresh Debian with systemd, in a guest; in a Debian with libvirt;
# and in a container. All of it follows the pages of docs/howto. usage: package.sh [--binaries DIR]
# Without DIR the programs are built in the profile `dist`. The last line is "N passed, N failed".
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/package-lib.sh"
PATH=$HOME/.cargo/bin:$PATH:/usr/sbin
ROOT=$HERE/..
SUITE=bookworm
# with_root COMMAND... : as root, or as the root of a user namespace
with_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else unshare --user --map-root-user --map-auto --mount "$@"; fi
}

# What the packages need, as an archive. The lists of packages go, so that nothing else can be installed.
fresh_root() {
  say "making a fresh Debian $SUITE"
  mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,udev,kmod,nvme-cli,passwd \
    "$SUITE" "$1/root.tar" "deb [signed-by=$(debian_keyring)] $(debian_mirror) $SUITE main" >&2
}

# The same with libvirt, and a QEMU that has vfio-user.
libvirt_root() {
  local keyring mirror; keyring=$(debian_keyring) mirror=$(debian_mirror)
  say "making a Debian with libvirt"
  mmdebstrap --quiet --variant=minbase --aptopt='APT::Default-Release "trixie-backports"' --customize-hook='rm "$1"/etc/apt/apt.conf.d/99mmdebstrap' \
    --include=libvirt-daemon,libvirt-daemon-driver-qemu,libvirt-clients,libxml2-utils,qemu-system-x86,qemu-utils,procps,passwd,systemd-standalone-sysusers \
    trixie "$1/root.tar" "deb [signed-by=$keyring] $mirror trixie main" "deb [signed-by=$keyring] $mirror trixie-backports main" >&2
}

# What the image of the Containerfile has.
container_base() {
  say "making a small Debian $SUITE"
  mmdebstrap --quiet --variant=minbase "$SUITE" "$1/root.tar" "deb [signed-by=$(debian_keyring)] $(debian_mirror) $SUITE main" >&2
}

# disk_image FILE FOLDER : a file system with the fresh Debian, with the files of FOLDER in /root
disk_image() {
  local tree; tree=$(mktemp -d -p "$work" tree.XXXXXX)
  tar -x -C "$tree" -f "$root" --exclude='./dev/*'
  cp -r "$2/." "$tree/root/"
  cp "$ROOT/tests/package/package-test.service" "$tree/etc/systemd/system/"
  ln -s /etc/systemd/system/package-test.service "$tree/etc/systemd/system/multi-user.target.wants/"
  # Names of the machine, a clock and a terminal are not needed.
  ln -sf /dev/null "$tree/etc/systemd/system/getty.target"
  echo 'Storage=volatile' >> "$tree/etc/systemd/journald.conf"
  truncate -s 1G "$1"
  mkfs.ext4 -q -F -E lazy_itable_init=0 -d "$tree" "$1"
  rm -rf "$tree"
}

same() { local file; for file in "$1"/*.deb; do cmp "$file" "$2/$(basename "$file")"; done; }

# The dependencies are those that dpkg-shlibdeps finds.
right_dependencies() {
  local found; mkdir -p "$work/dependencies/debian"
  printf 'Source: sluice\n\nPackage: sluice\nArchitecture: any\n' > "$work/dependencies/debian/control"
  found=$(cd "$work/dependencies" && dpkg-shlibdeps -O "$work"/unpacked/usr/bin/* 2>/dev/null)
  found=${found#shlibs:Depends=}
  dpkg-deb -f "$1"/sluice_*.deb Depends | grep -F "$found" || { echo "dpkg-shlibdeps found: $found"; return 1; }
}

pages_are_right() {
  local page text
  for page in "$work"/unpacked/usr/share/man/man*/*.gz; do
    text=$(MANROFFSEQ=t LC_ALL=C.UTF-8 MANWIDTH=100 man --warnings -E UTF-8 -l "$page" 2>&1 >/dev/null)
    [ -z "$text" ] || { echo "$(basename "$page"): $text"; return 1; }
  done
}

scripts_are_right() {
  local share=$work/unpacked/usr/share
  bash -n "$share/bash-completion/completions/sluice"
  ! command -v zsh >/dev/null || zsh -n "$share/zsh/vendor-completions/_sluice"
  ! command -v fish >/dev/null || fish --no-execute "$share/fish/vendor_completions.d/sluice.fish"
}

completion_works() {
  bash -c '. "$0"; COMP_WORDS=(sluice dri) COMP_CWORD=1; _sluice sluice dri sluice; [ "${COMPREPLY[*]}" = drive ]' \
    "$work/unpacked/usr/share/bash-completion/completions/sluice"
}

is_exposed_little() {
  local text; text=$(systemd-analyze security --offline=true --threshold="$2" "$ROOT/packaging/$1" 2>&1) || { tail -n 3 <<<"$text"; return 1; }
}

sdk_of_c() {
  cc -std=c11 -Wall -Werror -isystem "$work/sdk/usr/include" -o "$work/xor" "$work/sdk/usr/share/doc/sluice-dev/examples/c/xor.c" \
    -L "$(dirname "$work"/sdk/usr/lib/*/libsluice_uif.a)" -lsluice_uif
}

sdk_of_python() { PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$work/sdk/usr/lib/python3/dist-packages python3 -c 'import sluice_uif; sluice_uif.Function'; }

sdk_of_classifiers() {
  local name
  for name in observe encrypt replicate snapshot; do
    clang -target bpf -O2 -g -mcpu=v3 -I "$work/sdk/usr/include" -c "$work/sdk/usr/share/doc/sluice-dev/examples/classifiers/$name.c" -o "$work/install/$name.o"
  done
}

sdk_of_rust() {
  cp -r "$work/sdk/usr/share/sluice" "$work/rust"
  cp "$ROOT/Cargo.lock" "$work/rust/sdk/rust/template/"
  CARGO_TARGET_DIR=$work/rust-target cargo metadata --quiet --offline --format-version 1 --manifest-path "$work/rust/sdk/rust/template/Cargo.toml"
}

work=$(mktemp -d "${TMPDIR:-/dev/shm}/sluice-package.XXXXXX"); trap 'rm -rf "$work"' EXIT
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$ROOT" log -1 --format=%ct)}
"$HERE/setup.sh" package
"$HERE/deb.py" "$@" --into "$work/first"
"$HERE/deb.py" "$@" --into "$work/second"
mkdir "$work/unpacked" "$work/sdk" "$work/install"
dpkg-deb -x "$work"/first/sluice_*.deb "$work/unpacked"
dpkg-deb -x "$work"/first/sluice-dev_*.deb "$work/sdk"
check "two packages of the same programs are identical" same "$work/first" "$work/second"
check "lintian has nothing to report" no_errors "$work/first"
check "the dependencies are right" right_dependencies "$work/first"
check "the pages of the manual are right" pages_are_right
check "the completions are scripts" scripts_are_right
check "a completion completes" completion_works
check "the unit exposes little" is_exposed_little sluice.service 25
check "the unit of the holder exposes less" is_exposed_little sluice-holder.service 15
check "the SDK of C" sdk_of_c
check "the SDK of Python" sdk_of_python
check "the SDK of Rust" sdk_of_rust
check "the header of classifiers" sdk_of_classifiers
cp "$work"/first/sluice_*.deb "$ROOT/docs/howto/install.md" "$work/install"
"$HERE/deb.py" "$@" --release 1 --into "$work/newer"
mkdir "$work/install/newer" && cp "$work"/newer/sluice_*.deb "$work/install/newer"
root=$(archive package-root fresh_root)
export -f disk_image; export work root ROOT
with_root bash -euc 'disk_image "$@"' - "$work/disk" "$work/install"
also python3 "$ROOT/tests/package/boot.py" "$work/disk"
mkdir "$work/container" && cp "$work"/first/sluice_*.deb "$work/container"
also with_root unshare --mount python3 "$ROOT/tests/package/libvirt.py" "$(archive package-libvirt libvirt_root)" "$work"/first/sluice_*.deb
also with_root unshare --mount python3 "$ROOT/tests/package/container.py" "$(archive package-container container_base)" "$work/container"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
