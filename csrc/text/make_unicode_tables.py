#!/usr/bin/env python3
"""Writes unicode_tables.inc: the ranges of letters, numbers and spaces that the tokenizer cuts text by.

    make_unicode_tables.py ranges RANGES.json > unicode_tables.inc
    make_unicode_tables.py measure > RANGES.json

RANGES.json is {"L": [[first, last], ...], "N": [...], "S": [...]}: the code points (surrogates aside) that \\p{L}, \\p{N}
and \\s match in the regular expressions of Hugging Face's `tokenizers`, whose tables are Unicode 16. `measure` makes it
from an installed `tokenizers` package: it asks that library about every code point.
"""

import json
import sys

LAST_CODE_POINT = 0x10FFFF
SPACES = 25


def code_points():
    for code_point in range(LAST_CODE_POINT + 1):
        if not 0xD800 <= code_point <= 0xDFFF:
            yield code_point


def measure():
    from tokenizers import Regex, pre_tokenizers

    def ranges(pattern):
        found = []
        cut = pre_tokenizers.Split(Regex(pattern), behavior="removed")
        for code_point in code_points():
            if cut.pre_tokenize_str(chr(code_point)):
                continue
            if found and found[-1][1] == code_point - 1:
                found[-1][1] = code_point
            else:
                found.append([code_point, code_point])
        return found

    return {"L": ranges(r"\p{L}"), "N": ranges(r"\p{N}"), "S": ranges(r"\s")}


def check(ranges):
    members = {}
    for name in ("L", "N", "S"):
        last = -1
        for first, end in ranges[name]:
            if not last < first <= end <= LAST_CODE_POINT:
                sys.exit(f"make_unicode_tables.py: {name}: the range {first}-{end} is out of order")
            last = end
        members[name] = {c for first, end in ranges[name] for c in range(first, end + 1)}
    if members["L"] & members["N"] or members["L"] & members["S"] or members["N"] & members["S"]:
        sys.exit("make_unicode_tables.py: a code point is in two classes")
    if len(members["S"]) != SPACES:
        sys.exit(f"make_unicode_tables.py: {len(members['S'])} spaces where {SPACES} are expected")
    return {name: len(found) for name, found in members.items()}


def write(ranges, out):
    counts = check(ranges)
    out.write("// Written by make_unicode_tables.py; not to be edited. Ranges [first, last] of code points, Unicode 16.\n")
    for key, name in (("L", "letter"), ("N", "number"), ("S", "space")):
        out.write(f"\n// {counts[key]} code points.\nconstexpr CodeRange {name}_ranges[] = {{\n")
        line = "   "
        for first, last in ranges[key]:
            item = f" {{0x{first:04X}, 0x{last:04X}}},"
            if len(line) + len(item) > 120:
                out.write(line + "\n")
                line = "   "
            line += item
        out.write(line + "\n};\n")


def main():
    if sys.argv[1:] == ["measure"]:
        json.dump(measure(), sys.stdout)
    elif len(sys.argv) == 3 and sys.argv[1] == "ranges":
        with open(sys.argv[2], encoding="utf-8") as file:
            write(json.load(file), sys.stdout)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
