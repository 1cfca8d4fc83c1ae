#!/usr/bin/env python3
"""Writes tokenizer_goldens.json: what Hugging Face's `tokenizers` makes of real text.

    make_tokenizer_goldens.py DATA_FOLDER > tokenizer_goldens.json

Needs the packages tokenizers and xxhash. DATA_FOLDER holds OPT's vocabulary and merges (metaseq-gpt2-vocab.json and
metaseq-gpt2-merges.txt) and the data files. For each file: the texts are every string value of its JSON records, in the
order of the file (of a file that is not JSON: the whole file is one text); `ids` is how many ids all texts give, no special
tokens among them, and `xxh3_64` is the XXH3-64 of those ids as little-endian 32-bit integers, one text after another.
`perplexity_text` is the text of the usual WikiText-2 perplexity: the lines of the raw file, a blank one as "" and another
with its line feed, joined by two line feeds; its ids begin with id 2.
"""

import gzip
import json
import os
import sys

import tokenizers
import xxhash
from tokenizers import Tokenizer, models, pre_tokenizers

FILES = [
    "gsm8k-test.jsonl",
    "gsm8k-train.jsonl",
    "hh-harmless-base-test.jsonl.gz",
    "mt_bench-question.jsonl",
    "oasst-en_100_tree.jsonl",
    "opt_tokenizer_goldens.jsonl",
    "self-instruct-seed_tasks.jsonl",
    "self-instruct-user_oriented.jsonl",
    "wikitext-2-raw-test.raw",
]


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)


def texts(path):
    with open(path, "rb") as file:
        data = file.read()
    if path.endswith(".gz"):
        data = gzip.decompress(data)
    if ".jsonl" not in path:
        yield data.decode("utf-8")
        return
    for line in data.split(b"\n"):
        if line.strip():
            yield from strings(json.loads(line))


def load(folder):
    tokenizer = Tokenizer(
        models.BPE.from_file(
            os.path.join(folder, "metaseq-gpt2-vocab.json"), os.path.join(folder, "metaseq-gpt2-merges.txt")
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return tokenizer


def measure(tokenizer, path):
    digest = xxhash.xxh3_64()
    counts = {"texts": 0, "ids": 0}
    for text in texts(path):
        ids = tokenizer.encode(text).ids
        digest.update(b"".join(i.to_bytes(4, "little") for i in ids))
        counts["texts"] += 1
        counts["ids"] += len(ids)
    return {**counts, "xxh3_64": digest.hexdigest()}


def measure_perplexity_text(tokenizer, path):
    with open(path, encoding="utf-8", newline="") as file:
        lines = file.read().split("\n")[:-1]
    text = "\n\n".join(line + "\n" if line.strip() else "" for line in lines)
    ids = [2] + tokenizer.encode(text).ids
    return {"ids": len(ids), "xxh3_64": xxhash.xxh3_64_hexdigest(b"".join(i.to_bytes(4, "little") for i in ids))}


def main():
    folder = sys.argv[1]
    tokenizer = load(folder)
    files = {name: measure(tokenizer, os.path.join(folder, name)) for name in FILES}
    golden = {
        "tokenizers": tokenizers.__version__,
        "files": files,
        "perplexity_text": measure_perplexity_text(tokenizer, os.path.join(folder, "wikitext-2-raw-test.raw")),
    }
    json.dump(golden, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
