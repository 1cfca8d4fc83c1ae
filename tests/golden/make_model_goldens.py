"""Makes the golden values of the model tests: tests/golden/models/ and tests/golden/import/.

Four tiny random OPT models are evaluated and trained with transformers' OPTForCausalLM and
OPTForSequenceClassification in float64 on one CPU thread. Every logit is checked here against a second forward pass
written in plain numpy, and a sample of every gradient against central differences, before anything is written.

Usage: python make_model_goldens.py [--only models|import]

Needs torch, transformers, safetensors, numpy and xxhash from PyPI. Running it twice with the same versions writes the
same bytes. README.md in this folder describes the files.
"""

import argparse
import collections
import copy
import json
import math
import os
import pathlib
import shutil

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import safetensors
import safetensors.torch
import torch
import torch.nn.functional as F
import transformers
import xxhash
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import GPT2Tokenizer, OPTConfig, OPTForCausalLM, OPTForSequenceClassification

HERE = pathlib.Path(__file__).resolve().parent
EOS = 2
PAD = 1  # never used as an input: transformers gives this row no gradient through the lookup
NEW_TOKENS = 64
MIN_MARGIN = 5e-3  # between the two largest logits of every greedy step, so that fp32 picks the same tokens
EOS_SCALE = 2.0  # the row of id 2 is longer than the others, so that some greedy continuations end early
LENGTHS = [1, 2, 7, 13, 20]
PROMPT_LENGTHS = [1, 1, 3, 5, 11]
GREEDY_PROMPT_LENGTHS = [1, 2, 5, 9, 13, 16]
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
MAX_GRAD_NORM = 1.0
STEPS = 10

# strides: the golden tensors of that kind keep the elements 0, stride, 2*stride, ... of the flattened parameter
# (1 keeps all, in the parameter's own shape).
MODELS = {
    "pre_ln": dict(
        seed=11,
        strides=dict(gradient=1, final=1, reward_gradient=5),
        config=dict(vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64),
    ),
    "post_ln": dict(
        seed=27,
        strides=dict(gradient=1, final=1, reward_gradient=5),
        config=dict(vocab_size=101, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, ffn_dim=48,
                    word_embed_proj_dim=20, do_layer_norm_before=False),
    ),
    "gelu": dict(
        seed=13,
        strides=dict(gradient=1, final=1, reward_gradient=5),
        config=dict(vocab_size=103, hidden_size=24, num_hidden_layers=3, num_attention_heads=3, ffn_dim=40,
                    activation_function="gelu", enable_bias=False, layer_norm_elementwise_affine=False),
    ),
    "head80": dict(
        seed=26,
        strides=dict(gradient=13, final=13, reward_gradient=13),
        config=dict(vocab_size=97, hidden_size=160, num_hidden_layers=1, num_attention_heads=2, ffn_dim=48),
    ),
}


def versions():
    """Versions of everything the values depend on, stored with them."""
    return {
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "safetensors": safetensors.__version__,
        "numpy": np.__version__,
        "xxhash": xxhash.VERSION,
    }


def write_json(path, value):
    """Writes JSON whose innermost lists stand on one line each; floats round-trip."""
    path.write_text(format_json(value) + "\n", encoding="utf-8")


def format_json(value, indent=""):
    deeper = indent + " "
    if isinstance(value, dict) and value:
        items = [f"{deeper}{json.dumps(k)}: {format_json(v, deeper)}" for k, v in value.items()]
        return "{\n" + ",\n".join(items) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(v, (list, dict)) for v in value):
        return "[\n" + ",\n".join(deeper + format_json(v, deeper) for v in value) + f"\n{indent}]"
    return json.dumps(value, ensure_ascii=True)


def save_safetensors(tensors, path):
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)


# ---------------------------------------------------------------------------------------------------------------------
# Models


def representable(x):
    """Rounds to values that fp32, fp16 and bf16 all hold exactly: a multiple of 2^-12 with 8 significant bits."""
    return (torch.round(x * 4096) / 4096).to(torch.bfloat16).to(torch.float64)


def random_weight(name, shape, generator):
    """A weight with nothing left at its usual initial value; scales keep activations and gradients of order one."""
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    if "layer_norm" in name:
        return 1 + 0.25 * noise if name.endswith("weight") else 0.2 * noise
    if name.endswith("bias"):
        return 0.2 * noise
    if "embed_positions" in name:
        return 0.5 * noise
    if "embed_tokens" in name:
        noise[EOS] *= EOS_SCALE
        return 2.8 / math.sqrt(shape[-1]) * noise
    residual = "out_proj" in name or "fc2" in name
    return (2.4 if residual else 1.2) / math.sqrt(shape[-1]) * noise


def make_config(settings):
    return OPTConfig(max_position_embeddings=80, dropout=0.0, attn_implementation="sdpa", dtype="float32",
                     architectures=["OPTForCausalLM"], **settings)


def make_model(config, seed):
    generator = torch.Generator().manual_seed(seed)
    model = OPTForCausalLM(config).to(torch.float64).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(representable(random_weight(name, parameter.shape, generator)))
    return model


def named_parameters(model):
    """Parameters under their Hugging Face names; the tied embedding appears once."""
    return {name: parameter for name, parameter in model.named_parameters() if name != "lm_head.weight"}


def random_sequence(length, vocab_size, rng, ended):
    """Starts with id 2; holds neither id 1 nor another id 2, but for the last position when `ended`."""
    body = [t if t != PAD else 0 for t in (int(v) for v in rng.integers(0, vocab_size, length - 1))]
    body = [t if t != EOS else 3 for t in body]
    if ended and body:
        body[-1] = EOS
    return [EOS] + body


def logits_of(model, ids):
    """Logits [T, V] of one sequence run alone, without padding or mask."""
    with sdpa_kernel(SDPBackend.MATH):
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def language_model_loss(model, sequences, prompt_lengths):
    """Mean cross-entropy over the targets at positions >= the prompt length, over all sequences together."""
    total, count = torch.zeros((), dtype=torch.float64), 0
    for ids, prompt_length in zip(sequences, prompt_lengths):
        first = max(prompt_length, 1)
        if len(ids) <= first:
            continue
        logits = logits_of(model, ids)[first - 1 : -1]
        total = total + F.cross_entropy(logits, torch.tensor(ids[first:]), reduction="sum")
        count += len(ids) - first
    return total / count, count


def gradients(model, loss):
    model.zero_grad(set_to_none=True)
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in named_parameters(model).items()}


def train(model, sequences, prompt_lengths):
    """Ten AdamW steps on the same batch. Returns losses and gradient norms, each from before its step."""
    parameters = list(named_parameters(model).values())
    groups = [
        dict(params=[p for p in parameters if p.ndim == 2], weight_decay=ADAMW["weight_decay"]),
        dict(params=[p for p in parameters if p.ndim != 2], weight_decay=0.0),
    ]
    groups = [group for group in groups if group["params"]]
    optimizer = torch.optim.AdamW(groups, lr=ADAMW["lr"], betas=ADAMW["betas"], eps=ADAMW["eps"])
    losses, norms = [], []
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        loss, _ = language_model_loss(model, sequences, prompt_lengths)
        loss.backward()
        losses.append(loss.item())
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM).item())
        optimizer.step()
    return losses, norms


def greedy(model, prompt):
    """Greedy continuation until id 2 (kept) or NEW_TOKENS. Returns the tokens and the smallest margin met."""
    ids, margin = list(prompt), math.inf
    while len(ids) - len(prompt) < NEW_TOKENS:
        best = torch.topk(logits_of(model, ids)[-1], 2)
        margin = min(margin, (best.values[0] - best.values[1]).item())
        ids.append(int(best.indices[0]))
        if ids[-1] == EOS:
            break
    return ids[len(prompt) :], margin


def screen(model, prompts):
    """Lengths of the greedy continuations of prompts of one length, and whether each keeps the margin."""
    ids, margins = torch.tensor(prompts), torch.full((len(prompts),), math.inf)
    lengths = torch.full((len(prompts),), NEW_TOKENS + 1)
    for step in range(1, NEW_TOKENS + 1):
        best = torch.topk(model(input_ids=ids, use_cache=False).logits[:, -1], 2)
        running = lengths > NEW_TOKENS
        margins = torch.where(running, torch.minimum(margins, best.values[:, 0] - best.values[:, 1]), margins)
        lengths = torch.where(running & (best.indices[:, 0] == EOS), step, lengths)
        ids = torch.cat([ids, best.indices[:, :1]], dim=1)
    variety = [len(set(row[len(prompts[0]) :])) for row in ids.tolist()]
    return lengths.tolist(), (margins > 1.1 * MIN_MARGIN).tolist(), variety


def choose_prompts(model, rng):
    """Prompts for the greedy golden, of every wanted length: alternately one that ends early, late rather than at
    once, and the one with the most different tokens among those that run on."""
    quick = copy.deepcopy(model).to(torch.float32)
    chosen = []
    for index, length in enumerate(GREEDY_PROMPT_LENGTHS):
        count = 1 if length == 1 else 64
        prompts = [random_sequence(length, model.config.vocab_size, rng, ended=False) for _ in range(count)]
        lengths, kept, variety = screen(quick, prompts)
        wants_early = index % 2 == 1
        order = sorted(
            (i for i in range(count) if kept[i]),
            key=lambda i: ((lengths[i] <= NEW_TOKENS) == wants_early, variety[i]),
            reverse=True)
        if order:
            chosen.append((prompts[order[0]], *greedy(model, prompts[order[0]])))
    ends_early = [continuation[-1] == EOS for _, continuation, _ in chosen]
    margin = min(m for _, _, m in chosen)
    if sum(ends_early) < 2 or ends_early.count(False) < 2 or margin < MIN_MARGIN:
        raise RuntimeError(f"greedy: ends early {ends_early}, margin {margin}: change the model's seed")
    return chosen


def reference_logits(weights, config, ids):
    """The same forward pass in plain numpy, written apart from transformers, as a second opinion."""
    w = {name.removeprefix("model.decoder."): tensor.numpy() for name, tensor in weights.items()}
    heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads

    def linear(x, name):
        return x @ w[name + ".weight"].T + w.get(name + ".bias", 0.0)

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * w.get(name + ".weight", 1.0) + w.get(name + ".bias", 0.0)

    def attention(x, name):
        q, k, v = (linear(x, f"{name}.{which}_proj").reshape(-1, heads, size) for which in "qkv")
        scores = np.einsum("ihd,jhd->hij", q * size**-0.5, k)
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        return linear(np.einsum("hij,jhd->ihd", p, v).reshape(x.shape), name + ".out_proj")

    def activation(x):
        if config.activation_function == "relu":
            return np.maximum(x, 0)
        return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))

    h = w["embed_tokens.weight"][ids]
    if "project_in.weight" in w:
        h = linear(h, "project_in")
    h = h + w["embed_positions.weight"][np.arange(len(ids)) + 2]
    before = config.do_layer_norm_before
    for i in range(config.num_hidden_layers):
        name = f"layers.{i}."
        for block, layer_norm in (("attention", "self_attn_layer_norm"), ("ffn", "final_layer_norm")):
            x = norm(h, name + layer_norm) if before else h
            if block == "attention":
                x = attention(x, name + "self_attn")
            else:
                x = linear(activation(linear(x, name + "fc1")), name + "fc2")
            h = h + x if before else norm(h + x, name + layer_norm)
    if before:
        h = norm(h, "final_layer_norm")
    if "project_out.weight" in w:
        h = linear(h, "project_out")
    return h @ w["embed_tokens.weight"].T


def check_gradients(parameters, grads, loss_function, rng):
    """Central differences at three elements of every parameter; the error of the rule itself is about 1e-9 here."""
    worst = 0.0
    with torch.no_grad():
        for name, parameter in parameters.items():
            flat = parameter.view(-1)
            for index in rng.integers(0, flat.numel(), 3):
                value, step = flat[index].item(), 1e-6
                flat[index] = value + step
                above = loss_function().item()
                flat[index] = value - step
                below = loss_function().item()
                flat[index] = value
                worst = max(worst, abs((above - below) / (2 * step) - grads[name].view(-1)[index].item()))
    if worst > 2e-7:
        raise RuntimeError(f"a gradient differs from its central difference by {worst}")
    return worst


def thinned(tensors, prefix, stride):
    """Golden copies of parameter-shaped tensors: whole, or every stride-th element of the flattened tensor."""
    keep = (lambda t: t) if stride == 1 else (lambda t: t.reshape(-1)[::stride])
    return {f"{prefix}/{name}": keep(t.detach()).clone().contiguous() for name, t in tensors.items()}


def summary(tensors):
    """Sum and Euclidean norm of every whole tensor."""
    return {name: [t.sum().item(), t.norm().item()] for name, t in tensors.items()}


def reward_goldens(config, weights, rng, generator):
    """Scores, both ranking losses and the gradient of the last-token one, for two pairs of ragged sequences."""
    config = OPTConfig.from_dict(dict(config.to_dict(), num_labels=1))
    config._attn_implementation = "sdpa"
    model = OPTForSequenceClassification(config).to(torch.float64).eval()
    model.load_state_dict(weights, strict=False)
    width = config.word_embed_proj_dim
    with torch.no_grad():
        noise = torch.randn(1, width, generator=generator, dtype=torch.float64)
        model.score.weight.copy_(representable(noise / math.sqrt(width + 1)))
    pairs = []
    for common, chosen_length, rejected_length in ((4, 9, 12), (6, 15, 8)):
        chosen = random_sequence(chosen_length, config.vocab_size, rng, ended=True)
        rejected = random_sequence(rejected_length, config.vocab_size, rng, ended=True)
        rejected[:common] = chosen[:common]
        rejected[common] = 5 if chosen[common] in (0, config.vocab_size - 1) else chosen[common] + 1  # never PAD
        pairs.append((chosen, rejected))

    def scores(ids):
        with sdpa_kernel(SDPBackend.MATH):
            return model.score(model.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state)[0, :, 0]

    def last_token_loss():
        return torch.stack([F.softplus(scores(r)[-1] - scores(c)[-1]) for c, r in pairs]).mean()

    def token_loss():
        losses = []
        for chosen, rejected in pairs:
            first = next(i for i, (a, b) in enumerate(zip(chosen, rejected)) if a != b)
            end = max(len(chosen), len(rejected))
            c, r = scores(chosen), scores(rejected)
            held = lambda s: torch.cat([s, s[-1:].expand(end - len(s))])[first:]
            losses.append(F.softplus(held(r) - held(c)).mean())
        return torch.stack(losses).mean()

    with sdpa_kernel(SDPBackend.MATH):
        pooled = [model(input_ids=torch.tensor([ids])).logits.item() for pair in pairs for ids in pair]
    parameters = named_parameters(model)
    tokens_gradient = gradients(model, token_loss())["score.weight"]
    loss = last_token_loss()
    grads = gradients(model, loss)
    check_gradients(parameters, grads, last_token_loss, rng)
    values = torch.cat([scores(ids).detach() for pair in pairs for ids in pair])
    golden = {
        "pairs": [{"chosen": c, "rejected": r} for c, r in pairs],
        "rewards": [{"chosen": pooled[0], "rejected": pooled[1]}, {"chosen": pooled[2], "rejected": pooled[3]}],
        "last_token_loss": loss.item(),
        "token_loss": token_loss().item(),
        "gradient_sum_and_norm": summary(grads),
    }
    tensors = {
        "reward_values": values,
        "score.weight": model.score.weight.detach().clone(),
        "token_loss_gradient/score.weight": tokens_gradient,
    }
    return golden, tensors, grads


def make_model_goldens(name, settings):
    folder = HERE / "models" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    rng = np.random.default_rng(settings["seed"])
    config = make_config(settings["config"])
    model = make_model(config, settings["seed"])
    parameters = named_parameters(model)
    weights = {n: p.detach().clone() for n, p in parameters.items()}
    strides = settings["strides"]

    sequences = [random_sequence(n, config.vocab_size, rng, ended=n < LENGTHS[-1]) for n in LENGTHS]
    sequences[1] = random_sequence(2, config.vocab_size, rng, ended=False)
    with torch.no_grad():
        logits = torch.cat([logits_of(model, ids) for ids in sequences])
    reference = np.concatenate([reference_logits(weights, config, ids) for ids in sequences])
    logits_error = np.abs(logits.numpy() - reference).max()
    if logits_error > 1e-12:
        raise RuntimeError(f"{name}: transformers and the numpy forward pass differ by {logits_error}")

    loss, tokens = language_model_loss(model, sequences, PROMPT_LENGTHS)
    grads = gradients(model, loss)
    response_loss = lambda: language_model_loss(model, sequences, PROMPT_LENGTHS)[0]
    gradient_error = check_gradients(parameters, grads, response_loss, rng)
    with torch.no_grad():
        loss_all, tokens_all = language_model_loss(model, sequences, [0] * len(sequences))
        continuations = choose_prompts(model, rng)
    reward, reward_tensors, reward_grads = reward_goldens(
        config, weights, rng, torch.Generator().manual_seed(settings["seed"] + 100))
    losses, norms = train(model, sequences, PROMPT_LENGTHS)
    with torch.no_grad():
        final_loss = response_loss().item()
    final = {n: p.detach().clone() for n, p in parameters.items()}

    config.save_pretrained(folder)
    save_safetensors(
        {n: t.to(torch.float32) for n, t in weights.items()}, folder / "model.safetensors")
    save_safetensors(
        {
            "logits": logits.contiguous(),
            **thinned(grads, "gradient", strides["gradient"]),
            **thinned(final, "final", strides["final"]),
            **thinned(reward_grads, "reward_gradient", strides["reward_gradient"]),
            **reward_tensors,
        },
        folder / "golden.safetensors")
    write_json(folder / "golden.json", {
        "versions": versions(),
        "strides": strides,
        "batch": {"sequences": sequences, "prompt_lengths": PROMPT_LENGTHS},
        "response_loss": {"loss": loss.item(), "tokens": tokens, "gradient_sum_and_norm": summary(grads)},
        "all_tokens_loss": {"loss": loss_all.item(), "tokens": tokens_all},
        "adamw": {
            "lr": ADAMW["lr"], "beta1": ADAMW["betas"][0], "beta2": ADAMW["betas"][1], "eps": ADAMW["eps"],
            "weight_decay_of_matrices": ADAMW["weight_decay"], "max_grad_norm": MAX_GRAD_NORM,
            "clip_epsilon": 1e-6, "losses": losses, "grad_norms": norms, "loss_after": final_loss,
            "final_sum_and_norm": summary(final),
        },
        "greedy": {
            "max_new_tokens": NEW_TOKENS,
            "smallest_margin": min(m for _, _, m in continuations),
            "samples": [{"prompt": p, "continuation": c} for p, c, _ in continuations],
        },
        "reward": reward,
    })
    check_reload(folder, sequences, logits)
    size = sum(f.stat().st_size for f in folder.iterdir())
    print(f"{name}: {sum(p.numel() for p in parameters.values())} parameters, {size} bytes, "
          f"logits vs numpy {logits_error:.1e}, gradient vs differences {gradient_error:.1e}, "
          f"largest logit {logits.abs().max():.2f}, loss {loss.item():.6f} -> {final_loss:.6f}, norms {norms[0]:.3f}"
          f"..{norms[-1]:.3f}, continuation lengths {[len(c) for _, c, _ in continuations]}, "
          f"margin {min(m for _, _, m in continuations):.1e}")


def check_reload(folder, sequences, logits):
    """The stored folder, read back by transformers, gives the stored logits to the last bit."""
    model = OPTForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="sdpa").eval()
    with torch.no_grad():
        again = torch.cat([logits_of(model, ids) for ids in sequences])
    if not torch.equal(again, logits):
        raise RuntimeError(f"{folder}: reloading changes the logits")


# ---------------------------------------------------------------------------------------------------------------------
# Import fixtures

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
DTYPE_NAMES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
MERGES = ["\u0120 t", "h e", "\u0120t he", "i n", "\u0120 a", "e r", "o n", "\u0120 \u0120"]
SAMPLE_TEXTS = ["", "the other in  the   hen", "\n\nHuman: on a tin?\n\nAssistant: then.", "caf\u00e9 \U0001f600 12"]

IMPORT_MODELS = {
    "pre_ln": dict(),
    "post_ln": dict(do_layer_norm_before=False, word_embed_proj_dim=6),
    "gelu": dict(activation_function="gelu", enable_bias=False, layer_norm_elementwise_affine=False),
    "no_final_ln": dict(_remove_final_layer_norm=True),
    "reward": dict(num_labels=1),
}

# format: bin or safetensors, shards: 0 for one file without an index. prefix: of the decoder's tensors in the file.
# lm_head: absent; shared (same storage as embed_tokens); copy (a second tensor); only (embed_tokens is absent).
# quirk: see `apply_quirk`. config: "hub" is written as the public OPT repositories have it, "new" by transformers 5.
IMPORT_CASES = {
    "bin-fp32": dict(format="bin", dtype="fp32", lm_head="shared"),
    "bin-fp16-like-125m": dict(format="bin", dtype="fp16", lm_head="shared", config="hub", quirk="version"),
    "bin-fp16-like-350m": dict(model="post_ln", format="bin", dtype="fp16", prefix="decoder.", config="hub"),
    "bin-fp16-sharded-like-6.7b": dict(format="bin", shards=2, dtype="fp16", prefix="decoder.", config="hub"),
    "bin-fp32-metaseq-names": dict(format="bin", dtype="fp32", prefix="decoder.", quirk="metaseq"),
    "bin-fp32-views": dict(format="bin", dtype="fp32", lm_head="copy", quirk="views"),
    "bin-bf16-lm-head-only": dict(format="bin", dtype="bf16", lm_head="only"),
    "bin-bf16-sharded": dict(format="bin", shards=3, dtype="bf16", lm_head="copy"),
    "safetensors-fp32": dict(format="safetensors", dtype="fp32"),
    "safetensors-fp32-sharded": dict(format="safetensors", shards=3, dtype="fp32", lm_head="copy"),
    "safetensors-fp16-lm-head-only": dict(format="safetensors", dtype="fp16", lm_head="only", config="hub"),
    "safetensors-fp16-sharded-lm-head-only": dict(format="safetensors", shards=2, dtype="fp16", lm_head="only"),
    "safetensors-bf16-decoder-prefix": dict(format="safetensors", dtype="bf16", prefix="decoder.", lm_head="copy"),
    "safetensors-bf16-sharded": dict(format="safetensors", shards=2, dtype="bf16", prefix="decoder."),
    "safetensors-fp32-post-ln": dict(model="post_ln", format="safetensors", dtype="fp32"),
    "safetensors-fp16-gelu": dict(model="gelu", format="safetensors", dtype="fp16"),
    "safetensors-bf16-no-final-ln": dict(model="no_final_ln", format="safetensors", dtype="bf16"),
    "safetensors-fp32-reward": dict(model="reward", format="safetensors", dtype="fp32"),
    "safetensors-fp32-tokenizer-json": dict(format="safetensors", dtype="fp32", tokenizer="tokenizer.json"),
}


def import_config(name):
    return OPTConfig(vocab_size=272, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, ffn_dim=12,
                     max_position_embeddings=14, **IMPORT_MODELS[name])


def import_weights(name):
    """Full-precision random weights under canonical names, with a negative zero and subnormals of fp32 and fp16."""
    config = import_config(name)
    model = (OPTForSequenceClassification if name == "reward" else OPTForCausalLM)(config)
    generator = torch.Generator().manual_seed(1000 + list(IMPORT_MODELS).index(name))
    weights = {n: random_weight(n, p.shape, generator).to(torch.float32) for n, p in named_parameters(model).items()}
    weights["model.decoder.embed_tokens.weight"][0, :3] = torch.tensor([-0.0, 1e-40, 6e-8])
    return weights


def hub_config(config, dtype):
    """config.json with the keys that the public OPT repositories have; four of today's keys are absent there."""
    names = ["activation_function", "attention_dropout", "bos_token_id", "do_layer_norm_before", "dropout",
             "eos_token_id", "ffn_dim", "hidden_size", "init_std", "layerdrop", "max_position_embeddings", "model_type",
             "num_attention_heads", "num_hidden_layers", "pad_token_id", "use_cache", "vocab_size",
             "word_embed_proj_dim"]
    values = {n: getattr(config, n) for n in names}
    values.update(
        _name_or_path="tiny-opt", activation_dropout=0.0, architectures=["OPTForCausalLM"], output_projection=True,
        prefix="</s>", torch_dtype=DTYPE_NAMES[dtype], transformers_version="4.21.0.dev0")
    return dict(sorted(values.items()))


def apply_quirk(quirk, tensors, prefix):
    """Oddities met in real files.

    version: fairseq's buffer, and the metadata of a module's state_dict, both to be ignored. metaseq: the final norm
    is called layer_norm. views: tensors that are transposed, strided or offset views of shared storages, and
    Parameters instead of tensors.
    """
    if quirk == "version":
        tensors[prefix + "version"] = torch.tensor([3.0])
        tensors._metadata = collections.OrderedDict([("", {"version": 1}), ("model", {"version": 1})])
    elif quirk == "metaseq":
        for kind in ("weight", "bias"):
            tensors[f"{prefix}layer_norm.{kind}"] = tensors.pop(f"{prefix}final_layer_norm.{kind}")
    elif quirk == "views":
        for i in range(2):
            attention = f"{prefix}layers.{i}.self_attn."
            names = [f"{attention}{which}_proj.weight" for which in "kvq"]
            joined = torch.cat([tensors[n] for n in names])
            for n, part in zip(names, joined.chunk(3)):
                tensors[n] = part
            fc1 = f"{prefix}layers.{i}.fc1.weight"
            tensors[fc1] = tensors[fc1].t().contiguous().t()
            fc2 = f"{prefix}layers.{i}.fc2.bias"
            spread = torch.full((3 * tensors[fc2].numel() + 5,), 7.0)
            view = spread[5::3]
            view.copy_(tensors[fc2])
            tensors[fc2] = view
            norm = f"{prefix}layers.{i}.final_layer_norm.weight"
            tensors[norm] = torch.nn.Parameter(tensors[norm])
    return tensors


def file_tensors(weights, case):
    """The tensors of a case under the names they have in its files."""
    prefix, dtype = case.get("prefix", "model.decoder."), DTYPES[case["dtype"]]
    tensors = collections.OrderedDict(
        (n.replace("model.decoder.", prefix), t.to(dtype).clone()) for n, t in weights.items())
    embed = prefix + "embed_tokens.weight"
    lm_head = case.get("lm_head", "absent")
    if lm_head != "absent":
        tensors["lm_head.weight"] = tensors[embed].clone() if lm_head == "copy" else tensors[embed]
    if lm_head == "only":
        del tensors[embed]
    return apply_quirk(case.get("quirk"), tensors, prefix)


def save_tensors(folder, tensors, case):
    save = torch.save if case["format"] == "bin" else save_safetensors
    stem, suffix = ("pytorch_model", "bin") if case["format"] == "bin" else ("model", "safetensors")
    shards = case.get("shards", 0)
    if not shards:
        save(tensors, folder / f"{stem}.{suffix}")
        return
    names, weight_map = list(tensors), {}
    size = -(-len(names) // shards)
    for k in range(shards):
        file = f"{stem}-{k + 1:05d}-of-{shards:05d}.{suffix}"
        part = collections.OrderedDict((n, tensors[n]) for n in names[k * size : (k + 1) * size])
        save(part, folder / file)
        weight_map.update({n: file for n in part})
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index, indent=1) + "\n")


def byte_characters():
    """GPT-2's printable stand-in for each of the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(moved)) for b in range(256)]


def save_tokenizer(folder, kind):
    """vocab.json and merges.txt with the special ids of OPT, or the same as tokenizer.json."""
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    entries = specials + byte_characters() + [m.replace(" ", "") for m in MERGES]
    vocab = json.dumps({e: i for i, e in enumerate(entries)}, ensure_ascii=False)
    (folder / "vocab.json").write_text(vocab + "\n", encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(MERGES) + "\n", encoding="utf-8")
    settings = dict(add_bos_token=True, add_prefix_space=False, bos_token="</s>", eos_token="</s>", errors="replace",
                    pad_token="<pad>", tokenizer_class="GPT2Tokenizer", unk_token="</s>")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    if kind == "tokenizer.json":
        GPT2Tokenizer.from_pretrained(folder).save_pretrained(folder)
        for name in ("vocab.json", "merges.txt"):
            (folder / name).unlink()


def digests(weights, dtype):
    """Shape and XXH3-64 of the little-endian bytes of every tensor in one dtype."""
    return {
        name: {"shape": list(t.shape), "xxh3_64": xxhash.xxh3_64_hexdigest(raw_bytes(t.to(DTYPES[dtype])))}
        for name, t in weights.items()
    }


def raw_bytes(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def check_import(folder, case, expected, model_name):
    """Reads a case back with torch or safetensors and compares every tensor's bytes with the table."""
    tensors = {}
    for path in sorted(folder.glob("*.bin")) + sorted(folder.glob("*.safetensors")):
        tensors.update(torch.load(path, weights_only=True) if path.suffix == ".bin"
                       else safetensors.torch.load_file(path))
    prefix = case.get("prefix", "model.decoder.")
    found = {}
    for name, tensor in tensors.items():
        name = name.replace(prefix + "layer_norm.", prefix + "final_layer_norm.")
        name = "model.decoder." + name[len(prefix) :] if name.startswith(prefix) else name
        found["model.decoder.embed_tokens.weight" if name == "lm_head.weight" else name] = tensor.detach()
    found.pop("model.decoder.version", None)
    table = {n: {"shape": list(t.shape), "xxh3_64": xxhash.xxh3_64_hexdigest(raw_bytes(t))} for n, t in found.items()}
    if table != expected:
        raise RuntimeError(f"{folder}: the files do not hold what the table says")
    loadable = case["format"] == "safetensors" and case.get("lm_head") != "only" and model_name != "reward"
    if loadable:
        model = OPTForCausalLM.from_pretrained(folder, dtype=DTYPES[case["dtype"]])
        for name, parameter in named_parameters(model).items():
            if xxhash.xxh3_64_hexdigest(raw_bytes(parameter.detach())) != expected[name]["xxh3_64"]:
                raise RuntimeError(f"{folder}: transformers reads another {name}")


def make_import_goldens():
    root = HERE / "import"
    shutil.rmtree(root, ignore_errors=True)
    contents, cases = {}, []
    for name, case in IMPORT_CASES.items():
        folder = root / name
        folder.mkdir(parents=True)
        model_name, dtype = case.get("model", "pre_ln"), case["dtype"]
        weights, config = import_weights(model_name), import_config(model_name)
        content = f"{model_name}-{dtype}"
        contents.setdefault(content, digests(weights, dtype))
        save_tensors(folder, file_tensors(weights, case), case)
        save_tokenizer(folder, case.get("tokenizer", "vocab.json"))
        if case.get("config") == "hub":
            (folder / "config.json").write_text(json.dumps(hub_config(config, dtype), indent=2) + "\n")
        else:
            kind = "OPTForSequenceClassification" if model_name == "reward" else "OPTForCausalLM"
            config.architectures, config.dtype = [kind], DTYPE_NAMES[dtype]
            config.save_pretrained(folder)
        check_import(folder, case, contents[content], model_name)
        cases.append({
            "folder": name, "format": case["format"], "shards": case.get("shards", 0), "dtype": dtype,
            "prefix": case.get("prefix", "model.decoder."), "lm_head": case.get("lm_head", "absent"),
            "quirk": case.get("quirk", "none"), "config": case.get("config", "new"),
            "tokenizer": case.get("tokenizer", "vocab.json"), "model": model_name, "contents": content,
        })
    tokenizer = GPT2Tokenizer.from_pretrained(root / "bin-fp32")
    samples = [{"text": t, "ids": tokenizer(t, add_special_tokens=False)["input_ids"]} for t in SAMPLE_TEXTS]
    write_json(root / "cases.json", {
        "versions": versions(),
        "cases": cases,
        "tokenizer_samples": samples,
        "contents": contents,
    })
    print(f"import: {len(cases)} cases, {sum(f.stat().st_size for f in root.rglob('*') if f.is_file())} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=["models", "import"])
    only = parser.parse_args().only
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if only != "import":
        for name, settings in MODELS.items():
            make_model_goldens(name, settings)
    if only != "models":
        make_import_goldens()


if __name__ == "__main__":
    main()
