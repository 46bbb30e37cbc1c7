"""Writes a copy of the code that contains many changes at once, each behind a switch.

The body of a function with changes becomes

    match ::mutants_switch::active(PLACE) { 17 => { the body with change 17 } ... _ => { the body } }

so one build serves all of them. Changes outside of functions, and of functions whose type each body would give anew
(`-> impl Trait`), need builds of their own.
"""

import json
import re
import subprocess

# A token in which braces mean nothing, or a brace. A lifetime comes after the character that it looks like.
TOKEN = re.compile(
    r'//[^\n]*|/\*|\b[bc]?r(?P<hashes>#*)"|(?:\b[bc])?"(?:\\.|[^"\\])*"'
    r"|(?:\bb)?'(?:\\(?:u\{[^}]*\}|x[0-9a-fA-F]{2}|.)|[^\\'\n])'|'\w+|[{}]", re.S)


def end_of_comment(text, start):
    depth, at = 1, start
    while depth:
        found = re.compile(r"/\*|\*/").search(text, at)
        if not found:
            return len(text)
        depth += 1 if found.group() == "/*" else -1
        at = found.end()
    return at


def body_of(text, start, end):
    """Offsets behind the opening and at the closing brace of the function there; none if there is no body."""
    at, opened = start, []
    while at < end:
        token = TOKEN.search(text, at, end)
        if not token:
            return None
        at, word = token.end(), token.group()
        if word == "/*":
            at = end_of_comment(text, at)
        elif token["hashes"] is not None:
            at = text.index('"' + token["hashes"], at) + 1 + len(token["hashes"])
        elif word == "{":
            opened.append(at)
        elif word == "}":
            open_ = opened.pop()
            if at == end:
                return open_, at - 1
    return None


def original(root, path):
    return subprocess.run(["git", "show", f"HEAD:{path}"], cwd=root, check=True, capture_output=True).stdout.decode()


class Offsets:
    """Offsets of places that are given as line and column."""

    def __init__(self, text):
        self.lines = [0]
        for line in text.split("\n"):
            self.lines.append(self.lines[-1] + len(line) + 1)

    def of(self, place):
        return self.lines[place["line"] - 1] + place["column"] - 1

    def span(self, span):
        return self.of(span["start"]), self.of(span["end"])


class File:
    """One file with changes. `apart` has those that need a build of their own."""

    def __init__(self, path, text, changes):
        self.path, self.text, self.changes, self.apart, self.dropped = path, text, {}, [], []
        offsets = Offsets(text)
        for change in changes:
            change["at"] = offsets.span(change["span"])
            function = change["function"]
            body = function and "impl " not in function["return_type"] and body_of(text, *offsets.span(function["span"]))
            if body and body[0] <= change["at"][0] and change["at"][1] <= body[1]:
                change["body"] = body
                self.changes[change["number"]] = change
            else:
                self.apart.append(change)
        # A function in a function belongs to the outer one.
        for change in self.changes.values():
            around = [it["body"] for it in self.changes.values() if it["body"][0] <= change["body"][0] < it["body"][1]]
            change["body"] = min(around)

    def bodies(self):
        found = {}
        for number, change in sorted(self.changes.items()):
            found.setdefault(change["body"], []).append(number)
        return sorted(found.items())

    def changed(self, change, start, end):
        """The text from start to end with the change in it."""
        at, behind = change["at"]
        return self.text[start:at] + change["replacement"] + self.text[behind:end]

    def written(self):
        """The text with all changes behind switches, and its lines: the first, the last, the numbers of the changes that
        are there, and whether this is a changed body and not the whole function."""
        parts, lines, at, owners = [], 1, 0, []

        def add(part, number=None):
            nonlocal lines
            first = lines
            parts.append(part)
            lines += part.count("\n")
            if number is not None:
                owners.append((first, lines, [number], True))

        for (start, end), numbers in self.bodies():
            add(self.text[at:start])
            place = min(numbers)
            first = lines
            add(f" match ::mutants_switch::active({place}) {{\n")
            for number in numbers:
                add(f"{number} => {{{self.changed(self.changes[number], start, end)}\n}}\n", number)
            add(f"_ => {{{self.text[start:end]}}} }}")
            owners.append((first, lines, numbers, False))
            at = end
        add(self.text[at:])
        return "".join(parts), owners

    def place_of(self, number):
        """The number that is marked when the function of a change is reached."""
        body = self.changes[number]["body"]
        return min(other for other, it in self.changes.items() if it["body"] == body)


class Tree:
    """The files with changes, in the checkout at `root`. `kept` is a file that has those that do not compile."""

    def __init__(self, root, changes, kept):
        self.root, self.files, self.not_built, self.kept = root, {}, {}, kept
        for path in sorted({change["file"] for change in changes}):
            here = [change for change in changes if change["file"] == path]
            self.files[path] = File(path, original(root, path), here)
        dropped = json.loads(kept.read_text()) if kept.exists() else {}
        for number, message in dropped.items():
            self.leave_out(self.file_of(int(number)), int(number), message)

    def file_of(self, number):
        return next(file for file in self.files.values() if number in file.changes)

    def leave_out(self, file, number, message):
        """Without a message the change gets a build of its own."""
        change = file.changes.pop(number)
        if message:
            self.not_built[number] = message
        else:
            file.apart.append(change)
            file.dropped.append(number)

    def apart(self):
        return [change for file in self.files.values() for change in file.apart]

    def places(self):
        return {number: file.place_of(number) for file in self.files.values() for number in file.changes}

    def write(self):
        for file in self.files.values():
            text, _ = file.written()
            path = self.root / file.path
            if path.read_text() != text:
                path.write_text(text)

    def owner_of(self, places, owners):
        """The file, the numbers and the kind of the lines that an error is about, the primary place first."""
        for path, line, _ in sorted(places, key=lambda it: not it[2]):
            around = [it for it in owners.get(path, []) if it[0] <= line <= it[1]]
            if around:
                _, _, numbers, is_change = min(around, key=lambda it: (it[1] - it[0], not it[3]))
                return self.files[path], numbers, is_change
        return None

    def drop(self, errors):
        """Leaves out the changes that the errors of the compiler are about, and returns how many those are.

        An error is the message and a list of (path, line, is primary). One in a changed body is of that change. One
        elsewhere in the function is of all its changes, which get builds of their own.
        """
        owners = {path: file.written()[1] for path, file in self.files.items()}
        dropped = 0
        for message, places in errors:
            found = self.owner_of(places, owners)
            if not found:
                continue
            file, numbers, is_change = found
            for number in numbers:
                if number in file.changes:
                    dropped += 1
                    self.leave_out(file, number, message if is_change else "")
        self.kept.write_text(json.dumps(self.not_built | {it: "" for file in self.files.values() for it in file.dropped}))
        return dropped
