"""Writes tests/real_weights/small.json: the figures of weights/demo.h5 as transformers computes them, in the form of
tests/real_weights/expected.json. They test how the figures of OPT's weights are measured.

Usage: make_real_weights_golden.py FOLDER TEXT OUT, with the folder of `tercet export weights/demo.h5 --out FOLDER`.
Made with transformers 5.24 and torch 2.15 on a CPU, in fp32.
"""

import hashlib
import json
import math
import struct
import sys

import torch
import transformers

WINDOW = 48


def main(folder, text_path, out):
    transformers.logging.set_verbosity_error()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False)

    def forward(ids, **more):
        with torch.no_grad():
            return model(torch.tensor([ids]), **more)

    lines = open(text_path, encoding="utf-8").read().split("\n")[:-1]
    rows = ["" if line.strip() == "" else line + "\n" for line in lines]
    ids = [2] + encode("\n\n".join(rows))
    windows = [ids[i : i + WINDOW] for i in range(0, len(ids) - WINDOW + 1, WINDOW)]
    losses = [forward(window, labels=torch.tensor([window])).loss.item() for window in windows]

    prompt = [2] + encode("\n\nHuman: Tom likes tea. What does Tom like?\n\nAssistant:")
    output = forward(prompt, labels=torch.tensor([prompt]), output_hidden_states=True)
    probability, likeliest = output.logits[0].softmax(-1).max(-1)
    text = "Tom likes tea. Ana likes"
    with torch.no_grad():
        state = model.model.decoder(torch.tensor([prompt])).last_hidden_state[0]
    greedy = []
    for question in ("\n\nHuman: Tom likes tea. What does Tom like?\n\nAssistant:", "The goat is"):
        start = [2] + encode(question)
        length = len(start) + 12
        ends = model.generate(torch.tensor([start]), do_sample=False, max_length=length, eos_token_id=2, pad_token_id=1)
        greedy.append({"prompt": question, "length": length, "response": tokenizer.decode(
            [i for i in ends[0, len(start) :].tolist() if i > 2], skip_special_tokens=False)})

    figures = {
        "perplexity": math.exp(sum(losses) / len(losses)),
        "probabilities": [{"ids": prompt, "likeliest": likeliest.tolist(), "probability": probability.tolist(),
                           "cross_entropy": output.loss.item()}],
        "last_hidden_state": [{"ids": prompt, "values": state[:3, :3].tolist()}],
        "mean_logits": [{"text": text, "values": forward(encode(text)).logits[0].mean(-1).tolist()}],
        "greedy": greedy,
    }
    with open(out, "w", encoding="utf-8") as file:
        json.dump({"about": "Made by tests/golden/make_real_weights_golden.py.",
                   "text": {"ids": len(ids), "first": ids[:12], "sha256": hashlib.sha256(struct.pack(f"<{len(ids)}i", *ids)).hexdigest()},
                   "window": WINDOW, "models": {"demo": figures}}, file, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
