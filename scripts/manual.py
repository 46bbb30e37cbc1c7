"""Makes a manual page of a page of the documentation, for scripts/deb.py."""
import re
import shutil
import subprocess
import sys


def without_links(text):
    """Replaces links to other pages by their text."""
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


def cells(line):
    """Returns the cells of a line of a table. A bar behind a backslash separates none."""
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def definitions(lines):
    """Yields the lines with each table as a list of definitions, because the columns of a terminal are too narrow."""
    heads = None
    for number, line in enumerate(lines):
        if not line.startswith("|"):
            heads = None
            yield line
        elif heads is None:
            heads = cells(line)
        elif not re.fullmatch(r"[|\s:-]+", line):
            first, *middle, last = cells(line)
            notes = ["%s: %s" % (head, cell) if head else cell for head, cell in zip(heads[1:], middle) if cell]
            yield "%s%s\n\n:   %s\n" % (first, " (%s)" % "; ".join(notes) if notes else "", last)


def page(source, name, section, summary):
    """Returns the text of a manual page."""
    if not shutil.which("lowdown"):
        sys.exit("error: lowdown is missing; install Debian's package lowdown")
    text = "\n".join(definitions(without_links(source.read_text()).splitlines()))
    body = re.sub(r"\A# .*\n", "# DESCRIPTION\n", text)
    whole = "# NAME\n\n%s - %s\n\n%s" % (name, summary, body)
    options = ["-sTman", "-M", "title=" + name, "-M", "section=" + section, "-M", "source=Sluice", "-M", "date="]
    return subprocess.run(["lowdown", *options], input=whole, capture_output=True, text=True, check=True).stdout
