#!/usr/bin/env python3
"""Checks the licence of every dependency against deny.toml's allow list.

cargo-deny does more, and takes minutes to build on a fresh machine; this takes a second.
"""
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def allowed():
    """The strings of `allow = [...]` in deny.toml."""
    text = (ROOT / "deny.toml").read_text()
    inside = re.search(r"^allow = \[(.*?)\]", text, re.S | re.M).group(1)
    return set(re.findall(r'"([^"]+)"', inside))


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


def main():
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    packages = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)["packages"]
    allow = allowed()
    refused = [p for p in packages if not is_allowed(p.get("license") or "none named", allow)]
    for package in refused:
        print(f"{package['name']} {package['version']}: {package.get('license')} is not in deny.toml")
    print(f"licences of {len(packages)} packages, {len(refused)} not allowed")
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
