#!/usr/bin/env python3
"""The peer of bench/peers/run.sh: PyTorch and transformers on the same weights, texts and cores, as users run them: batches padded
to their longest sequence, scaled_dot_product_attention, fused AdamW, generate() with its own KV cache.

  torch_peer.py sft      MODEL_FOLDER DATA STEPS MICRO_BATCH response|all   {"parameters", "losses", "seconds", "tokens", "peak_mib"}
  torch_peer.py generate MODEL_FOLDER DATA NEW_TOKENS                       {"seconds", "ids"}"""
import json
import resource
import sys
import time

import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import OPTForCausalLM

EOS, PAD = 2, 1


def read(folder, data):
    tokenizer = ByteLevelBPETokenizer(f"{folder}/vocab.json", f"{folder}/merges.txt")
    encode = lambda text: tokenizer.encode(text).ids
    records = [json.loads(line) for line in open(data)]
    return [([EOS] + encode(r["prompt"]), encode(" " + r["response"]) + [EOS]) for r in records]


def padded(records, loss_on):
    longest = max(len(p) + len(a) for p, a in records)
    ids = torch.full((len(records), longest), PAD)
    mask = torch.zeros_like(ids)
    labels = torch.full_like(ids, -100)
    for row, (prompt, answer) in enumerate(records):
        n = len(prompt) + len(answer)
        ids[row, :n] = torch.tensor(prompt + answer)
        mask[row, :n] = 1
        first = len(prompt) if loss_on == "response" else 1
        labels[row, first:n] = ids[row, first:n]
    return ids, mask, labels


def sft(model, records, steps, micro_batch, loss_on):
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), eps=1e-8, weight_decay=0, fused=True)
    batches = [padded(records[i:i + micro_batch], loss_on) for i in range(0, len(records), micro_batch)]
    labelled = sum(int((labels != -100).sum()) for _, _, labels in batches)
    losses, seconds = [], []
    for _ in range(steps):
        start = time.perf_counter()
        total = 0.0
        for ids, mask, labels in batches:
            logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(
                logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), ignore_index=-100, reduction="sum") / labelled
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    parameters = sum(p.numel() for p in model.parameters())
    return {"parameters": parameters, "losses": losses, "seconds": seconds, "tokens": sum(len(p) + len(a) for p, a in records), "peak_mib": peak}


def generate(model, records, new_tokens):
    model.eval()
    longest = max(len(p) for p, _ in records)
    ids = torch.full((len(records), longest), PAD)
    mask = torch.zeros_like(ids)
    for row, (prompt, _) in enumerate(records):
        ids[row, longest - len(prompt):] = torch.tensor(prompt)
        mask[row, longest - len(prompt):] = 1
    start = time.perf_counter()
    with torch.no_grad():
        out = model.generate(input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=new_tokens,
                             eos_token_id=EOS, pad_token_id=PAD)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "ids": [row[longest:].tolist() for row in out]}


def main():
    task, folder, data, *rest = sys.argv[1:]
    model = OPTForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa")
    records = read(folder, data)
    if task == "sft":
        steps, micro_batch, loss_on = rest
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        model.config.dropout = model.config.attention_dropout = 0.0
        for layer in model.model.decoder.layers:
            layer.dropout = layer.self_attn.dropout = 0.0
        model.model.decoder.dropout = 0.0
        result = sft(model, records, int(steps), int(micro_batch), loss_on)
    else:
        result = generate(model, records, int(rest[0]))
    print(json.dumps(result))


main()
