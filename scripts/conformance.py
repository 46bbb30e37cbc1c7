#!/usr/bin/env python3
"""Says which requirements of the NVMe specifications are tested, and by which tests: docs/reference/conformance.md.

A test says what it shows in its documentation, a line for each requirement, in our words:

    /// Conformance: Base 5.16, a log page is read in parts by its offset.

Base is the NVM Express Base Specification 2.0, NVM the NVM Command Set Specification 1.0, PCIe and TCP the transports'
1.0. A requirement that applies and that no test shows is a line of the same form in scripts/conformance-gaps.txt.

  conformance.py LOG           is the page that of the sources, and did all of its tests pass? LOG is the output of
                               `cargo test --workspace`
  conformance.py --write       writes the page, with what the sources claim
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference/conformance.md"
GAPS = ROOT / "scripts/conformance-gaps.txt"

CLAIM = re.compile(r"Conformance: (?P<document>Base|NVM|PCIe|TCP) (?P<section>[0-9]+(\.[0-9]+)*), (?P<words>.+)\.$")
FUNCTION = re.compile(r"^\s*(pub(\(crate\))? )?fn (\w+)")
RESULT = re.compile(r"^test (\S+) \.\.\. (ok|FAILED|ignored)")
DOCUMENTS = {
    "Base": "NVM Express Base Specification 2.0",
    "NVM": "NVM Command Set Specification 1.0",
    "PCIe": "NVMe over PCIe Transport Specification 1.0",
    "TCP": "NVMe/TCP Transport Specification 1.0",
}

HEAD = """# Conformance

What the specifications ask of a controller like ours, in our words, and the test that shows it. Written by
`scripts/conformance.py --write` from the tests themselves; CI fails when it is not what the sources say, or when one of
these tests does not pass. What applies and has no test of its own is listed too, as a gap.

[Commands and log pages](commands.md) says which of the optional parts there are.
"""


def module_of(path):
    """The path of a file's module in its test program, as test results have it."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)[2:]
    if parts[0] == "tests":
        # A program is a file, or a folder with a main file.
        return [part for part in parts[2:] if part != "main"]
    return [part for part in parts[1:] if part not in ("lib", "mod")]


class Claim:
    def __init__(self, found, where):
        self.document, self.section, self.words = found["document"], found["section"], found["words"]
        self.where, self.test = where, None

    def order(self):
        return list(DOCUMENTS).index(self.document), [int(part) for part in self.section.split(".")], self.words


def claims_of(path):
    """What the tests of one file claim."""
    claims, waiting, inner = [], [], []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        where = "%s:%d" % (path.relative_to(ROOT), number)
        if "/// Conformance:" in line:
            found = CLAIM.search(line)
            if not found:
                sys.exit("%s: not of the form `Conformance: Base 1.2.3, what is required.`" % where)
            waiting.append(Claim(found, where))
        if line.startswith("mod tests"):
            inner = ["tests"]
        function = FUNCTION.match(line)
        if function and waiting:
            for claim in waiting:
                claim.path, claim.name = path.relative_to(ROOT), function[3]
                claim.test = "::".join(module_of(path) + inner + [function[3]])
            claims, waiting = claims + waiting, []
    if waiting:
        sys.exit("%s: no test follows" % waiting[0].where)
    return claims


def gaps():
    found = []
    for number, line in enumerate(GAPS.read_text().splitlines(), 1):
        if line and not line.startswith("#"):
            match = CLAIM.search("Conformance: " + line)
            if not match:
                sys.exit("%s:%d: not of the form `Base 1.2.3, what is required.`" % (GAPS.relative_to(ROOT), number))
            found.append(Claim(match, None))
    return found


def page(claims):
    tested = sum(1 for claim in claims if claim.test)
    lines = [HEAD, "%d requirements: %d with a test that passes, %d without a test." % (len(claims), tested, len(claims) - tested)]
    for document, title in DOCUMENTS.items():
        rows = sorted((claim for claim in claims if claim.document == document), key=Claim.order)
        if not rows:
            continue
        lines += ["", "## " + title, "", "| section | requirement | test | result |", "| --- | --- | --- | --- |"]
        for claim in rows:
            shown = "[%s](../../%s) | passes" % (claim.name.replace("_", " "), claim.path) if claim.test else "| gap"
            lines.append("| %s | %s | %s |" % (claim.section, claim.words[0].upper() + claim.words[1:], shown))
    return "\n".join(lines) + "\n"


def main(arguments):
    if len(arguments) != 1:
        sys.exit(__doc__)
    sources = sorted((ROOT / "crates").glob("*/tests/**/*.rs")) + sorted((ROOT / "crates").glob("*/src/**/*.rs"))
    claims = [claim for path in sources for claim in claims_of(path)]
    text = page(claims + gaps())
    if arguments[0] == "--write":
        PAGE.write_text(text)
        return
    problems = []
    if PAGE.read_text() != text:
        problems.append("docs/reference/conformance.md is not what the tests say: scripts/conformance.py --write")
    results = {}
    for line in pathlib.Path(arguments[0]).read_text(errors="replace").splitlines():
        if found := RESULT.match(line):
            # Two programs may have a test of one name; one that fails is not made good by the other.
            results.setdefault(found[1], set()).add(found[2])
    for claim in claims:
        if results.get(claim.test) != {"ok"}:
            problems.append("%s: %s: %s" % (claim.where, claim.test, ", ".join(results.get(claim.test, ["did not run"]))))
    print("\n".join(problems) or "%d claims, all of them shown" % len(claims))
    sys.exit(1 if problems else 0)


main(sys.argv[1:])
