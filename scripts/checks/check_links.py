#!/usr/bin/env python3
"""What names a file of this repository names one that is there: links of Markdown files (and their headings), `module/file` in documents,
and headers and sources in comments of src/ and include/.

Usage: scripts/checks/check_links.py
"""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
IN_COMMENT = re.compile(r"(?<![\w./<>-])((?:\w+/)*\w+\.(?:h|cpp|cu))\b")
OF_OTHERS = {"cuda.h", "nvml.h", "llama.h", "llama.cpp", "histedit.h", "cudnn_frontend.h", "microhttpd.h"}


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


def expanded(name):
    """a/{b,c}.h as a/b.h and a/c.h."""
    match = re.search(r"\{([^}]*)\}", name)
    return [name] if not match else [x for part in match[1].split(",") for x in expanded(name[:match.start()] + part + name[match.end():])]


def lost_sources(file, modules):
    for quoted in re.findall(r"`([\w./{},]+)`", without_blocks(file)):
        for name in expanded(quoted):
            if name.count("/") == 0 or name.split("/")[0] not in modules or not name.split("/", 1)[1]:
                continue
            places = [ROOT / "src" / name, ROOT / "include/lora_train" / name, ROOT / name]
            if not any(place.parent.joinpath(place.name + end).exists() for place in places for end in ("", ".h", ".cpp", ".cu")):
                yield f"{file.relative_to(ROOT)}: there is no source `{name}`"


def lost_names(file, endings):
    for number, line in enumerate(file.read_text().splitlines(), 1):
        comment = re.search(r'(?<![:"])//(.*)', line)
        for name in IN_COMMENT.findall(comment[1]) if comment else []:
            if name not in endings and name not in OF_OTHERS:
                yield f"{file.relative_to(ROOT)}:{number}: there is no {name}"


def main():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    tracked = [name for name in tracked if (ROOT / name).exists()]
    endings = {"/".join(name.split("/")[i:]) for name in tracked for i in range(name.count("/") + 1)}
    modules = {path.name for path in (ROOT / "src").iterdir()}
    names = [name for name in tracked if name.endswith(".md")]
    broken = [line for name in names for line in broken_links(ROOT / name)]
    broken += [line for name in names for line in lost_sources(ROOT / name, modules)]
    broken += [line for name in tracked if name.startswith(("src/", "include/")) and name.endswith((".h", ".cpp", ".cu"))
               for line in lost_names(ROOT / name, endings)]
    print("\n".join([*broken, f"check_links: {len(names)} files, {len(broken)} broken links"]))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
