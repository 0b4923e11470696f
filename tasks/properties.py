"""Properties, cost and initial attention logits of an encoding, without training."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pe_bench.api import (
    Batch,
    Column,
    Decoder,
    Evaluation,
    Gallery,
    Headline,
    Journal,
    Measurement,
    ModelConfig,
    Preset,
    Task,
    TaskContext,
    TrainConfig,
    Vocabulary,
)
from pe_bench.api.engine import Subject, examine, measure_costs

EVAL_LENGTH_FACTORS = (1, 4, 8)
ROWS = 8
DIGITS, SEPARATOR, WORDS = 10, 10, 64
SENTENCE = 16  # tokens, the last one a separator
NEAR = 16  # up to this distance every distance is measured
STEP = 1.1


class Properties(Task):
    """Three measurements of an untrained encoding.

    | subset | rows |
    |---|---|
    | `checks` | results of `pe-bench check`: 1 if a check holds, 0 if not; `failed` counts them |
    | `costs` | operations and cached numbers per token, beyond a decoder without positions |
    | `logit` | mean attention logit of the first layer, by distance between query and key |

    In `logit` the query projection also makes the keys, and every sequence repeats one token. So
    the content matches everywhere, and all differences are due to the encoding. A separator follows
    every 15 tokens, for encodings that count segments; half of the sequences consist of digits. The
    mean is over heads, sequences, and all visible pairs at one distance.
    """

    version = 4
    headline = Headline("flops_overhead_percent", "costs")
    all_subsets = ("checks", "costs", "logit")
    axes = {"length": "tokens", "second": "distance between query and key, tokens"}
    vocabulary = Vocabulary(WORDS, tuple(range(DIGITS)), (SEPARATOR,))
    views = (
        Column("costs", "cache_overhead_percent"),
        Column("checks", "failed"),
        Gallery(
            "logit",
            "mean_logit",
            "Logit of an untrained query and an equal key, by distance (dashed: training length)",
            "mean attention logit",
        ),
    )
    presets = {
        name: Preset(
            TrainConfig(steps=0, length=length),
            ModelConfig(layers=2, heads=8, width=256, mlp_width=512),
        )
        for name, length in (("quick", 64), ("small", 256), ("mid", 512), ("paper", 1024))
    }

    def __init__(self, context: TaskContext) -> None:
        super().__init__(context)
        self.lengths = [factor * self.length for factor in EVAL_LENGTH_FACTORS]
        self.max_eval_tokens = self.lengths[-1]

    def batch(self, subset: str | None, seed: int, step: int) -> Batch:
        tokens = self._tokens(self.length)
        return Batch(tokens[:, :-1], tokens[:, 1:])

    def evaluate(self, model: Decoder, subset: str, seed: int, journal: Journal) -> Evaluation:
        if subset == "logit":
            return Evaluation(self._logits(model))
        # These two build other models, with gradients and without autocast.
        device = model.lm_head.weight.device.type
        with (
            torch.inference_mode(False),
            torch.autocast(device, enabled=False),
            torch.enable_grad(),
        ):
            return Evaluation(_checks(model, device) if subset == "checks" else _costs(model))

    def _tokens(self, length: int) -> Tensor:
        """Return rows that repeat one token, with separators: (ROWS, length)."""
        words = torch.arange(ROWS)
        words[ROWS // 2 :] += SEPARATOR + 1  # the first half of them digits
        tokens = words[:, None].repeat(1, length)
        tokens[:, SENTENCE - 1 :: SENTENCE] = SEPARATOR
        return tokens

    def _logits(self, model: Decoder) -> list[Measurement]:
        attention: Any = model.layers[0].self_attn
        heads = (model.config.kv_heads, -1, model.config.head_dim)
        queries = attention.q_proj.weight.unflatten(0, heads)  # (H_kv, queries of each, D, C)
        attention.k_proj.weight.copy_(queries[:, 0].flatten(0, 1))
        rows = []
        for length in self.lengths:
            tokens = self._tokens(length).to(model.lm_head.weight.device)
            found: dict[int, list[Tensor]] = {distance: [] for distance in _distances(length)}
            for row in tokens.split(1):  # (1, T): logits of all rows at once would fill a GPU
                of_layers: list[Tensor] = []
                model.hidden(row, logits=of_layers)
                is_word = row != SEPARATOR  # (1, T)
                for distance, parts in found.items():
                    logits = of_layers[0].diagonal(-distance, dim1=2, dim2=3)  # (1, H, pairs)
                    counted = is_word[:, distance:] & is_word[:, : length - distance]  # (1, pairs)
                    parts.append(logits.double().transpose(1, 2)[counted])
            for distance, parts in found.items():
                each = torch.cat(parts)
                each = each[each > -math.inf]  # visible pairs
                if each.numel():
                    mean = Measurement("logit", "mean_logit", float(each.mean()), each.numel())
                    rows.append(replace(mean, length=length, second_axis=str(distance)))
        return rows


def _distances(length: int) -> list[int]:
    distances = list(range(min(NEAR, length)))
    while distances[-1] < length - 1:
        farther = max(distances[-1] + 1, int(distances[-1] * STEP))
        distances.append(min(length - 1, farther))
    return distances


def _checks(model: Decoder, device: str) -> list[Measurement]:
    findings = examine(Subject(model.make_encoding, device))
    findings.pop("interface", None)  # is about the code of the encoding
    applied = {name: finding for name, finding in findings.items() if finding.status != "-"}
    rows = [Measurement("checks", n, float(not f.bad), 1) for n, f in applied.items()]
    failed = sum(finding.bad for finding in applied.values())
    return [*rows, Measurement("checks", "failed", failed, len(applied))]


def _costs(model: Decoder) -> list[Measurement]:
    costs = measure_costs(model.make_encoding)
    rows = [
        Measurement("costs", "parameters", costs.parameters, 1),
        Measurement("costs", "extra_flops_per_token", costs.flops, 1),
        Measurement("costs", "flops_overhead_percent", 100 * costs.flops / costs.bare_flops, 1),
    ]
    if costs.cache is not None:
        rows += [
            Measurement("costs", "extra_cache_per_token", costs.cache, 1),
            Measurement("costs", "cache_overhead_percent", 100 * costs.cache / costs.bare_cache, 1),
        ]
    return rows
