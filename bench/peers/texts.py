#!/usr/bin/env python3
"""Texts for the comparison with a peer: dialogues whose lengths are those of a list, of words that a tokenizer of any kind
cuts into several tokens each. Usage: texts.py TOKENIZER_FOLDER LENGTHS ANSWER_TOKENS OUT.jsonl; LENGTHS is "48,64,..." in
tokens, the two ids 2 included; every answer has ANSWER_TOKENS (0: half of the length)."""
import json
import random
import sys

from tokenizers import ByteLevelBPETokenizer


def text_of(tokenizer, rng, tokens, prefix):
    """A text of exactly `tokens` tokens."""
    text = prefix + "".join(rng.choice("etaoinshrdlu") for _ in range(3))
    while True:
        ids = tokenizer.encode(text).ids
        if len(ids) == tokens:
            return text
        if len(ids) < tokens:
            text += rng.choice([" ", "", ""]) + rng.choice("etaoinshrdluETAOIN0123456789")
        else:
            text = text[:-2]


def main():
    folder, lengths, answer, out = sys.argv[1:]
    tokenizer = ByteLevelBPETokenizer(f"{folder}/vocab.json", f"{folder}/merges.txt")
    rng = random.Random(1)
    with open(out, "w") as file:
        for length in map(int, lengths.split(",")):
            response = int(answer) or length // 2
            prompt = text_of(tokenizer, rng, length - 2 - response, "")
            file.write(json.dumps({"prompt": prompt, "response": text_of(tokenizer, rng, response, " ")[1:]}) + "\n")


main()
