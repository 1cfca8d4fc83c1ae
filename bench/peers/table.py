#!/usr/bin/env python3
"""The table of bench/peers/run.sh, from the files that it left. Usage: table.py FOLDER ROUNDS"""
import json
import platform
import statistics
import sys
import time

import torch
import transformers

folder, rounds = sys.argv[1], range(1, int(sys.argv[2]) + 1)


def lines(name):
    return [json.loads(line) for line in open(f"{folder}/{name}")]


def row(what, ours, theirs, unit, ratio, note):
    print(f"{what:34} {ours:10.2f} {theirs:10.2f} {unit:10} {ratio:6.2f}x  {note}")


def sft(name, what):
    peers = [lines(f"{name}-peer-{r}.json")[0] for r in rounds]
    ours = [[line["time/step"] for line in lines(f"{name}-tercet-{r}-timings.jsonl")][1:] for r in rounds]
    tokens = peers[0]["tokens"]
    a = tokens / statistics.median(min(times) for times in ours)
    b = tokens / statistics.median(min(peer["seconds"][1:]) for peer in peers)
    losses = [line["sft/loss"] for line in lines(f"{name}-tercet-1-metrics.jsonl") if "sft/loss" in line]
    difference = max(abs(x - y) / y for x, y in zip(losses, peers[0]["losses"]))
    row(what, a, b, "tokens/s", a / b, f"losses of {len(losses)} steps within {difference:.1e}")
    state = peers[0]["parameters"] * 4 * 4 / 2**20  # weights, gradients and two moments in fp32
    memory = statistics.median(lines(f"{name}-tercet-{r}.json")[0]["peak_mib"] for r in rounds) - state
    peer_memory = statistics.median(peer["peak_mib"] for peer in peers) - state
    row("  memory beyond the state", memory, peer_memory, "MiB", peer_memory / memory, "")


def generation():
    def seconds(kind, r, tokens):
        return lines(f"generate-{kind}-{r}-{tokens}.json")[0]["seconds"]

    ours = lines("generate-tercet-1-65.jsonl")
    texts = len(ours)
    a, b = (texts * 64 / statistics.median(seconds(kind, r, 65) - seconds(kind, r, 1) for r in rounds) for kind in ("tercet", "peer"))
    row("generation, 16 mixed prompts", a, b, "tokens/s", a / b, "greedy, 64 tokens each")


print(f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, {torch.get_num_threads()} threads; "
      f"peer: torch {torch.__version__}, transformers {transformers.__version__}; median of {len(rounds)} rounds, best step of each")
print(f"{'OPT-125M, fp32':34} {'tercet':>10} {'peer':>10}")
sft("mixed", "SFT, mixed lengths")
sft("equal-response", "SFT, equal, loss on answers")
sft("equal-all", "SFT, equal, loss on all tokens")
generation()
