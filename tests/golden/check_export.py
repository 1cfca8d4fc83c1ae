"""Checks `tercet export` against transformers: what it writes is loaded without complaint and computes the same.

The four golden models and their reward models are widened to the vocabulary of the import fixtures' tokenizer (new rows
of the embedding are random), imported, and exported in fp32, fp16 and bf16, once in one file and once in shards. Their
weights are exact in all three types, so the logits computed in float64 and float32 must be those of golden.safetensors
in each.

Checked for every export, loaded by transformers' Auto classes: no key is missing, unexpected or of another shape, and
nothing is logged as a warning; dtype and bytes of every tensor; logits against the golden ones and against `tercet score`;
rewards likewise; greedy text against `tercet generate`; ids of the tokenizer against `tercet tokenize`.

Usage: python check_export.py [--tercet ../../build/tercet]

Needs torch, transformers, safetensors and numpy from PyPI. Prints a line per export; stops at the first difference.
"""

import argparse
import contextlib
import io
import json
import logging
import os
import pathlib
import shutil
import subprocess
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import safetensors.torch
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

HERE = pathlib.Path(__file__).resolve().parent
TOKENIZER = HERE / "import" / "bin-fp32"
VOCABULARY = 272
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# Of logits and rewards relative to the largest: of equal weights, computed in the same order but for sums.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5}
TERCET_NAMES = {torch.float64: "fp64", torch.float32: "fp32"}
EMBEDDING = "model.decoder.embed_tokens.weight"
TEXTS = ["", "the other in  the   hen", "\n\nHuman: on a tin?\n\nAssistant: then.", "caf\u00e9 \U0001f600 12",
         "a\ttab\r\nand 123 more\u00a0of it's"]
PROMPTS = ["the", "on a tin", "\n\nHuman: hen?\n\nAssistant:", "12", "x y z"]
NEW_TOKENS = 32


class Tercet:
    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder

    def run(self, *arguments, text=""):
        done = subprocess.run([self.binary, *map(str, arguments)], input=text, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"tercet {' '.join(map(str, arguments))}: {done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def score(self, model, sequences, dtype=torch.float32):
        data = self.folder / "ids.jsonl"
        data.write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in sequences))
        return self.run("score", "--model", model, "--data", data, "--device", "cpu", "--dtype", TERCET_NAMES[dtype])


def require(condition, message):
    if not condition:
        raise RuntimeError(message)


def widened(embedding):
    """The embedding with random rows up to the vocabulary, exact in fp16 and bf16."""
    generator = torch.Generator().manual_seed(1)
    more = torch.randn(VOCABULARY - len(embedding), embedding.shape[1], generator=generator)
    more = (torch.round(more * 2.0 / embedding.shape[1] ** 0.5 * 4096) / 4096).to(torch.bfloat16).to(torch.float32)
    return torch.cat([embedding, more])


def make_folder(folder, source, reward):
    """A Hugging Face folder of a golden model in fp32; returns its tensors."""
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    config["vocab_size"] = VOCABULARY
    if reward:
        config.update(architectures=["OPTForSequenceClassification"], id2label={"0": "r"}, label2id={"r": 0})
    (folder / "config.json").write_text(json.dumps(config))
    weights = safetensors.torch.load_file(source / "model.safetensors")
    weights[EMBEDDING] = widened(weights[EMBEDDING])
    if reward:
        weights["score.weight"] = safetensors.torch.load_file(source / "golden.safetensors")["score.weight"].float()
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(TOKENIZER / name, folder)
    return weights


@contextlib.contextmanager
def no_warnings():
    """Fails when transformers logs a warning or prints to stderr."""
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    try:
        with contextlib.redirect_stderr(log):
            yield
    finally:
        logger.removeHandler(handler)
    require(not log.getvalue(), f"transformers complains: {log.getvalue()}")


def load(folder, reward, **options):
    kind = AutoModelForSequenceClassification if reward else AutoModelForCausalLM
    with no_warnings():
        model, loading = kind.from_pretrained(folder, output_loading_info=True, **options)
    require(not any(loading.values()), f"{folder}: {loading}")
    return model.eval()


def check_tensors(folder, weights, dtype, shards):
    files = sorted(folder.glob("*.safetensors"))
    require((len(files) > 1) == shards, f"{folder}: {files}")
    tensors = {}
    for file in files:
        tensors.update(safetensors.torch.load_file(file))
    require(tensors.keys() == weights.keys(), f"{folder}: names differ: {tensors.keys() ^ weights.keys()}")
    for name, tensor in tensors.items():
        wanted = weights[name].to(dtype)
        require(tensor.dtype == dtype and tensor.shape == wanted.shape, f"{folder}: {name} is {tensor.dtype}")
        require(torch.equal(tensor.view(torch.uint8), wanted.view(torch.uint8)), f"{folder}: {name} differs")


def largest_difference(found, wanted):
    """Relative to the largest wanted value."""
    found, wanted = torch.as_tensor(found, dtype=torch.float64), torch.as_tensor(wanted, dtype=torch.float64)
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def check_logits(tercet, file, model, golden, values):
    sequences = golden["batch"]["sequences"]
    with torch.no_grad():
        logits = [model(input_ids=torch.tensor([ids])).logits[0] for ids in sequences]
    known = values["logits"].shape[1]
    worst = largest_difference(torch.cat(logits)[:, :known], values["logits"])
    log_probs = [torch.log_softmax(rows.double(), -1)[range(len(ids) - 1), ids[1:]]
                 for ids, rows in zip(sequences, logits)]
    scored = [value for line in tercet.score(file, sequences, model.dtype) for value in line["logprobs"]]
    return max(worst, largest_difference(torch.cat(log_probs), scored))


def check_rewards(tercet, file, model, golden):
    pairs, rewards = golden["reward"]["pairs"], golden["reward"]["rewards"]
    sequences = [pair[side] for pair in pairs for side in ("chosen", "rejected")]
    known = [reward[side] for reward in rewards for side in ("chosen", "rejected")]
    with torch.no_grad():
        scores = [model(input_ids=torch.tensor([ids])).logits for ids in sequences]
    require(all(s.shape == (1, 1) for s in scores), "the classifier has more than one label")
    scores = [s.item() for s in scores]
    scored = [line["reward"] for line in tercet.score(file, sequences, model.dtype)]
    return max(largest_difference(scores, known), largest_difference(scores, scored))


def check_greedy(tercet, file, model, tokenizer):
    """Returns the number of texts that are equal, which must be all."""
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            out = model.generate(**ids, do_sample=False, max_new_tokens=NEW_TOKENS)[0, ids.input_ids.shape[1] :]
        theirs = tokenizer.decode(out, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        [line] = tercet.run("generate", "--model", file, f"--prompt={prompt}", "--template", "none", "--temperature", "0",
                            "--max-new-tokens", NEW_TOKENS)
        require(theirs == line["response"], f"{file}: after {prompt!r}: {theirs!r} and {line['response']!r}")
    return len(PROMPTS)


def check_tokenizer(tercet, file, folder):
    with no_warnings():
        tokenizer = AutoTokenizer.from_pretrained(folder)
    lines = tercet.run("tokenize", "--model", file, text="".join(json.dumps({"text": t}) + "\n" for t in TEXTS))
    for text, line in zip(TEXTS, lines, strict=True):
        require(tokenizer(text)["input_ids"] == line["ids"], f"{folder}: ids of {text!r}")
        require(tokenizer.decode(line["ids"], skip_special_tokens=True) == text, f"{folder}: text of {text!r}")
    specials = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id, tokenizer.pad_token_id)
    require(specials == (2, 2, 2, 1), f"{folder}: special ids {specials}")
    return tokenizer


def check(tercet, name, reward, dtype_name, max_shard_size):
    source = HERE / "models" / name
    golden = json.loads((source / "golden.json").read_text())
    stem = tercet.folder / f"{name}-{'reward' if reward else 'lm'}-{dtype_name}-{max_shard_size}"
    original, exported, again = (stem.with_suffix(s) for s in (".original", ".exported", ".again"))
    file, imported = stem.with_suffix(".h5"), stem.with_suffix(".again.h5")
    weights = make_folder(original, source, reward)
    tercet.run("import", original, "--out", file, "--dtype", dtype_name)
    tercet.run("export", file, "--out", exported, "--max-shard-size", max_shard_size)
    check_tensors(exported, weights, DTYPES[dtype_name], shards=max_shard_size != "5GB")
    tokenizer = check_tokenizer(tercet, file, exported)

    as_stored = load(exported, reward)
    require(as_stored.dtype == DTYPES[dtype_name], f"{exported}: loaded as {as_stored.dtype}")
    worst, texts = {}, 0
    for dtype, tolerance in TOLERANCES.items():
        model = load(exported, reward, dtype=dtype)
        if reward:
            worst[dtype] = check_rewards(tercet, file, model, golden)
        else:
            values = safetensors.torch.load_file(source / "golden.safetensors")
            worst[dtype] = check_logits(tercet, file, model, golden, values)
        require(worst[dtype] <= tolerance, f"{exported}: values in {dtype} differ by {worst[dtype]}")
    if not reward:
        texts = check_greedy(tercet, file, model, tokenizer)

    # What transformers saves from it is imported as the same weights.
    with no_warnings():
        as_stored.save_pretrained(again)
        tokenizer.save_pretrained(again)
    tercet.run("import", again, "--out", imported)
    require(tercet.score(file, golden["batch"]["sequences"]) == tercet.score(imported, golden["batch"]["sequences"]),
            f"{again}: other scores")
    print(f"{name:8} {'reward model' if reward else 'language model':14} {dtype_name} shards of {max_shard_size:4}: "
          f"largest difference {worst[torch.float64]:.0e} in fp64, {worst[torch.float32]:.0e} in fp32"
          + (f", {texts} greedy texts equal" if texts else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tercet", default=HERE.parent.parent / "build" / "tercet", help="the built program")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_warning()
    transformers.utils.logging.disable_progress_bar()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        tercet = Tercet(pathlib.Path(arguments.tercet).resolve(), pathlib.Path(folder))
        for name in ("pre_ln", "post_ln", "gelu", "head80"):
            for reward in (False, True):
                for dtype_name in DTYPES:
                    for max_shard_size in ("5GB", "10KB"):
                        check(tercet, name, reward, dtype_name, max_shard_size)


if __name__ == "__main__":
    main()
