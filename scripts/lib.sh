# Shared by the scripts that fetch things. Source it; it runs nothing by itself.
#
# What is fetched lives in one cache folder, each thing in a folder named after a hash of
# the scripts that made it: a folder that exists is complete and up to date.

shopt -s inherit_errexit  # without it a failure inside $(...) goes unnoticed

SLUICE_CACHE=${SLUICE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/sluice}

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# content_hash FILE... : the same files, the same word
content_hash() { cat "$@" | sha256sum | cut -c1-12; }

# built_once NAME FUNCTION : prints the folder of NAME, after `FUNCTION TMPDIR` has filled it.
# Safe against two at a time (flock) and against being interrupted (rename comes last).
built_once() {
  local name=$1 build=$2 dest=$SLUICE_CACHE/$1 tmp
  mkdir -p "$SLUICE_CACHE"
  if [ ! -d "$dest" ]; then
    exec 8>"$SLUICE_CACHE/.lock-${name%-*}"
    flock -n 8 || { say "  waiting for another build of ${name%-*}"; flock 8; }
    if [ ! -d "$dest" ]; then
      rm -rf "$SLUICE_CACHE/.build-${name%-*}".*  # left by an interrupted run; we hold the lock
      tmp=$(mktemp -d "$SLUICE_CACHE/.build-${name%-*}.XXXXXX")
      "$build" "$tmp"  # not in a condition: set -e must keep working inside
      chmod 755 "$tmp"
      mv "$tmp" "$dest"
    fi
    exec 8>&-
    # what older scripts made and nobody has used for a week
    find "$SLUICE_CACHE" -maxdepth 1 -name "${name%-*}-*" -mtime +7 -exec rm -rf {} +
  fi
  touch "$dest"
  printf '%s\n' "$dest"
}

# --- Debian packages without installing anything -------------------------------------------
# A private apt with an empty package database: no root, the machine's own mirror, nothing of
# the system is touched. Packages are checked against Debian's keyring as usual.

# the Debian mirror this machine already uses
debian_mirror() {
  local all
  all=$(apt-get indextargets --format '$(REPO_URI) $(LABEL)' 'Created-By: Packages')
  # by its label; before the first `apt-get update` there are no labels, so then by its looks
  { awk '$2 == "Debian"' <<<"$all"; grep -E '/debian/? ' <<<"$all"; } | awk 'NR == 1 {print $1}'
}

debian_keyring() {
  local k
  for k in /usr/share/keyrings/debian-archive-keyring.{gpg,pgp}; do
    [ -r "$k" ] && { echo "$k"; return; }
  done
  die "no Debian archive keyring; install the package debian-archive-keyring"
}

# apt_private : sets APT_CONFIG and APT_DIR to the private apt, its lists at most a day old
apt_private() {
  local mirror keyring suite
  [ -z "${APT_DIR:-}" ] || return 0
  mirror=$(debian_mirror); keyring=$(debian_keyring)
  [ -n "$mirror" ] || die "apt knows no Debian mirror; these scripts need a Debian machine with apt sources"
  APT_DIR=$SLUICE_CACHE/apt
  mkdir -p "$APT_DIR"/{etc,state/lists/partial,cache/archives/partial,debs}
  exec 7>"$APT_DIR/lock"; flock 7  # held until this process ends: one user of the lists at a time
  : > "$APT_DIR/status"
  for suite in bookworm trixie trixie-backports; do
    echo "deb [arch=amd64 signed-by=$keyring] $mirror $suite main"
  done > "$APT_DIR/etc/sources.list"
  cat > "$APT_DIR/apt.conf" <<-CONF
	Dir::Etc "$APT_DIR/etc"; Dir::Etc::sourcelist "$APT_DIR/etc/sources.list"; Dir::Etc::sourceparts "/dev/null";
	Dir::Etc::preferencesparts "/dev/null"; Dir::Etc::preferences "/dev/null"; Dir::Etc::parts "/dev/null"; Dir::Etc::main "/dev/null";
	Dir::State "$APT_DIR/state"; Dir::State::status "$APT_DIR/status"; Dir::Cache "$APT_DIR/cache";
	APT::Architecture "amd64"; APT::Architectures { "amd64"; }; APT::Install-Recommends "false"; APT::Sandbox::User "";
	Debug::NoLocking "true"; Acquire::Languages "none"; Acquire::Retries "3";
	CONF
  export APT_CONFIG=$APT_DIR/apt.conf
  if [ -z "$(find "$APT_DIR/updated" -mtime -1 2>/dev/null)" ]; then
    say "  reading Debian's package lists"
    apt-get -qq update >&2
    find "$APT_DIR/debs" -type f -mtime +7 -delete
    touch "$APT_DIR/updated"
  fi
}

# apt_closure SUITE PACKAGE... : "name=version file" of every package an installation would add
apt_closure() {
  local suite=$1; shift
  apt-get -qq -y --print-uris -t "$suite" install "$@" | awk '{
    n = split($2, part, "_"); v = part[2]
    gsub("%3a", ":", v); gsub("%2b", "+", v); gsub("%7e", "~", v)
    print part[1] "=" v, $2 }'
}

# apt_unpack ROOT < "name=version file" lines : download (once) and unpack below ROOT
apt_unpack() {
  local root=$1 spec file want=() files=()
  while read -r spec file; do
    files+=("$APT_DIR/debs/$file")
    [ -e "$APT_DIR/debs/$file" ] || want+=("$spec")
  done
  if [ ${#want[@]} -gt 0 ]; then
    say "  downloading ${#want[@]} packages"
    if ! ( cd "$APT_DIR/debs" && apt-get -qq download "${want[@]}" >&2 ); then
      rm -f "$APT_DIR/updated"  # the mirror may have moved on since the lists were read
      die "a download failed (see above); run the same command again"
    fi
  fi
  # merged /usr, so that packages that still use /lib and /bin land in one place
  mkdir -p "$root"/usr/{bin,sbin,lib,lib64}
  for file in bin sbin lib lib64; do [ -e "$root/$file" ] || ln -s "usr/$file" "$root/$file"; done
  for file in "${files[@]}"; do
    dpkg-deb --fsys-tarfile "$file" | tar -x -C "$root" --keep-directory-symlink --no-same-owner \
      --exclude='./usr/share/doc*' --exclude='./usr/share/man*' --exclude='./usr/share/locale*'
  done
}
