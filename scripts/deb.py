#!/usr/bin/env python3
"""Builds the Debian packages sluice and sluice-dev into target/deb.

  deb.py                 for this machine's architecture
  deb.py --arch arm64    for another one, with Debian's cross compiler and the library of rustup
  deb.py --release N     of version VERSION+N, for packages of the same version that differ
  deb.py --binaries DIR  from binaries that are built already; --tools DIR has those that run here and print the manual

The same binaries give the same packages, byte by byte: times are those of SOURCE_DATE_EPOCH, or else of the commit.
"""
import argparse
import datetime
import email.utils
import gzip
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib

import manual

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGING = ROOT / "packaging"
PROGRAMS = ("sluice", "sluice-holder", "sluice-bench")
MAINTAINER = "Sluice developers <sluice@example.org>"
# Most bytes of the package, and of the daemon without symbols.
LARGEST = 30_000_000
# By Debian's names: the target of rustc, and the prefix of GNU tools, which is also the name of the folder of libraries.
ARCHITECTURES = {
    "amd64": ("x86_64-unknown-linux-gnu", "x86_64-linux-gnu"),
    "arm64": ("aarch64-unknown-linux-gnu", "aarch64-linux-gnu"),
}
# The crates that the SDK of Rust consists of.
SDK_CRATES = ("uif", "nvme", "memory", "command")
# Packages of the libraries that the programs are linked with, and the prefixes of their versions.
LIBRARIES = {"libc.so.6": ("libc6", "GLIBC"), "libm.so.6": ("libc6", "GLIBC"), "libgcc_s.so.1": ("libgcc-s1", "GCC")}
# The maintainer scripts need these.
DAEMON_NEEDS = ["passwd", "systemd | systemd-standalone-sysusers | systemd-sysusers"]


def die(text):
    sys.exit("error: %s" % text)


def run(*command, **options):
    """Runs a command; ends with its name if it fails."""
    done = subprocess.run([str(word) for word in command], **options)
    if done.returncode:
        die("`%s` failed%s" % (" ".join(map(str, command)), ": " + done.stderr.strip() if done.stderr else ", see above"))
    return done.stdout


def output(*command):
    return run(*command, capture_output=True, text=True).strip()


class Target:
    """An architecture, and the tools for it."""

    def __init__(self, name):
        if name not in ARCHITECTURES:
            die("there is no package for the architecture %s; there are %s" % (name, ", ".join(sorted(ARCHITECTURES))))
        self.name = name
        self.rust, self.gnu = ARCHITECTURES[name]
        self.is_native = name == output("dpkg", "--print-architecture")
        if not self.is_native and not shutil.which(self.tool("gcc")):
            die("%s is missing; install Debian's packages gcc-%s and libc6-dev-%s-cross" % (self.tool("gcc"), self.gnu, name))

    def tool(self, name):
        return name if self.is_native else "%s-%s" % (self.gnu, name)

    def add_library(self):
        """Has rustup fetch the standard library, if it is missing."""
        if (pathlib.Path(output("rustc", "--print", "sysroot")) / "lib/rustlib" / self.rust).exists():
            return
        done = subprocess.run(["rustup", "target", "add", self.rust])
        if done.returncode:
            die("the Rust toolchain has no library for %s, and `rustup target add %s` failed, see above" % (self.name, self.rust))

    def build(self):
        """Builds the programs. Returns their folder."""
        places = os.environ.get("CARGO_TARGET_DIR", ROOT / "target")
        command = ["cargo", "build", "--profile", "dist", *[word for name in PROGRAMS for word in ("--bin", name)]]
        if self.is_native:
            run(*command, cwd=ROOT)
            return pathlib.Path(places) / "dist"
        self.add_library()
        names = self.rust.replace("-", "_")
        tools = {
            "CARGO_TARGET_%s_LINKER" % names.upper(): self.tool("gcc"),
            "CC_" + names: self.tool("gcc"),
            "AR_" + names: self.tool("ar"),
        }
        run(*command, "--target", self.rust, cwd=ROOT, env={**os.environ, **tools})
        return pathlib.Path(places) / self.rust / "dist"


def build_tools():
    """Builds programs that run on this machine, for the manual of another one's package. Returns their folder."""
    run("cargo", "build", "--release", *[word for name in PROGRAMS for word in ("--bin", name)], cwd=ROOT)
    return pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"


class Package:
    """The files of a package, in a folder that becomes it."""

    def __init__(self, name, version, target, epoch, work):
        self.name, self.version, self.target, self.epoch = name, version, target, epoch
        self.root = work / name
        self.docs = "usr/share/doc/" + name

    def at(self, path):
        """Returns a place in the package whose folder exists."""
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def write(self, path, text, mode=0o644):
        place = self.at(path)
        place.write_bytes(text if isinstance(text, bytes) else text.encode())
        place.chmod(mode)

    def add(self, path, source, mode=0o644):
        self.write(path, pathlib.Path(source).read_bytes(), mode)

    def add_folder(self, path, source, suffixes):
        """Adds the files of a folder that git has, with these endings."""
        names = output("git", "-C", source, "ls-files").splitlines()
        for name in sorted(name for name in names if name.endswith(suffixes)):
            self.add("%s/%s" % (path, name), source / name)

    def write_compressed(self, path, text):
        """Writes a file with gzip, without its time."""
        self.write(path + ".gz", gzip.compress(text if isinstance(text, bytes) else text.encode(), 9, mtime=0))

    def add_common(self):
        """Adds the files that Debian expects in every package."""
        when = email.utils.format_datetime(datetime.datetime.fromtimestamp(self.epoch, datetime.timezone.utc))
        log = "%s (%s) unstable; urgency=medium\n\n  * CHANGELOG.md of the sources lists the changes.\n\n -- %s  %s\n"
        self.write_compressed(self.docs + "/changelog", log % (self.name, self.version, MAINTAINER, when))
        self.add(self.docs + "/copyright", PACKAGING / "copyright")
        overrides = PACKAGING / ("%s.lintian-overrides" % self.name)
        if overrides.exists():
            self.add("usr/share/lintian/overrides/" + self.name, overrides)
        for script in ("postinst", "prerm", "postrm"):
            source = PACKAGING / ("%s.%s" % (self.name, script))
            if source.exists():
                self.add("DEBIAN/" + script, source, 0o755)

    def write_control(self, depends):
        """Writes the control files, which describe all other files of the package."""
        files = sorted(path for path in self.root.rglob("*") if path.is_file() and path.relative_to(self.root).parts[0] != "DEBIAN")
        sums = "".join("%s  %s\n" % (hashlib.md5(path.read_bytes()).hexdigest(), path.relative_to(self.root)) for path in files)
        self.write("DEBIAN/md5sums", sums)
        conffiles = ["/%s\n" % path.relative_to(self.root) for path in files if path.relative_to(self.root).parts[0] == "etc"]
        if conffiles:
            self.write("DEBIAN/conffiles", "".join(conffiles))
        name, fields = (PACKAGING / ("control." + self.name)).read_text().split("\n", 1)
        fields = fields.replace("@HOMEPAGE@", workspace()["repository"])
        installed = sum(-(-path.stat().st_size // 1024) for path in files)
        own = {"Version": self.version, "Architecture": self.target.name, "Maintainer": MAINTAINER, "Installed-Size": installed}
        lines = ["%s: %s\n" % field for field in own.items()] + ["Depends: %s\n" % ", ".join(depends)] * bool(depends)
        self.write("DEBIAN/control", "%s\n%s%s" % (name, "".join(lines), fields))

    def pack(self, folder):
        """Makes the package file, and returns its path."""
        for path in [self.root, *self.root.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)
        file = folder / ("%s_%s_%s.deb" % (self.name, self.version, self.target.name))
        folder.mkdir(parents=True, exist_ok=True)
        run("dpkg-deb", "--root-owner-group", "-Zxz", "--build", self.root, file, stdout=subprocess.DEVNULL,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(self.epoch)})
        return file


def workspace():
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]


def shared_libraries(target, programs):
    """Returns the packages of the libraries that programs need, with their least versions, as dpkg-shlibdeps does.
    dpkg-shlibdeps itself needs the libraries of another architecture as installed packages."""
    least = {}
    for program in programs:
        text = output(target.tool("readelf"), "--dynamic", "--version-info", "--wide", program)
        for library in re.findall(r"\(NEEDED\).*\[(.*)\]", text):
            if library.startswith("ld-linux"):
                continue
            if library not in LIBRARIES:
                die("%s is linked with %s, and scripts/deb.py has no package for it" % (program, library))
            package, prefix = LIBRARIES[library]
            versions = [tuple(map(int, version.split("."))) for version in re.findall(r"\b%s_([0-9.]+)" % prefix, text)]
            least[package] = max([least.get(package, (0,)), *versions])
    return sorted("%s (>= %s)" % (name, without_zeros(version)) for name, version in least.items())


def without_zeros(version):
    """Returns a version without zeros at its end, as packages have it: 12 for 12.0.0."""
    return re.sub(r"(\.0)+$", "", ".".join(map(str, version)))


def make_daemon(package, binaries, tools):
    """Fills the package of the daemon and returns its dependencies."""
    for name in PROGRAMS:
        package.add("usr/bin/" + name, binaries / name, 0o755)
        run(package.target.tool("strip"), "--remove-section=.comment", package.root / "usr/bin" / name)
    for unit in ("sluice.service", "sluice-holder.service"):
        package.add("usr/lib/systemd/system/" + unit, PACKAGING / unit)
    package.add("usr/lib/sysusers.d/sluice.conf", PACKAGING / "sluice.sysusers")
    package.add("etc/sluice/sluice.toml", PACKAGING / "sluice.toml")
    for source in sorted((ROOT / "classifiers").glob("*.c")):
        options = ["-target", "bpf", "-O2", "-g", "-mcpu=v3", "-fdebug-compilation-dir=.", "-I", "crates/ebpf/include"]
        place = package.at("usr/lib/sluice/%s.o" % source.stem)
        run("clang", *options, "-c", source.relative_to(ROOT), "-o", place, cwd=ROOT)
        place.chmod(0o644)
    package.write_compressed(package.docs + "/CHANGELOG.md", (ROOT / "CHANGELOG.md").read_bytes())
    for page in ("install.md", "upgrade.md"):
        package.add("%s/%s" % (package.docs, page), ROOT / "docs/howto" / page)
    package.add_folder(package.docs + "/examples", ROOT / "examples", (".toml", ".xml", ".md"))
    with tempfile.TemporaryDirectory() as pages:
        run(tools / "sluice", "manual", pages)
        # Its page of `sluice bench` replaces that of `sluice`, which hands the arguments over.
        run(tools / "sluice-bench", "manual", pages)
        for page in sorted(pathlib.Path(pages).iterdir()):
            package.write_compressed("usr/share/man/man1/" + page.name, page.read_bytes())
    package.write_compressed("usr/share/man/man1/sluice-holder.1", (PACKAGING / "sluice-holder.1").read_bytes())
    page = manual.page(ROOT / "docs/reference/configuration.md", "sluice.toml", "5", "configuration of the Sluice daemon")
    package.write_compressed("usr/share/man/man5/sluice.toml.5", page)
    for shell, path in (("bash", "bash-completion/completions/sluice"), ("zsh", "zsh/vendor-completions/_sluice"),
                        ("fish", "fish/vendor_completions.d/sluice.fish")):
        package.write("usr/share/" + path, run(tools / "sluice", "completions", shell, capture_output=True))
    return [*DAEMON_NEEDS, *shared_libraries(package.target, [binaries / name for name in PROGRAMS])]


def make_sdk(package, work):
    """Fills the package of the SDK."""
    package.add("usr/include/sluice.h", ROOT / "crates/ebpf/include/sluice.h")
    for header in ("sluice_uif.h", "sluice_uif_abi.h"):
        package.add("usr/include/" + header, ROOT / "sdk/c" / header)
    objects = work / "c"
    run("make", "-s", "-C", ROOT / "sdk/c", "BUILD=%s" % objects, objects / "libsluice_uif.a", stdout=subprocess.DEVNULL,
        env={**os.environ, "CC": package.target.tool("gcc"), "AR": package.target.tool("ar"), "CFLAGS": "-O2"})
    library = "usr/lib/%s/libsluice_uif.a" % package.target.gnu
    # The archive's members have no times.
    run(package.target.tool("strip"), "--strip-debug", "--enable-deterministic-archives", objects / "libsluice_uif.a")
    package.add(library, objects / "libsluice_uif.a")
    package.add_folder(package.docs + "/examples/c", ROOT / "sdk/c/examples", (".c",))
    package.add_folder(package.docs + "/examples/python", ROOT / "sdk/python/examples", (".py",))
    package.add_folder(package.docs + "/examples/classifiers", ROOT / "classifiers", (".c",))
    package.add_folder("usr/lib/python3/dist-packages/sluice_uif", ROOT / "sdk/python/sluice_uif", (".py", ".typed"))
    # The folders of Rust lie as they do in the sources, so that the template finds the crates.
    rust = "usr/share/sluice"
    package.add(rust + "/Cargo.toml", ROOT / "Cargo.toml")
    package.add_folder(rust + "/sdk/rust/template", ROOT / "sdk/rust/template", (".toml", ".rs"))
    for name in SDK_CRATES:
        package.add("%s/crates/%s/Cargo.toml" % (rust, name), ROOT / "crates" / name / "Cargo.toml")
        package.add_folder("%s/crates/%s/src" % (rust, name), ROOT / "crates" / name / "src", (".rs",))
    return []


def check_size(file, package):
    """Ends with an error if the package or its daemon is too large."""
    for path in (file, package.root / "usr/bin/sluice"):
        if path.stat().st_size > LARGEST:
            die("%s has %d bytes, and may have %d" % (path.name, path.stat().st_size, LARGEST))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", default=output("dpkg", "--print-architecture"))
    parser.add_argument("--binaries", type=pathlib.Path)
    parser.add_argument("--tools", type=pathlib.Path)
    parser.add_argument("--release")
    parser.add_argument("--into", type=pathlib.Path, default=ROOT / "target/deb")
    arguments = parser.parse_args()
    target = Target(arguments.arch)
    binaries = arguments.binaries or target.build()
    tools = arguments.tools or (binaries if target.is_native else build_tools())
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or output("git", "-C", ROOT, "log", "-1", "--format=%ct"))
    version = workspace()["version"] + ("+" + arguments.release if arguments.release else "")
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        for name in ("sluice", "sluice-dev"):
            package = Package(name, version, target, epoch, work)
            depends = make_daemon(package, binaries, tools) if name == "sluice" else make_sdk(package, work)
            package.add_common()
            package.write_control(depends)
            file = package.pack(arguments.into)
            # Other profiles make larger programs.
            if name == "sluice" and not arguments.binaries:
                check_size(file, package)
            print(file)


if __name__ == "__main__":
    main()
