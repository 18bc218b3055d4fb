#!/usr/bin/env python3
"""Copies a shared library and hides what it exports, except the symbols of one C++ namespace.

The loader binds a hidden symbol inside the library alone, as if it had been built with -fvisibility=hidden: two libraries
of one process can then each have their own protobuf.

  scripts/hide_symbols.py LIBRARY COPY --keep NAMESPACE
"""

import argparse
import os
import re
import struct
import sys
from pathlib import Path

DYNSYM = 11  # sh_type of .dynsym
HIDDEN = 2   # st_other's low two bits


def hide(elf, namespace):
    """Changes `elf`, a bytearray of a 64-bit little-endian ELF file. Returns (number kept, number hidden)."""
    if elf[:6] != b"\x7fELF\x02\x01":
        sys.exit("hide_symbols: not a 64-bit little-endian ELF file")
    (sections_at,), (entry_bytes, num_sections) = struct.unpack_from("<Q", elf, 0x28), struct.unpack_from("<HH", elf, 0x3A)
    # name, type, flags, address, offset, size, link, info, alignment, entry size
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, sections_at + i * entry_bytes) for i in range(num_sections)]
    symbols = next(section for section in sections if section[1] == DYNSYM)
    names_at = sections[symbols[6]][4]
    kept_name = re.compile(rb"_Z(?:N|NK|TVN|TIN|TSN)%d%s" % (len(namespace), namespace.encode()))
    num_kept = num_hidden = 0
    for at in range(symbols[4], symbols[4] + symbols[5], symbols[9]):
        name_at, _, visibility, section = struct.unpack_from("<IBBH", elf, at)
        if section == 0:  # another library's
            continue
        begin = names_at + name_at
        if kept_name.match(elf[begin:elf.index(b"\0", begin)]):
            num_kept += 1
        else:
            elf[at + 5] = visibility & ~3 | HIDDEN
            num_hidden += 1
    return num_kept, num_hidden


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("copy", type=Path)
    parser.add_argument("--keep", required=True, metavar="NAMESPACE")
    args = parser.parse_args()
    elf = bytearray(args.library.read_bytes())
    num_kept, _ = hide(elf, args.keep)
    if num_kept == 0:
        sys.exit(f"hide_symbols: {args.library} has nothing of namespace {args.keep}")
    if args.copy.exists() and args.copy.read_bytes() == elf:  # else everything would be linked anew
        return
    args.copy.parent.mkdir(parents=True, exist_ok=True)
    partial = args.copy.with_suffix(".partial")
    partial.write_bytes(elf)
    os.replace(partial, args.copy)


if __name__ == "__main__":
    main()
