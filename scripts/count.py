#!/usr/bin/env python3
"""Counts how much code a storage function is, as a stranger would: lines that are neither blank nor comments, without
tests. Modules that several functions stand on are shown, and not counted with any of them.

  count.py            the table; fails if something is larger than it may be
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# What, the most lines it may have (none: shown only), what the NVMetro paper has, its files.
ROWS = (
    ("encrypt: classifier", 32, 32, ["classifiers/encrypt.c"]),
    ("encrypt: function", 300, 520, ["crates/functions/src/services/encrypt"]),
    ("encrypt: shared: ciphers, keys, LUKS2", None, None, ["crates/crypt/src"]),
    ("replicate: classifier", 16, 16, ["classifiers/replicate.c"]),
    ("replicate: function", 300, 307, ["crates/functions/src/services/replicate/mod.rs", "crates/functions/src/services/replicate/control.rs"]),
    ("replicate: shared: members, with mirror", None, None,
     ["crates/functions/src/services/replicate/member.rs", "crates/functions/src/services/replicate/read.rs",
      "crates/functions/src/services/replicate/order.rs", "crates/functions/src/services/replicate/wire.rs",
      "crates/functions/src/services/replicate/jobs.rs"]),
    ("replicate: shared: redundancy", None, None, ["crates/redundancy/src"]),
    ("parity: function", None, None, ["crates/functions/src/services/parity"]),
    ("snapshot: classifier", 200, 217, ["classifiers/snapshot.c"]),
    ("snapshot: function", 1320, 1634, ["crates/functions/src/services/snapshot"]),
    ("snapshot: shared: the store", None, None, ["crates/functions/src/services/store"]),
    ("observe: classifier", None, None, ["classifiers/observe.c"]),
    ("SDK for functions in Rust", 1081, 1116,
     ["crates/uif/src/%s.rs" % name for name in ("abi", "function", "handshake", "io", "lib", "program", "ring", "sandbox",
                                                 "serve", "session", "socket", "wire")]),
    ("SDK: shared with the daemon: calls", None, None, ["crates/uif/src/direct.rs", "crates/uif/src/state.rs"]),
)


def sources(places):
    """The files of a row that are there, without tests."""
    found = []
    for place in (ROOT / place for place in places):
        if place.is_dir():
            found += [path for path in sorted(place.rglob("*.rs")) if "tests" not in path.relative_to(ROOT).with_suffix("").parts]
        elif place.exists():
            found.append(place)
    return found


def code_lines(path):
    """Lines of code; of Rust, up to the module of tests that ends a file."""
    text = path.read_text()
    if path.suffix == ".rs":
        text = re.split(r"^#\[cfg\(test\)\]\n(?:pub )?mod \w+ \{$", text, maxsplit=1, flags=re.M)[0]
        text = re.sub(r"^#\[cfg\(test\)\]\nmod \w+;$", "", text, flags=re.M)
    text = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment.group().count("\n"), text, flags=re.S)
    return sum(1 for line in text.splitlines() if line.strip() and not line.strip().startswith("//"))


def main():
    too_large = []
    print("%-40s %6s %6s %6s" % ("", "LINES", "LIMIT", "PAPER"))
    for what, limit, paper, places in ROWS:
        files = sources(places)
        lines = sum(map(code_lines, files))
        if limit and lines > limit:
            too_large.append("%s has %d lines, and may have %d" % (what, lines, limit))
        shown = [str(number) if number else "-" for number in (lines if files else None, limit, paper)]
        print("%-40s %6s %6s %6s" % (what, *shown))
    for complaint in too_large:
        print("too large: %s" % complaint)
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main())
