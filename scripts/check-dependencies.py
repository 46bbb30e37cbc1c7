#!/usr/bin/env python3
"""Checks every dependency against deny.toml: its licence, its source, the banned packages, and second versions.

  check-dependencies.py           a second; used by `make test`. Runs cargo-deny, too, where that is installed
  check-dependencies.py --install builds cargo-deny first, which takes minutes

cargo-deny reads the same file. Its check of advisories needs a database from the network: `cargo deny check advisories`.
"""
import collections
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def is_allowed(expression, allow):
    """True if an SPDX expression can be satisfied. `/` is an old spelling of OR."""
    expression = expression.strip().replace("/", " OR ")
    while expression.startswith("(") and closes_at_end(expression):
        expression = expression[1:-1].strip()
    for operator, combine in ((" OR ", any), (" AND ", all)):
        parts = split_outside(expression, operator)
        if len(parts) > 1:
            return combine(is_allowed(part, allow) for part in parts)
    return expression in allow


def closes_at_end(text):
    """True if the parenthesis that opens `text` is the one that ends it."""
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return position == len(text) - 1
    return False


def split_outside(text, separator):
    """Splits at `separator` wherever no parenthesis is open."""
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and text.startswith(separator, position):
            parts.append(text[start:position])
            start = position + len(separator)
    return parts + [text[start:]]


def findings(packages, rules):
    """Returns a line for each package that breaks a rule."""
    licences, banned = set(rules["licenses"]["allow"]), set(rules["bans"]["deny"])
    sources = {package["source"] for package in packages if package.get("source")}
    versions = collections.defaultdict(set)
    for package in packages:
        name = "%s %s" % (package["name"], package["version"])
        versions[package["name"]].add(package["version"])
        if not is_allowed(package.get("license") or "none named", licences):
            yield "%s: its licence, %s, is not in deny.toml" % (name, package.get("license"))
        if not (package.get("source") or "registry+").startswith("registry+"):
            yield "%s: its source, %s, is no registry" % (name, package["source"])
        if package["name"] in banned:
            yield "%s: deny.toml bans it" % name
        for needed in package["dependencies"]:
            if needed["req"] == "*" and not needed.get("path"):
                yield "%s: it takes any version of %s" % (name, needed["name"])
    if len(sources) > 1:
        yield "there are several sources: %s" % ", ".join(sorted(sources))
    skipped = set(rules["bans"]["skip"])
    for name, several in sorted(versions.items()):
        if len(several) > 1 and name not in skipped:
            yield "%s: there are several versions: %s" % (name, ", ".join(sorted(several)))
    for name in sorted(skipped):
        if len(versions[name]) < 2:
            yield "%s: deny.toml skips it, and there is one version" % name


def main(arguments):
    if arguments not in ([], ["--install"]):
        sys.exit(__doc__)
    if arguments:
        subprocess.run(["cargo", "install", "--locked", "cargo-deny"], check=True)
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    platforms = [word for target in rules["graph"]["targets"] for word in ("--filter-platform", target)]
    command = ["cargo", "metadata", "--format-version", "1", "--locked", *platforms]
    packages = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)["packages"]
    found = list(findings(packages, rules))
    for line in found:
        print(line)
    print("%d packages, %d findings" % (len(packages), len(found)))
    code = 1 if found else 0
    if shutil.which("cargo-deny"):
        code |= subprocess.run(["cargo", "deny", "--locked", "check", "bans", "licenses", "sources"], cwd=ROOT).returncode
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
