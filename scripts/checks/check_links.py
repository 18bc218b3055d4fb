#!/usr/bin/env python3
"""Every link of a Markdown file to a file of this repository, and to a heading in one, leads somewhere.

Usage: scripts/checks/check_links.py
"""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def without_blocks(file):
    """The text without blocks of code, in which a # is no heading."""
    return re.sub(r"^```.*?^```", "", file.read_text(), flags=re.M | re.S)


def prose(file):
    """The text without code, in which brackets are no links."""
    return re.sub(r"`[^`\n]*`", "x", without_blocks(file))


@cache
def anchors(file):
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(file), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(file):
    for link in LINK.findall(prose(file)):
        if re.match(r"[a-z]+:", link):
            continue  # of the network
        name, _, anchor = link.partition("#")
        target = file.parent / name if name else file
        if not target.exists():
            yield f"{file.relative_to(ROOT)}: there is no {name}"
        elif anchor and anchor not in anchors(target):
            yield f"{file.relative_to(ROOT)}: {target.name} has no heading #{anchor}"


def main():
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    broken = [line for name in names for line in broken_links(ROOT / name)]
    print("\n".join([*broken, f"check_links: {len(names)} files, {len(broken)} broken links"]))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
