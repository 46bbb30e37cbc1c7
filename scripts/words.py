#!/usr/bin/env python3
"""Checks the words of comments, pages and commits.

  scripts/words.py             compares the tree with scripts/words-allowed.txt; used by `make test`
  scripts/words.py FILE...     prints each place of these files, allowed or not
  scripts/words.py --shrink    lowers the allowed numbers to those of the tree; it never raises one

Rules:
  verb       a doc comment of a function begins with a verb in the third person ("Returns ...")
  noun       a doc comment of anything else begins with a noun, not with a pronoun or a conjunction
  subject    no sentence has a relative clause, "nobody" or the like as its subject
  machine    machines do not ask, say, tell, hear, know, want, remember or mourn
  name       no item of the product has a name that was given up for a plainer one
  commit     the subject of a commit is `area: imperative`, at most 72 characters
"""
import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "scripts/words-allowed.txt"
# Earlier commits have other subjects.
COMMITS_SINCE = "2026-11-26T17:30:00Z"

NOT_A_NOUN = set(
    "what whatever who whoever which that those these this it its they their them he his one ones nobody somebody anybody"
    " everybody where when while how why if unless until true false for to with without of in on at by as from after before"
    " is has are was were can must may and or but so then also whose both either neither".split()
)
SUBJECT = re.compile(
    r"(?:^|(?<=[.;:!?]\s))(?:What|Whatever|Who|Whoever|Whichever|Those|He who|That which)\b"
    r"|\b(?:[Nn]obody|[Ss]omebody|[Aa]nybody|[Ee]verybody|[Ww]hoever|[Tt]hose (?:that|who|which|whose|of whom))\b"
)
MACHINE = re.compile(
    r"\b(?:asks?|asked|asking|says?|said|saying|tells?|told|telling|hears?|heard|hearing|knows?|knew|knowing"
    r"|wants?|wanted|wanting|remembers?|remembered|remembering|mourns?|mourned)\b",
    re.IGNORECASE,
)
# Names of renamed items, of any crate. Tests may use them.
NAMES = re.compile(
    r"\b(?:Courier|Errand|StandIns?|Outposts?|Likeness|Keeper|ToKeep|Seat|Chore|Pieces|Loan|Former|Parting|Facts"
    r"|Occupant|Lobby|Docket|Notary|Stillborn|Complaint|Trouble|Tenant|Joined|Manner|[A-Z][A-Za-z]*Seed"
    r"|CallView|queues_away|called_home|try_twin|restack|work_off|life_can_advance)\b"
)
# The classifiers' context has the facts of a command; the glossary has the word.
NAMED_SO = {"Facts": ("crates/router/", "crates/classifier/", "crates/bench/")}
ITEM = re.compile(
    r"^(?:pub(?:\([^)]*\))?\s+)?(?:default\s+|const\s+|async\s+|unsafe\s+|extern\s+(?:\"[^\"]*\"\s+)?)*fn\s"
)
THIRD_PERSON = re.compile(r"^[A-Z][a-z-]*s$")


def comments_of_rust(lines):
    """Yields (line number, text, kind) for each block; kind is "//", "//!", "///" of something or "fn"."""
    at = 0
    while at < len(lines):
        found = re.match(r"\s*(//[/!]?)(?!/)(.*)", lines[at])
        if not found:
            at += 1
            continue
        kind, begin, text = found[1], at, []
        while at < len(lines):
            same = re.match(r"\s*(//[/!]?)(?!/)(.*)", lines[at])
            if not same or same[1] != kind:
                break
            text.append(same[2].strip())
            at += 1
        if kind == "///" and is_function(lines, at):
            kind = "fn"
        yield begin + 1, text, kind


def is_function(lines, at):
    """Tells whether the item after a doc comment is a function; skips attributes."""
    depth = 0
    while at < len(lines):
        line = lines[at].strip()
        if depth or line.startswith("#["):
            depth += line.count("[") - line.count("]")
        elif line and not line.startswith("//"):
            return bool(ITEM.match(line))
        at += 1
    return False


def prose_of_page(lines):
    """Yields (line number, text, "page") for each paragraph outside of code."""
    fenced, begin, text = False, 0, []
    for number, line in enumerate(lines, 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            line = ""
        plain = not fenced and line.strip() and not line.startswith("    ")
        if plain and not re.match(r"\s*([-*|]|\d+\.)\s?", line) and text:
            text.append(line.strip())
            continue
        if text:
            yield begin, text, "page"
        begin, text = number, [re.sub(r"^\s*([-*|]|\d+\.)\s?", "", line)] if plain else []
    if text:
        yield begin, text, "page"


def names_of_rust(path, lines):
    """Yields (line number, "name", line) for each line of the product with a name that was given up."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.as_posix()
    parts = name.split("/")
    if parts[0] != "crates" or any(part in ("tests", "tests.rs") for part in parts) or name.endswith("_tests.rs"):
        return
    for number, line in enumerate(lines, 1):
        if re.match(r"\s*#\[cfg\(test\)\]", line):
            return
        code = re.sub(r'"[^"]*"', '""', re.sub(r"//.*", "", line))
        for match in NAMES.finditer(code):
            if not name.startswith(NAMED_SO.get(match[0], ("?",))):
                yield number, "name", line.strip()


def without_code(text):
    return re.sub(r"`[^`]*`", "`code`", text)


def places(path):
    """Returns (line number, rule, words) for each place of a file that breaks a rule."""
    lines = path.read_text().splitlines()
    blocks = comments_of_rust(lines) if path.suffix == ".rs" else prose_of_page(lines)
    found = list(names_of_rust(path, lines)) if path.suffix == ".rs" else []
    for begin, text, kind in blocks:
        while kind != "page" and text and text[0].startswith("Conformance:"):
            text, begin = text[1:], begin + 1
        first = re.match(r"[\[*`(\"]*([A-Za-z-]+)", text[0]) if text else None
        if kind == "fn" and first and not THIRD_PERSON.match(first[1]):
            found.append((begin, "verb", text[0]))
        if kind == "///" and first and first[1].lower() in NOT_A_NOUN and not text[0].startswith("`"):
            found.append((begin, "noun", text[0]))
        code = False
        joined, starts = "", []
        for number, line in enumerate(text, begin):
            if line.startswith("```"):
                code = not code
            if not code and not line.startswith("```"):
                starts.append((len(joined), number))
                joined += line + " "
        joined = without_code(joined) if "`" in joined else joined
        for rule, pattern in (("subject", SUBJECT), ("machine", MACHINE)):
            for match in pattern.finditer(joined):
                number = max((n for offset, n in starts if offset <= match.start()), default=begin)
                found.append((number, rule, joined[max(0, match.start() - 20) : match.end() + 30].strip()))
    return found


def files():
    names = subprocess.run(
        ["git", "ls-files", "crates/*.rs", "fuzz/src/*.rs", "fuzz/fuzz_targets/*.rs", "docs/*.md", "examples/*.md",
         "CHANGELOG.md", "CONTRIBUTING.md", "README.md", "SECURITY.md"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split()
    return [ROOT / name for name in names if (ROOT / name).exists()]


def counted():
    counts = collections.Counter()
    for path in files():
        for _, rule, _ in places(path):
            counts[(path.relative_to(ROOT).as_posix(), rule)] += 1
    return counts


def allowed():
    counts = collections.Counter()
    for line in ALLOWED.read_text().splitlines():
        name, rule, count = line.split()
        counts[(name, rule)] = int(count)
    return counts


def store(counts):
    ALLOWED.write_text("".join(f"{name} {rule} {count}\n" for (name, rule), count in sorted(counts.items()) if count))


def commits():
    """Returns the subjects of new commits that break the rule; of a checkout without history none."""
    log = subprocess.run(
        ["git", "log", "--no-merges", "--format=%s", f"--since={COMMITS_SINCE}"], cwd=ROOT, capture_output=True, text=True
    )
    wrong = lambda subject: len(subject) > 72 or not re.match(r"[a-z0-9/_., -]+: [a-z`]", subject)
    return [subject for subject in log.stdout.splitlines() if wrong(subject)]


def main(arguments):
    if arguments == ["--shrink"]:
        here, before = counted(), allowed() if ALLOWED.exists() else None
        store(here if before is None else {key: min(here[key], count) for key, count in before.items()})
        return 0
    if arguments:
        for name in arguments:
            for number, rule, words in sorted(places(pathlib.Path(name).resolve())):
                print(f"{name}:{number}: {rule}: {words}")
        return 0
    here, before, bad = counted(), allowed(), 0
    for key in sorted(set(here) | set(before)):
        name, rule = key
        if here[key] > before[key]:
            bad += 1
            print(f"{name}: {here[key]} places break the rule `{rule}`, {before[key]} are allowed; scripts/words.py {name}")
        elif here[key] < before[key]:
            bad += 1
            print(f"{name}: fewer places break the rule `{rule}` than are allowed; scripts/words.py --shrink")
    for subject in commits():
        bad += 1
        print(f"the subject of a commit is not `area: imperative` of at most 72 characters: {subject}")
    print(f"{sum(here.values())} places in {len({name for name, _ in here})} files are allowed; {bad} findings")
    return 1 if bad else 0


sys.exit(main(sys.argv[1:]))
