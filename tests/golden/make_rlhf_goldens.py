"""Makes rlhf_goldens.json and kernel_goldens.json: values and gradients of the formulas of RLHF and of single layers.

Values are computed in plain float64 Python and numpy from the formulas as the contract states them; gradients come
from torch's automatic differentiation in float64. Where both exist they are compared here before anything is written,
and values known from elsewhere (published examples, hand calculation) are asserted.

Usage: python make_rlhf_goldens.py

Needs numpy and torch from PyPI. README.md in this folder describes the files.
"""

import json
import math
import os
import pathlib

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.nn.functional as F

from make_model_goldens import write_json

HERE = pathlib.Path(__file__).resolve().parent
LOG_RATIO_LIMIT = 20.0
WHITEN_EPS = 1e-8
LAYER_NORM_EPS = 1e-5


def same(actual, known, tolerance):
    """Asserts that values computed here agree with values known from elsewhere, to the digits that were known."""
    error = np.max(np.abs(np.asarray(actual, float) - np.asarray(known, float)))
    if not error <= tolerance:
        raise RuntimeError(f"{actual} differs from the known {known} by {error}")
    return actual


def plain(value):
    """Arrays and tensors as lists, recursively."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, torch.Tensor):
        return value.detach().tolist()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.item() if isinstance(value, np.generic) else value


def softplus(x):
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def log_softmax(z):
    z = np.asarray(z, float)
    shifted = z - z.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def leaf(array):
    return torch.tensor(np.asarray(array, float), dtype=torch.float64, requires_grad=True)


def ragged(lengths):
    return [0, *np.cumsum(lengths).tolist()]


# ---------------------------------------------------------------------------------------------------------------------
# Rewards, advantages, whitening


def gae(rewards, values, gamma, lam):
    """adv_t = delta_t + gamma lam adv_{t+1}, delta_t = r_t + gamma V_{t+1} - V_t, nothing after the last token."""
    advantages, following, next_value = [0.0] * len(rewards), 0.0, 0.0
    for t in reversed(range(len(rewards))):
        following = rewards[t] + gamma * next_value - values[t] + gamma * lam * following
        next_value = values[t]
        advantages[t] = following
    return advantages


def gae_case(rewards, values, gamma, lam, offsets=None):
    offsets = offsets or [0, len(rewards)]
    advantages = []
    for a, b in zip(offsets, offsets[1:]):
        advantages += gae(rewards[a:b], values[a:b], gamma, lam)
    returns = [a + v for a, v in zip(advantages, values)]
    return {"rewards": rewards, "values": values, "offsets": offsets, "gamma": gamma, "lambda": lam,
            "advantages": advantages, "returns": returns}


def whiten(x, bessel=False):
    x = np.asarray(x, float)
    return (x - x.mean()) / np.sqrt(x.var(ddof=1 if bessel else 0) + WHITEN_EPS)


def token_rewards(logp, ref, offsets, scores, ended, beta, mean, sd, clip, eos_penalty):
    """-beta (logp - ref) per token; at each last token the clipped, normalised score less the missing-EOS penalty."""
    rewards = [-beta * (a - b) for a, b in zip(logp, ref)]
    for i, last in enumerate(offsets[1:]):
        rewards[last - 1] += min(max((scores[i] - mean) / sd, -clip), clip) - (0.0 if ended[i] else eos_penalty)
    return rewards


def advantage_goldens(rng):
    kl, beta = [0.2, -0.1, 0.05, 0.0], 0.05
    rewards = [-beta * k for k in kl]
    rewards[-1] += 1.0
    small = gae_case(rewards, [0.1, 0.2, 0.3, 0.4], 1.0, 0.95)
    same(small["rewards"], [-0.01, 0.005, -0.0025, 1], 1e-15)
    same(small["advantages"], [0.79216875, 0.739125, 0.6675, 0.6], 1e-14)
    same(small["returns"], [0.89216875, 0.939125, 0.9675, 1], 1e-14)
    same(gae(rewards + [0, 0], [0.1, 0.2, 0.3, 0.4, 100, 0], 1.0, 0.95)[:4], [5.07904375, 5.251625, 5.4175, 5.6], 1e-12)
    nemo = gae_case([0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0], 0.5, 0.0)
    same(nemo["advantages"], [0.5, 0, 0.5, -3], 0)
    roll = gae_case([0.0, 1.0], [0.0, 0.0], 1.0, 0.95)
    same(roll["advantages"], [0.95, 1], 1e-15)
    same(gae([0, 1, 0], [0, 0, 100], 1, 0.95)[:2], [5.7, 6.0], 1e-14)  # what the unmasked recursion would give

    offsets = ragged([5, 1, 3, 8])
    random = gae_case(rng.normal(size=17).tolist(), rng.normal(size=17).tolist(), 0.97, 0.9, offsets)
    for a, b in zip(offsets, offsets[1:]):  # the sum that the recursion stands for
        r, v = random["rewards"][a:b], random["values"][a:b] + [0.0]
        delta = [r[t] + 0.97 * v[t + 1] - v[t] for t in range(b - a)]
        direct = [sum((0.97 * 0.9) ** (k - t) * delta[k] for k in range(t, b - a)) for t in range(b - a)]
        same(random["advantages"][a:b], direct, 1e-13)

    population, bessel = whiten(small["advantages"]), whiten(small["advantages"], bessel=True)
    same(population, [1.27373412, 0.54308195, -0.443518, -1.37329807], 6e-9)
    same(bessel, [1.10308637, 0.47032288, -0.38409795, -1.18931129], 6e-9)

    logp, ref = -rng.exponential(size=17), -rng.exponential(size=17)
    settings = dict(beta=0.07, score_mean=0.4, score_sd=1.7, reward_clip=2.0, missing_eos_penalty=1.0)
    scores, ended = [1.3, 9.0, -6.0, 0.2], [True, False, True, False]
    composed = token_rewards(logp, ref, offsets, scores, ended, *settings.values())
    return {
        "gae": [small, nemo, roll, random],
        "whitening": {
            "eps": WHITEN_EPS,
            "cases": [
                {"input": small["advantages"], "population": population, "bessel": bessel},
                {"input": random["advantages"], "population": whiten(random["advantages"]),
                 "bessel": whiten(random["advantages"], bessel=True)},
            ],
        },
        "token_rewards": {
            **settings, "offsets": offsets, "logprobs": logp, "reference_logprobs": ref, "scores": scores,
            "ended": ended, "rewards": composed,
            "kl_per_sequence": [float(np.sum((logp - ref)[a:b])) for a, b in zip(offsets, offsets[1:])],
        },
    }


# ---------------------------------------------------------------------------------------------------------------------
# KL


def estimators(d):
    return {"k1": d, "k2": d * d / 2, "k3": math.expm1(-d) + d}


def kl_goldens(rng):
    cases = [{"log_ratio": d, **estimators(d)} for d in (-0.5, 0.0, 0.5, 2.0, 1e-5, -3.0)]
    same([cases[0]["k2"], cases[0]["k3"], cases[2]["k3"], cases[3]["k2"], cases[3]["k3"]],
         [0.125, 0.14872127, 0.10653066, 2, 1.13533528], 6e-9)

    def expectations(p, q):
        """Exact expectations under p, and the expected gradient wrt the logits of p of each estimator as a loss."""
        p, q = np.asarray(p), np.asarray(q)
        d = np.log(p / q)
        score = np.eye(len(p)) - p  # d log p_y / d z_j
        as_loss = lambda slope: (p * slope) @ score  # y ~ p is not differentiated, only the estimator at y
        z = leaf(np.log(p))
        logp = torch.log_softmax(z, 0)
        (logp.exp() * (logp - torch.tensor(np.log(q)))).sum().backward()
        same(as_loss(d), z.grad.numpy(), 1e-15)
        return {
            "p": p, "q": q, "reverse_kl": float(p @ d), "forward_kl": float(q @ -d),
            "expected_k1": float(p @ d), "expected_k2": float(p @ (d * d / 2)),
            "expected_k3": float(p @ (np.expm1(-d) + d)),
            "gradient_reverse_kl": z.grad, "gradient_k1": as_loss(np.ones_like(d)), "gradient_k2": as_loss(d),
            "gradient_k3": as_loss(1 - np.exp(-d)), "gradient_forward_kl": p - q,
        }

    three = expectations([0.5, 0.3, 0.2], [0.4, 0.4, 0.2])
    same([three["reverse_kl"], three["expected_k2"], three["expected_k3"]],
         [0.0252671539, 0.0248624073, 0.0252671539], 6e-11)
    same(three["gradient_reverse_kl"].numpy(), [0.0989382, -0.09388477, -0.00505343], 6e-9)
    same(three["gradient_k2"], three["gradient_reverse_kl"].numpy(), 1e-15)
    same(three["gradient_k1"], [0, 0, 0], 1e-16)
    same(three["gradient_k3"], [0.1, -0.1, 0], 1e-15)
    random = expectations(*(np.exp(log_softmax(rng.normal(size=7))) for _ in range(2)))

    controller = []
    for kl, known in ((12.0, 0.151536), (0.0, 0.148464), (6.6, 0.150768), (6.0, 0.15)):
        error = min(max(kl / 6.0 - 1, -0.2), 0.2)
        after = same(0.15 * (1 + error * 512 / 1e4), known, 1e-15)
        controller.append({"coef": 0.15, "kl": kl, "target": 6.0, "episodes": 512, "horizon": 1e4, "after": after})
    return {"kl_estimators": cases, "kl_expectations": [three, random], "adaptive_kl": controller}


# ---------------------------------------------------------------------------------------------------------------------
# Losses


def policy_term(ratio, advantage, clip):
    return max(-advantage * ratio, -advantage * min(max(ratio, 1 - clip), 1 + clip))


def policy_case(name, new, old, advantages, clip):
    """Token-mean policy loss, its gradient and the diagnostics of one minibatch."""
    new_leaf, a = leaf(new), torch.tensor(advantages)
    ratio = torch.exp((new_leaf - torch.tensor(old)).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))
    loss = torch.maximum(-a * ratio, -a * ratio.clamp(1 - clip, 1 + clip)).mean()
    loss.backward()
    d, r = new - old, ratio.detach().numpy()
    own = np.mean([policy_term(*x, clip) for x in zip(r, advantages)])
    same(loss.item(), own, 1e-14 * abs(own))
    clipped = -advantages * np.clip(r, 1 - clip, 1 + clip) > -advantages * r
    return {
        "name": name, "clip": clip, "new_logprobs": new, "old_logprobs": old, "advantages": advantages, "loss": loss,
        "gradient_new_logprobs": new_leaf.grad, "approx_kl": float(np.mean(d * d) / 2),
        "approx_kl_k3": float(np.mean(np.expm1(d) - d)), "ratio_mean": r.mean(), "ratio_max": r.max(),
        "clip_fraction_low": float(np.mean(clipped & (r < 1))), "clip_fraction_high": float(np.mean(clipped & (r > 1))),
    }


def policy_goldens(rng):
    cases = []
    for ratio, advantage, known in ((1.5, 1.0, -1.2), (1.5, -1.0, 1.5), (0.5, 1.0, -0.5), (0.5, -1.0, 0.8),
                                    (1.1, 1.0, -1.1)):
        cases.append({"ratio": ratio, "advantage": advantage, "clip": 0.2,
                      "loss": same(policy_term(ratio, advantage, 0.2), known, 1e-15)})
    n = 18
    old = -rng.exponential(size=n) - 0.1
    new, advantages = old + 0.3 * rng.normal(size=n), rng.normal(size=n)
    new[0] = old[0]
    far, far_advantages = new.copy(), advantages.copy()
    far[3], far[4] = old[3] + 25.0, old[4] - 30.0
    far_advantages[3], far_advantages[4] = -0.5, 0.5
    return {
        "cases": cases,
        "log_ratio_limit": LOG_RATIO_LIMIT,
        "random": [
            policy_case("no log-ratio near the limit", new, old, advantages, 0.2),
            policy_case("elements 3 and 4 beyond the limit, where the gradient is zero", far, old, far_advantages, 0.2),
        ],
    }


def value_goldens(rng):
    def term(value, old, ret, clip):
        return 0.5 * max((value - ret) ** 2, (min(max(value, old - clip), old + clip) - ret) ** 2)

    cases = []
    for value, old, ret, known in ((1.0, 0.0, 1.0, 0.32), (0.1, 0.0, 1.0, 0.405), (-1.0, 0.0, 1.0, 2.0),
                                   (0.5, 0.0, 0.0, 0.125)):
        cases.append({"value": value, "old_value": old, "return": ret, "clip": 0.2,
                      "loss": same(term(value, old, ret, 0.2), known, 1e-15)})
    n, clip = 16, 0.2
    old = rng.normal(size=n)
    value, returns = old + 0.35 * rng.normal(size=n), old + 0.6 * rng.normal(size=n)
    v, o, r = leaf(value), torch.tensor(old), torch.tensor(returns)
    clipped = torch.minimum(torch.maximum(v, o - clip), o + clip)
    loss = 0.5 * torch.maximum((v - r) ** 2, (clipped - r) ** 2).mean()
    loss.backward()
    same(loss.item(), np.mean([term(*x, clip) for x in zip(value, old, returns)]), 1e-15)
    share = np.mean((np.clip(value, old - clip, old + clip) - returns) ** 2 > (value - returns) ** 2)
    return {"cases": cases, "random": {"clip": clip, "values": value, "old_values": old, "returns": returns,
                                       "loss": loss, "gradient_values": v.grad, "clip_fraction": float(share)}}


def token_ranking(chosen, rejected, first):
    """Mean of softplus(rejected - chosen) from `first` to the longer end; the shorter side holds its last score."""
    end = max(len(chosen), len(rejected))
    held = lambda s: torch.cat([s, s[-1:].expand(end - len(s))])[first:]
    return F.softplus(held(rejected) - held(chosen)).mean()


def ranking_goldens(rng):
    margins = []
    for margin, known, tolerance in ((0.0, 0.69314718, 6e-9), (1.0, 0.31326169, 6e-9), (-1.0, 1.31326169, 6e-9),
                                     (-100.0, 100.0, 0), (100.0, 3.7e-44, 5e-46), (-1000.0, 1000.0, 0),
                                     (1000.0, 0.0, 0)):
        margins.append({"margin": margin, "loss": same(softplus(-margin), known, tolerance),
                        "gradient_margin": -1 / (1 + math.exp(margin)) if margin < 700 else 0.0})

    chosen, rejected = leaf(rng.normal(size=9)), leaf(rng.normal(size=9))
    loss = F.softplus(rejected - chosen).mean()
    loss.backward()
    same(loss.item(), np.mean([softplus(r - c) for c, r in zip(chosen.tolist(), rejected.tolist())]), 1e-15)
    pairs = {"chosen": chosen, "rejected": rejected, "loss": loss, "gradient_chosen": chosen.grad,
             "gradient_rejected": rejected.grad,
             "accuracy": float(np.mean([c > r for c, r in zip(chosen.tolist(), rejected.tolist())]))}

    inputs = [([0, 0.1, 0.2, 1, 2, 0.5], [0, 0.1, 0.2, 0.5, -1, 0.25, 0.1], 3)]
    for lengths, first in (((8, 5), 2), ((4, 9), 3), ((6, 6), 5)):
        inputs.append((*(rng.normal(size=n).tolist() for n in lengths), first))
    leaves = [(leaf(c), leaf(r), first) for c, r, first in inputs]
    losses = [token_ranking(*x) for x in leaves]
    same(losses[0].item(), 0.4029047520, 6e-11)
    total = torch.stack(losses).mean()
    total.backward()
    return {
        "margins": margins,
        "pairs": pairs,
        "tokens": {
            "pairs": [{"chosen": c, "rejected": r, "first_difference": first, "loss": loss,
                       "gradient_chosen": c.grad, "gradient_rejected": r.grad}
                      for (c, r, first), loss in zip(leaves, losses)],
            "loss": total,
        },
    }


def logits_goldens(rng):
    """Log-probability of one token and entropy of the whole distribution, at a temperature, and their gradients."""
    def numbers(z, temperature):
        logp = log_softmax(np.asarray(z) / temperature)
        return logp, float(-(np.exp(logp) * logp).sum())

    z = [1.0, 2.0, 0.5]
    (logp_1, entropy_1), (logp_7, entropy_7) = numbers(z, 1.0), numbers(z, 0.7)
    same(logp_1, [-1.46436878, -0.46436878, -1.96436878], 6e-9)
    same(logp_7, [-1.73382585, -0.30525442, -2.44811157], 6e-9)
    same([entropy_1, entropy_7], [0.90595926, 0.74281513], 6e-9)
    ratio = same(math.exp(logp_1[1] - logp_7[1]), 0.85289881, 6e-9)
    example = {"logits": z, "logprobs_t1": logp_1, "logprobs_t07": logp_7, "entropy_t1": entropy_1,
               "entropy_t07": entropy_7, "ratio_when_forgotten_token1": ratio}

    random = []
    for temperature, scale in ((1.0, 1.0), (0.7, 2.0), (1.6, 30.0)):
        rows, vocab = 3, 11
        logits = leaf(scale * rng.normal(size=(rows, vocab)))
        targets = rng.integers(0, vocab, rows)
        logp = torch.log_softmax(logits / temperature, -1)
        picked = logp[torch.arange(rows), torch.tensor(targets)]
        entropy = -(logp.exp() * logp).sum(-1)
        gradient_logp = torch.autograd.grad(picked.sum(), logits, retain_graph=True)[0]
        gradient_entropy = torch.autograd.grad(entropy.sum(), logits, retain_graph=True)[0]
        cross_entropy = F.cross_entropy(logits / temperature, torch.tensor(targets))
        own = log_softmax(logits.detach().numpy() / temperature)
        same(own[np.arange(rows), targets], picked.detach().numpy(), 1e-13)
        same(-(np.exp(own) * own).sum(-1), entropy.detach().numpy(), 1e-13)
        random.append({
            "temperature": temperature, "logits": logits, "targets": targets, "logprobs": picked, "entropies": entropy,
            "argmax": logits.argmax(-1), "gradient_of_logprobs": gradient_logp,
            "gradient_of_entropies": gradient_entropy, "mean_cross_entropy": cross_entropy,
            "gradient_of_mean_cross_entropy": torch.autograd.grad(cross_entropy, logits)[0]})
    return {"example": example, "random": random}


# ---------------------------------------------------------------------------------------------------------------------
# Optimiser, metrics, bandit


def adam_goldens(rng):
    first_steps = []
    lr, beta1, beta2, eps = 1e-5, 0.9, 0.999, 1e-5
    for g, known, known_tf in ((1e-2, 9.99001e-6, 9.69347e-6), (1e-4, 9.090909e-6, 2.402531e-6),
                               (1e-6, 9.090909e-7, 3.152309e-8)):
        m, v = (1 - beta1) * g, (1 - beta2) * g * g
        torch_step = lr * (m / (1 - beta1)) / (math.sqrt(v / (1 - beta2)) + eps)
        tf_step = lr * math.sqrt(1 - beta2) / (1 - beta1) * m / (math.sqrt(v) + eps)
        same(torch_step, known, 1e-6 * known)
        same(tf_step, known_tf, 1e-6 * known_tf)
        parameter = leaf([0.0])
        parameter.grad = torch.tensor([g], dtype=torch.float64)
        torch.optim.Adam([parameter], lr=lr, betas=(beta1, beta2), eps=eps).step()
        same(-parameter.item(), torch_step, 1e-18)
        first_steps.append({"gradient": g, "step": torch_step, "step_tensorflow_form": tf_step})

    settings = dict(lr=3e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
    start = rng.normal(size=10)
    grads = rng.normal(size=(12, 10)) * 10.0 ** rng.integers(-6, 2, size=(12, 10))
    parameter = leaf(start)
    optimizer = torch.optim.AdamW([parameter], lr=settings["lr"], betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    x, m, v = start.copy(), np.zeros(10), np.zeros(10)
    for t, g in enumerate(grads, 1):
        parameter.grad = torch.tensor(g)
        optimizer.step()
        x *= 1 - settings["lr"] * settings["weight_decay"]
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g * g
        x -= settings["lr"] * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.95**t)) + settings["eps"])
    same(x, parameter.detach().numpy(), 1e-14)
    state = optimizer.state[parameter]
    return {
        "first_steps": {"lr": lr, "beta1": beta1, "beta2": beta2, "eps": eps, "cases": first_steps},
        "trajectory": {**settings, "start": start, "gradients": grads, "end": parameter, "first_moment":
                       state["exp_avg"], "second_moment": state["exp_avg_sq"]},
    }


def clip_goldens(rng):
    """torch's rule: every gradient times min(1, max_norm / (norm + 1e-6)), norm over all tensors together."""
    cases = []
    for scale in (1.0, 0.01):
        tensors = [leaf(np.zeros(shape)) for shape in ((3, 2), (4,))]
        for t in tensors:
            t.grad = torch.tensor(scale * rng.normal(size=tuple(t.shape)))
        before = [t.grad.flatten().tolist() for t in tensors]
        norm = torch.nn.utils.clip_grad_norm_(tensors, 1.0).item()
        same(norm, math.sqrt(sum(g * g for part in before for g in part)), 1e-14)
        cases.append({"max_norm": 1.0, "gradients": before, "norm": norm,
                      "clipped": [t.grad.flatten() for t in tensors]})
    return cases


def metric_goldens():
    returns, values = np.array([1.0, 2, 3, 4]), np.array([1.0, 2, 2, 5])
    explained = same(1 - (returns - values).var() / returns.var(), 0.6, 1e-15)
    micro = [[1.0, 2.0], [3.0, 4.0, 5.0, 6.0, 7.0]]
    right = same(sum(map(sum, micro)) / 7, 4.0, 0)
    wrong = same((1.5 + 5.0) / 2, 3.25, 0)
    beta, rewards = 0.5, np.array([1.0, 0, 0, 0])
    reference = np.full(4, 0.25)
    optimum = reference * np.exp(rewards / beta)
    partition = optimum.sum()
    optimum /= partition
    kl = float(optimum @ np.log(optimum / reference))
    objective = beta * math.log(partition)
    same([optimum[0], kl, objective], [0.71123, 0.46801, 0.47723], 6e-6)
    same(optimum @ rewards - beta * kl, objective, 1e-15)
    return {
        "explained_variance": {"returns": returns, "values": values, "value": explained},
        "gradient_accumulation": {"micro_losses": micro, "mean": right, "mean_of_means": wrong},
        "reward_accuracy": {"correct_per_batch": [[1, 1], [0]], "accuracy": 2 / 3, "mean_of_means": 0.5},
        "bandit": {"beta": beta, "rewards": rewards, "reference": reference, "optimum": optimum, "kl": kl,
                   "objective": objective},
    }


# ---------------------------------------------------------------------------------------------------------------------
# Layers


def attention_golden(rng, lengths, heads, size):
    """Causal attention of ragged sequences on [T, heads * size], head h in columns h * size to (h + 1) * size."""
    offsets, width = ragged(lengths), heads * size
    q, k, v = (leaf(rng.normal(size=(offsets[-1], width))) for _ in range(3))
    upstream = rng.normal(size=(offsets[-1], width))
    outputs, logsumexp = [], []
    for a, b in zip(offsets, offsets[1:]):
        split = lambda t: t[a:b].view(b - a, heads, size).transpose(0, 1)
        scores = (split(q) * size**-0.5) @ split(k).transpose(1, 2)
        scores = scores.masked_fill(~torch.ones(b - a, b - a).tril().bool(), -math.inf)
        outputs.append((torch.softmax(scores, -1) @ split(v)).transpose(0, 1).reshape(b - a, width))
        logsumexp.append(torch.logsumexp(scores, -1).transpose(0, 1))
    output = torch.cat(outputs)
    output.backward(torch.tensor(upstream))
    for a, b in zip(offsets, offsets[1:]):  # the same, one query and one head at a time
        for t in range(a, b):
            for h in range(heads):
                c = slice(h * size, (h + 1) * size)
                s = k.detach().numpy()[a : t + 1, c] @ q.detach().numpy()[t, c] / math.sqrt(size)
                same(np.exp(log_softmax(s)) @ v.detach().numpy()[a : t + 1, c], output.detach().numpy()[t, c], 1e-14)
    return {"offsets": offsets, "heads": heads, "head_size": size, "scale": size**-0.5, "q": q, "k": k, "v": v,
            "output": output, "logsumexp": torch.cat(logsumexp), "gradient_output": upstream, "gradient_q": q.grad,
            "gradient_k": k.grad, "gradient_v": v.grad}


def layer_norm_golden(rng, rows, width, affine, shift):
    x = leaf(shift + rng.normal(size=(rows, width)))
    weight, bias = (leaf(rng.normal(size=width)) for _ in range(2)) if affine else (None, None)
    upstream = rng.normal(size=(rows, width))
    output = F.layer_norm(x, (width,), weight, bias, LAYER_NORM_EPS)
    output.backward(torch.tensor(upstream))
    a = x.detach().numpy()
    own = (a - a.mean(-1, keepdims=True)) / np.sqrt(a.var(-1, keepdims=True) + LAYER_NORM_EPS)
    own = own * weight.detach().numpy() + bias.detach().numpy() if affine else own
    same(own, output.detach().numpy(), 1e-12)
    golden = {"rows": rows, "width": width, "eps": LAYER_NORM_EPS, "affine": affine, "input": x, "output": output,
              "mean": x.mean(-1), "rstd": 1 / torch.sqrt(x.var(-1, correction=0) + LAYER_NORM_EPS),
              "gradient_output": upstream, "gradient_input": x.grad}
    if affine:
        golden.update(weight=weight, bias=bias, gradient_weight=weight.grad, gradient_bias=bias.grad)
    return golden


def activation_golden(rng, function):
    x = leaf(np.concatenate([[-40.0, -6.0, -1e-3, 0.0, 1e-3, 6.0, 40.0], 2 * rng.normal(size=13)]))
    upstream = rng.normal(size=20)
    output = F.gelu(x) if function == "gelu" else F.relu(x)
    output.backward(torch.tensor(upstream))
    if function == "gelu":  # erfc keeps the digits of the left tail, which 1 + erf would lose
        same([0.5 * a * math.erfc(-a / math.sqrt(2)) for a in x.tolist()], output.detach().numpy(), 1e-14)
    return {"input": x, "output": output, "gradient_output": upstream, "gradient_input": x.grad}


def linear_golden(rng):
    x, weight, bias = leaf(rng.normal(size=(5, 4))), leaf(rng.normal(size=(3, 4))), leaf(rng.normal(size=3))
    upstream = rng.normal(size=(5, 3))
    output = F.linear(x, weight, bias)
    output.backward(torch.tensor(upstream))
    same(x.detach().numpy() @ weight.detach().numpy().T + bias.detach().numpy(), output.detach().numpy(), 1e-14)
    return {"input": x, "weight": weight, "bias": bias, "output": output, "gradient_output": upstream,
            "gradient_input": x.grad, "gradient_weight": weight.grad, "gradient_bias": bias.grad}


def main():
    torch.set_num_threads(1)
    rng = np.random.default_rng(2026)
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    write_json(HERE / "rlhf_goldens.json", plain({
        "versions": versions,
        **advantage_goldens(rng),
        **kl_goldens(rng),
        "policy_loss": policy_goldens(rng),
        "value_loss": value_goldens(rng),
        "ranking_loss": ranking_goldens(rng),
        "logits": logits_goldens(rng),
        "adam": adam_goldens(rng),
        "gradient_clipping": clip_goldens(rng),
        **metric_goldens(),
    }))
    write_json(HERE / "kernel_goldens.json", plain({
        "versions": versions,
        "attention": [attention_golden(rng, [1, 4, 7], 2, 4), attention_golden(rng, [3, 2], 1, 10)],
        "layer_norm": [layer_norm_golden(rng, 3, 8, True, 0.0), layer_norm_golden(rng, 2, 13, False, 100.0)],
        "gelu": activation_golden(rng, "gelu"),
        "relu": activation_golden(rng, "relu"),
        "linear": linear_golden(rng),
    }))
    for name in ("rlhf_goldens.json", "kernel_goldens.json"):
        json.loads((HERE / name).read_text(), parse_constant=lambda text: 1 / 0)  # no NaN or infinity slipped in
        print(name, (HERE / name).stat().st_size, "bytes")


if __name__ == "__main__":
    main()
