#!/usr/bin/env python3
"""Folds files by a table, one operation per line:

  into HEADER SOURCE      the pair of HEADER becomes part of SOURCE, its only user, in the anonymous namespace there
  join HEADER TARGET      the pair of HEADER becomes part of the pair of TARGET (another header), and TARGET is included in its place
  append SOURCE TARGET    SOURCE, which has no header of its own name, becomes part of the source TARGET
  rename HEADER NEW       the pair of HEADER gets another name or folder
  move SOURCE NEW         the same of a source without a header

The comment of a declaration goes to its definition where both become one. CMake lists, #includes and paths in scripts and documents
follow. Prints what it leaves to be done by hand.

Usage: scripts/house/fold.py TABLE
"""

import pathlib
import re
import subprocess
import sys

from move import CODE, INCLUDE, ROOT, TEXT, module_of, normal, places, rename_in_text, spelling, tracked

ANONYMOUS = re.compile(r"^namespace \{$|^\}  // namespace$", re.MULTILINE)
LITERAL = re.compile(r'R"(?P<m>[^()\s\\]{0,16})\((?:.|\n)*?\)(?P=m)"|//[^\n]*|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\'')
MAX_LINES = 600


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def source_of(header):
    inner = header.removeprefix("include/lora_train/").removeprefix("src/")
    path = "src/" + inner.removesuffix(".h") + ".cpp"
    return path if (ROOT / path).exists() else None


def split_file(text):
    """(title comment, includes in order, text before the namespace, namespace, body, text behind)"""
    lines = text.split("\n")
    mains = [i for i, line in enumerate(lines) if re.match(r"namespace lora_train\b.*\{$", line)]
    if not mains:
        raise ValueError("no namespace")
    # Forward declarations in other namespaces come first; the last one is the file's own.
    start = mains[-1]
    name = re.match(r"namespace (lora_train[\w:]*) \{$", lines[start])[1]
    end = max(i for i, line in enumerate(lines) if line.startswith("}  // namespace lora_train"))
    title, includes, before = [], [], []
    seen_code = False
    for line in lines[:start]:
        if line.startswith("#pragma once"):
            seen_code = True
        elif INCLUDE.match(line) or re.match(r"\s*#\s*include\s*<", line):
            includes.append(line)
            seen_code = True
        elif not seen_code and line.startswith("//"):
            title.append(line)
        elif line.strip():
            before.append(line)
            seen_code = True
    return title, includes, before, name, "\n".join(lines[start + 1:end]).strip("\n"), "\n".join(lines[end + 1:]).strip("\n")


def chunks(body):
    """Top-level pieces of a namespace's body: each a declaration or definition with the comment above it."""
    blank = LITERAL.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), body)
    found, depth, start, pending = [], 0, 0, False
    i = 0
    while i < len(blank):
        c = blank[i]
        if c in "{(":
            depth += 1
        elif c in "})":
            depth -= 1
        ends = depth == 0 and (c == ";" or c == "}" and not re.match(r"\s*[;,)]|\s*\w[^\n]*;", blank[i + 1:i + 200]) )
        if depth == 0 and c == "\n" and blank[start:i].strip().startswith("#"):
            ends = True
        if ends:
            stop = blank.find("\n", i)
            stop = len(blank) if stop < 0 else stop
            if blank[i + 1:stop].strip() == "":  # with a comment behind it
                found.append(body[start:stop].strip("\n"))
                start = i = stop
        i += 1
    if body[start:].strip():
        found.append(body[start:].strip("\n"))
    return found


def code_of(chunk):
    """(comment above, code)"""
    lines = chunk.split("\n")
    n = 0
    while n < len(lines) and (lines[n].strip().startswith("//") or not lines[n].strip()):
        n += 1
    return "\n".join(lines[:n]).strip("\n"), "\n".join(lines[n:])


def function_name(code):
    """Of a declaration or definition of a free function; None for anything else."""
    head = LITERAL.sub("", code)
    if re.match(r"\s*(class|struct|enum|using|typedef|namespace|static_assert|extern|template|constexpr \w+ \w+ =|inline constexpr|#)", head):
        return None
    match = re.match(r"(?s)[^=({;]*?\b([A-Za-z_]\w*)\s*\(", head)
    if not match or re.search(r"\boperator\b", match[0]) or "::" + match[1] in match[0].replace(" ", ""):
        return None
    return match[1]


def signature(code):
    """Up to the parenthesis that closes the parameters, without defaults, spaces and attributes."""
    text = code.split("{")[0] if not re.search(r"=\s*\{", code.split(")")[0]) else code
    open_at = text.index("(")
    depth, end = 0, len(text)
    for i in range(open_at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            end = i + 1
            break
    head = re.sub(r"\s*=\s*[^,()]*(\([^()]*\)|\{[^{}]*\})?[^,()]*(?=[,)])", "", text[:end])
    return re.sub(r"\s+|\[\[\w+\]\]|\binline\b|\bstatic\b", "", head)


def merged_bodies(header_body, source_body):
    """A header's body and its source's as one: declared functions become their definitions, with the comment."""
    source_body = ANONYMOUS.sub("", source_body)
    kept, definitions = [], chunks(source_body)
    for declaration in chunks(header_body):
        comment, code = code_of(declaration)
        name = function_name(code)
        at = None
        if name and code.rstrip().split("//")[0].rstrip().endswith(";") and "{" not in re.sub(r"=\s*\{\}|\{\}", "", code):
            same = [i for i, chunk in enumerate(definitions) if function_name(code_of(chunk)[1]) == name and "{" in code_of(chunk)[1]]
            exact = [i for i in same if signature(code_of(definitions[i])[1]) == signature(code)]
            at = exact[0] if len(exact) == 1 else same[0] if len(same) == 1 and not exact else None
        is_used_before = at is not None and any(
            re.search(rf"\b{name}\b", LITERAL.sub("", code_of(chunk)[1])) for chunk in definitions[:at])
        if at is None or is_used_before:
            kept.append(declaration)
            continue
        own_comment, definition = code_of(definitions[at])
        default = re.search(r"[^=<>!]=[^=]", LITERAL.sub("", code))
        if default:  # the declaration's own words
            brace = definition.index("{")
            depth = 0
            for i, c in enumerate(definition):
                depth += {"(": 1, ")": -1}.get(c, 0)
                if c == "{" and depth == 0:
                    brace = i
                    break
            definition = code.rstrip().removesuffix(";") + " " + definition[brace:]
        definitions[at] = "\n".join(part for part in (comment, own_comment, definition) if part)
    return "\n\n".join(part for part in ("\n\n".join(kept), "\n\n".join(definitions)) if part.strip())


def include_lines(lines, own):
    """Sorted include lines of a file; own: its header's line or None."""
    unique = sorted({re.sub(r"\s+//.*", "", line.strip()) if "IWYU" not in line else line for line in lines} - {own})
    system = [line for line in unique if "<" in line]
    quoted = [line for line in unique if "<" not in line]
    return "\n\n".join("\n".join(block) for block in ([own] if own else [], system, quoted) if block)


class Folder:
    def __init__(self):
        self.known = set(tracked())
        self.renamed = {}  # header -> header, for #includes
        self.paths = {}    # any file -> file, for text
        self.by_hand = []

    def resolved(self, path, lines):
        """Include lines of `path` with the headers they mean: [(line, header or None)]"""
        found = []
        for line in lines:
            match = INCLUDE.match(line)
            header = next((normal(p) for p in places(path, match[2]) if normal(p) in self.known), None) if match else None
            found.append((line, header))
        return found

    def spelled(self, path, includes, dropped):
        lines = []
        for line, header in includes:
            if header in dropped:
                continue
            lines.append(f'#include "{spelling(path, self.final(header))}"' if header else line)
        return lines

    def final(self, header):
        while header in self.renamed:
            header = self.renamed[header]
        return header

    def write(self, path, text):
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(re.sub(r"\n{3,}", "\n\n", text), encoding="utf-8")
        if path not in self.known:
            self.known.add(path)

    def remove(self, path):
        (ROOT / path).unlink()
        self.known.discard(path)

    def parts(self, path):
        title, includes, before, name, body, behind = split_file(read(path))
        if any(line.startswith("#") for line in before) or behind:
            raise ValueError(f"{path}: preprocessor lines outside the namespace")
        return title, self.resolved(path, includes), before, name, body

    def into(self, header, user):
        source = source_of(header)
        _, includes, before, name, body = self.parts(header)
        code = ""
        if source:
            _, more, more_before, other, code = self.parts(source)
            includes, before = includes + more, before + more_before
            if other != name:
                raise ValueError("namespaces differ")
        _, own_includes, own_before, own_name, own_body = self.parts(user)
        if own_name != name:
            raise ValueError("namespaces differ")
        merged = merged_bodies(body, code)
        own = self.header_of(user)
        dropped = {header, own} - {None}
        lines = self.spelled(user, own_includes + includes, dropped)
        first = f'#include "{spelling(user, own)}"' if own else None
        if own_body.lstrip().startswith("namespace {"):
            rest = own_body.lstrip().removeprefix("namespace {")
            aliases, rest = self.leading_aliases(rest)
            merged = self.without(merged, aliases)
            text = "namespace {\n\n" + "\n".join(aliases) + "\n\n" + merged + "\n\n" + rest.lstrip("\n")
        else:
            text = "namespace {\n\n" + merged + "\n\n}  // namespace\n\n" + own_body
        self.write(user, self.file(first, lines, user, own_before + before, name, text, self.title_of(user)))
        self.known.discard(header)
        self.remove(header)
        self.paths[header] = user
        if source:
            self.remove(source)
            self.paths[source] = user
            self.drop_from_cmake(source)
        self.check_size(user)

    def title_of(self, path):
        return split_file(read(path))[0]

    @staticmethod
    def leading_aliases(text):
        aliases, lines = [], text.lstrip("\n").split("\n")
        while lines and re.match(r"(namespace \w+ = |using )[\w:<>, ]+;$", lines[0]):
            aliases.append(lines.pop(0))
        return aliases, "\n".join(lines)

    @staticmethod
    def without(text, aliases):
        return "\n".join(line for line in text.split("\n") if line not in aliases)

    @staticmethod
    def file(first, lines, path, before, name, body, title=()):
        head = include_lines([line for line in lines if line != first], first)
        forward = "\n".join(dict.fromkeys(before))
        parts = ["\n".join(title)] if title else []
        if path.endswith(".h"):
            parts = ["\n".join(title) + "\n#pragma once" if title else "#pragma once"]
        parts += [head, forward, f"namespace {name} {{\n" + ("" if body.lstrip().startswith("namespace {") else "\n") + body.strip("\n") + f"\n\n}}  // namespace {name}"]
        return "\n\n".join(part for part in parts if part) + "\n"

    def header_of(self, source):
        inner = source.removeprefix("src/").removesuffix(".cpp") + ".h"
        return next((path for path in (f"include/lora_train/{inner}", f"src/{inner}") if path in self.known), None)

    def join(self, header, target):
        if target not in self.known:
            return self.rename(header, target)
        _, includes, before, name, body = self.parts(header)
        own_title, own_includes, own_before, own_name, own_body = self.parts(target)
        if name != own_name:
            raise ValueError("namespaces differ")
        source, own_source = source_of(header), source_of(target)
        needs = any(h == header for _, h in own_includes)  # the target uses it: first
        lines = self.spelled(target, own_includes + includes, {header, target})
        joined = [body, own_body] if needs else [own_body, body]
        self.write(target, self.file(None, lines, target, own_before + before, name, "\n" + "\n\n".join(joined), own_title))
        self.renamed[header] = target
        if source and source != self.source_path(target):  # else the header alone moves
            new_source = own_source or self.source_path(target)
            _, inc, bef, _, code = self.parts(source)
            if own_source:
                _, inc2, bef2, _, code2 = self.parts(own_source)
                if needs:
                    code, code2 = code2, code  # below: own first
                text = self.joined_code(code2, code)
                inc, bef = inc2 + inc, bef2 + bef
            else:
                text = code
                self.add_to_cmake(source, new_source)
            first = f'#include "{spelling(new_source, target)}"'
            lines = self.spelled(new_source, inc, {header, target})
            own_text = self.title_of(own_source) if own_source else self.title_of(source)
            if source != new_source:
                self.remove(source)
                self.paths[source] = new_source
                if own_source:
                    self.drop_from_cmake(source)
            self.write(new_source, self.file(first, lines, new_source, bef, name, "\n" + text, own_text))
            self.check_size(new_source)
        self.remove(header)
        self.paths[header] = target
        self.check_size(target)
        self.include_instead(header, target)

    @staticmethod
    def source_path(header):
        return "src/" + header.removeprefix("include/lora_train/").removeprefix("src/").removesuffix(".h") + ".cpp"

    def joined_code(self, first, second):
        """Two sources' bodies with one anonymous namespace where both begin with one."""
        a, b = first.lstrip("\n"), second.lstrip("\n")
        if a.startswith("namespace {") and b.startswith("namespace {") and a.count("\n}  // namespace\n") == 1:
            aliases, _ = self.leading_aliases(a.removeprefix("namespace {"))
            inner, _, rest = b.removeprefix("namespace {").partition("\n}  // namespace\n")
            inner = self.without(inner, aliases)
            hidden, _, shown = a.partition("\n}  // namespace\n")
            return hidden + "\n" + inner + "\n\n}  // namespace\n" + shown + "\n\n" + rest.lstrip("\n")
        return first + "\n\n" + second

    def append(self, source, target):
        _, inc, bef, name, code = self.parts(source)
        _, inc2, bef2, own_name, code2 = self.parts(target)
        if name != own_name:
            raise ValueError("namespaces differ")
        own = self.header_of(target)
        first = f'#include "{spelling(target, own)}"' if own else None
        lines = self.spelled(target, inc2 + inc, {own} - {None})
        self.write(target, self.file(first, lines, target, bef2 + bef, name, "\n" + self.joined_code(code2, code), self.title_of(target)))
        self.remove(source)
        self.paths[source] = target
        self.drop_from_cmake(source)
        self.check_size(target)

    def rename(self, header, target):
        source, new_source = source_of(header), self.source_path(target)
        subprocess.run(["git", "mv", header, target], cwd=ROOT, check=False)
        if (ROOT / header).exists():
            (ROOT / target).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / header).rename(ROOT / target)
        self.known.discard(header)
        self.known.add(target)
        self.renamed.pop(target, None)  # a name that was free
        self.paths.pop(target, None)
        self.renamed[header] = target
        self.paths[header] = target
        if source:
            (ROOT / new_source).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / source).rename(ROOT / new_source)
            self.known.discard(source)
            self.known.add(new_source)
            self.paths[source] = new_source
            self.add_to_cmake(source, new_source)
        self.known.add(header)  # to resolve what still names it
        self.include_instead(header, target)
        self.known.discard(header)

    def move(self, source, new):
        (ROOT / source).rename(ROOT / new)
        self.known.discard(source)
        self.known.add(new)
        self.paths[source] = new
        self.add_to_cmake(source, new)

    def include_instead(self, header, target):
        """Every #include of header becomes one of target, once."""
        self.known.add(header)
        stem = header.rpartition("/")[2]
        for path in sorted(self.known):
            if pathlib.Path(path).suffix not in CODE or not (ROOT / path).is_file():
                continue
            text = read(path)
            if stem not in text:
                continue
            changed, has = [], set()
            for line in text.split("\n"):
                match = INCLUDE.match(line)
                if match:
                    means = next((normal(p) for p in places(path, match[2]) if normal(p) in self.known), None)
                    if means == header:
                        line = f'{match[1]}"{spelling(path, target)}"'
                    if line in has or (means == header and path == target):
                        continue
                    has.add(line)
                changed.append(line)
            if "\n".join(changed) != text:
                (ROOT / path).write_text("\n".join(changed), encoding="utf-8")
        self.known.discard(header)

    def cmake_lists(self, module):
        return [path for path in self.known if path.startswith(f"src/{module}/") and path.endswith((".txt", ".cmake")) and "machine_code" not in path]

    def drop_from_cmake(self, source):
        self.edit_cmake(source, "")

    def add_to_cmake(self, old, new):
        self.edit_cmake(old, new)

    def edit_cmake(self, source, new):
        module = module_of(source)
        for path in self.cmake_lists(module):
            folder = path.rpartition("/")[0]
            if not source.startswith(folder + "/"):
                continue
            token = source.removeprefix(folder + "/")
            text = read(path)
            replacement = new.removeprefix(folder + "/")
            changed = re.sub(rf"(?<![\w/]){re.escape(token)}(?!\w)" + ("" if new else r" ?"), replacement, text)
            if changed != text:
                (ROOT / path).write_text(re.sub(r"[ \t]+\n", "\n", changed), encoding="utf-8")
                return
        self.by_hand.append(f"no CMake list names {source}")

    def check_size(self, path):
        lines = read(path).count("\n")
        if lines > MAX_LINES:
            self.by_hand.append(f"{path} has {lines} lines")


def main():
    folder = Folder()
    for number, line in enumerate(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8").splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        operation, what, where = line.split()
        try:
            if what not in folder.known:
                raise ValueError(f"no file {what}")
            getattr(folder, operation)(what, where)
        except (ValueError, KeyError) as error:
            folder.by_hand.append(f"{sys.argv[1]}:{number}: {line}: {error}")
    rename_in_text(folder.paths)
    print(*folder.by_hand, sep="\n")


if __name__ == "__main__":
    main()
