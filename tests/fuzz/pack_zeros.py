"""Packs a file for the corpus of the HDF5 fuzzer: usage: pack_zeros.py FILE CORPUS_FILE."""
import re
import struct
import sys

data = open(sys.argv[1], "rb").read()
packed = b"\x01"
position = 0
while position < len(data):
    zeros = len(re.match(rb"\0*", data[position:]).group())
    zeros = min(zeros, 0xFFFF)
    position += zeros
    end = data.find(b"\0" * 8, position)
    end = len(data) if end < 0 else end
    literal = data[position : min(end, position + 0xFFFF)]
    packed += struct.pack("<HH", zeros, len(literal)) + literal
    position += len(literal)
open(sys.argv[2], "wb").write(packed)
