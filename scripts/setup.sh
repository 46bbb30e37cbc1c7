#!/usr/bin/env bash
# Installs what a fresh Debian 12 or 13 lacks for building and testing; says nothing when all is there.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
. "$HERE/lib.sh"
PATH=$HOME/.cargo/bin:$PATH:/usr/sbin
NEEDED_RUST=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$HERE/../Cargo.toml")

# command package : the package is installed when the command is not there
TOOLS='cc build-essential
make build-essential
ld binutils
strip binutils
readelf binutils
pkg-config pkg-config
python3 python3
zstd zstd
xz xz-utils
clang clang
cryptsetup cryptsetup-bin
flock util-linux
git git'
# What `make deb` and its test need, too: setup.sh package [ARCHITECTURE]
PACKAGE_TOOLS='lowdown lowdown
lintian lintian
mmdebstrap mmdebstrap
dpkg-shlibdeps dpkg-dev
mkfs.ext4 e2fsprogs
podman podman
runc runc
jq jq'
ARM64_TOOLS='aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
aarch64-linux-gnu-gcc libc6-dev-arm64-cross
qemu-system-aarch64 qemu-system-arm'
[ "${1:-}" != package ] || TOOLS="$TOOLS
$PACKAGE_TOOLS"
[ "${2:-}" != arm64 ] || [ "$(dpkg --print-architecture)" = arm64 ] || TOOLS="$TOOLS
$ARM64_TOOLS"

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else die "this needs root and there is no sudo; as root, run: $*"; fi
}

install() {
  command -v apt-get >/dev/null || die "missing: $*. This script can only install them on Debian; install them by hand"
  say "installing: $*"
  local log
  log=$(mktemp)
  if ! { as_root apt-get -qq update &&
         as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$@"; } > "$log" 2>&1; then
    tail -n 20 "$log" >&2
    die "the installation failed; the whole log is in $log"
  fi
  rm -f "$log"
}

missing_tools() {
  local command package
  while read -r command package; do
    command -v "$command" >/dev/null || echo "$package"
  done <<<"$TOOLS" | sort -u
  [ -e /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates  # for cargo and rustup
  python3 -c "import ensurepip" 2>/dev/null || echo python3-venv  # for scripts/api.sh
}

rust_is_enough() {
  local have
  have=$(cargo --version 2>/dev/null | awk '{print $2}') || return 1
  [ -n "$have" ] && [ "$(printf '%s\n' "$NEEDED_RUST" "$have" | sort -V | head -n 1)" = "$NEEDED_RUST" ]
}

install_rust() {
  if ! command -v rustup >/dev/null; then
    apt-cache show rustup >/dev/null 2>&1 || die "Rust $NEEDED_RUST or newer is needed, and this Debian has no package 'rustup'.
  Install rustup as the Rust project's home page says, then run this again."
    install rustup
  fi
  say "installing Rust with rustup"
  rustup -q toolchain install stable --profile minimal -c rustfmt -c clippy >&2 || die "rustup could not fetch Rust, see above"
  rustup -q default stable >&2
  rust_is_enough || die "Rust $NEEDED_RUST or newer is needed, found: $(cargo --version)"
}

mapfile -t packages < <(missing_tools)
[ ${#packages[@]} = 0 ] || install "${packages[@]}"
rust_is_enough || install_rust
