"""The decoder with an encoding, and its cache."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pe_bench.config import IGNORE, ModelConfig
from pe_bench.decoder.attention import Backend, attend
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.logits import LogitTerms
from pe_bench.decoder.losses import next_token_losses, scored_tokens
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding, StatefulEncoding
from pe_bench.encodings.rope import RoPE
from pe_bench.encodings.sinusoidal import Sinusoidal
from pe_bench.encodings.tape import TAPE
from pe_bench.errors import InputError
from pe_bench.positions import Positions
from pe_bench.registry import plugins

SHAPE: dict[str, Any] = {"layers": 2, "heads": 4, "width": 32, "mlp_width": 48, "vocab_size": 50}


def decoder(encoding: Callable[..., Encoding] = RoPE, **shape: Any) -> Decoder:
    torch.manual_seed(0)
    config = ModelConfig(**{**SHAPE, "init_std": 0.3, **shape})
    return Decoder(config, encoding).double().eval()


def tokens(*shape: int) -> Tensor:
    return torch.randint(50, shape, generator=torch.Generator().manual_seed(1))


def test_parameters_are_those_of_llama() -> None:
    model = decoder(kv_heads=2)
    layer = {
        "self_attn.q_proj.weight": (32, 32),
        "self_attn.k_proj.weight": (16, 32),
        "self_attn.v_proj.weight": (16, 32),
        "self_attn.o_proj.weight": (32, 32),
        "mlp.gate_proj.weight": (48, 32),
        "mlp.up_proj.weight": (48, 32),
        "mlp.down_proj.weight": (32, 48),
        "input_layernorm.weight": (32,),
        "post_attention_layernorm.weight": (32,),
    }
    expected = {f"layers.{i}.{name}": shape for i in range(2) for name, shape in layer.items()}
    expected |= {"embed_tokens.weight": (50, 32), "norm.weight": (32,), "lm_head.weight": (50, 32)}
    assert {name: tuple(t.shape) for name, t in model.state_dict().items()} == expected


def test_initial_weights() -> None:
    models = [decoder(plugins.load("encoding", n).cls) for n in ("nope", "sinusoidal", "tape")]
    trunk = models[0].state_dict()
    for model in models[1:]:
        others = model.state_dict()
        assert all(torch.equal(others[name], weight) for name, weight in trunk.items())
    for name, weight in trunk.items():
        if "norm" in name:
            assert (weight == 1).all()
        else:
            assert weight.std() == pytest.approx(0.3, rel=0.1) and abs(weight.mean()) < 0.05


@torch.no_grad()
def test_encodings_are_shared_or_one_per_layer() -> None:
    assert len(decoder(RoPE, layers=3).encodings) == 1
    assert [e.layer for e in decoder(TAPE, layers=3).encodings] == [0, 1, 2]


def test_key_heads_follow_heads_unless_they_are_fewer() -> None:
    assert ModelConfig(heads=4).kv_heads == 4
    assert ModelConfig(heads=4).changed(heads=8).kv_heads == 8
    assert ModelConfig(heads=4, kv_heads=2).changed(heads=8).kv_heads == 2
    assert ModelConfig(heads=4).changed(kv_heads=1).kv_heads == 1
    with pytest.raises(InputError, match="kv_heads must not be negative"):
        ModelConfig(kv_heads=-1)
    with pytest.raises(InputError, match="kv_heads must divide"):
        ModelConfig(heads=4, kv_heads=3)


@pytest.mark.parametrize("backend", ["eager", "sdpa", "cache"])
@torch.no_grad()
def test_grouped_queries(backend: Any) -> None:
    grouped, full = decoder(kv_heads=2), decoder()
    weights = grouped.state_dict()
    for name, weight in weights.items():
        if "k_proj" in name or "v_proj" in name:
            weights[name] = weight.view(2, 8, 32).repeat_interleave(2, dim=0).flatten(0, 1)
    full.load_state_dict(weights)
    batch = tokens(2, 9)
    if backend == "cache":
        cache = Cache(2, 9)
        logits = torch.cat([grouped(step, cache) for step in batch.split(4, dim=1)], dim=1)
    else:
        logits = grouped(batch, backend=backend)
    torch.testing.assert_close(logits, full(batch))


@torch.no_grad()
def test_token_losses() -> None:
    model, batch = decoder(), tokens(2, 10)
    targets = batch.roll(-1, dims=1)
    targets[0, 3:6] = targets[1, -1] = IGNORE
    losses = model.token_losses(batch, targets)
    expected = F.cross_entropy(model(batch).mT, targets, reduction="none", ignore_index=IGNORE)
    torch.testing.assert_close(losses, expected)
    assert (losses == 0).equal(targets == IGNORE)
    for chunk in (1, 7):
        hidden = model.hidden(batch).flatten(0, 1)
        own = next_token_losses(hidden, targets.flatten(), model.logits, chunk)
        torch.testing.assert_close(own.view_as(targets), expected)
    assert model.bfloat16().token_losses(batch, targets).dtype == torch.float32


def test_logits_that_are_rewritten_need_the_eager_backend() -> None:
    class Rewriting(Encoding):
        def rewrite_logits(self, scores: Tensor, *rest: Any) -> Tensor:
            return 2 * scores

    model = decoder(Rewriting)
    with pytest.raises(InputError, match="sdpa is not possible here: the encoding rewrites"):
        model(tokens(1, 4), backend="sdpa")
    assert torch.equal(model(tokens(1, 4)), model(tokens(1, 4), backend="eager"))


class Watching(StatefulEncoding):
    """An encoding that records the argument types of each hook, and whether autocast is on."""

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.seen: dict[str, set[object]] = {}
        self.weight = torch.nn.Parameter(torch.ones(model.width, model.width))

    def note(self, hook: str, *given: Any) -> None:
        for positions in given:
            if isinstance(positions, Positions):
                given += (positions.features, positions.state)
        types = {t.dtype for t in given if isinstance(t, Tensor) and t.is_floating_point()}
        product = self.weight @ self.weight  # autocast would convert it to bfloat16
        self.seen.setdefault(hook, set()).update(types, {product.dtype})

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        self.note("embed", x, positions)
        return x

    def prepare(self, x: Tensor, positions: Positions) -> Tensor:
        self.note("prepare", x, positions)
        return x.new_ones(1, self.model.heads, x.shape[1], 2)

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        self.note("transform_qk", q, k, positions)
        return q, k

    def token_features(self, x: Tensor, positions: Positions) -> Tensor:
        self.note("token_features", x, positions)
        return x[:, None, :, :1].expand(-1, self.model.heads, -1, -1)

    def scan_features(self, features: Tensor) -> Tensor:
        self.note("scan_features", features)
        return features

    def separable_bias(self, positions: Positions) -> Tensor:
        self.note("separable_bias", positions)
        return torch.zeros(1, self.model.heads, positions.key.shape[1])

    def bias(self, positions: Positions) -> None:
        self.note("bias", positions)

    def extra_values(self, state: Tensor) -> Tensor:
        self.note("extra_values", state)
        return state

    def product(self, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        self.note("product", q, k, positions)
        return q @ k.mT

    def rewrite_logits(self, scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        self.note("rewrite_logits", scores, q, k, positions)
        return scores

    def update_state(self, state: Tensor, extra: Tensor | None, *mlp: Tensor) -> Tensor:
        self.note("update_state", state, extra, *mlp)
        return state


@pytest.mark.parametrize("how", ["autocast", "bfloat16", "float32", "float64"])
@torch.no_grad()
def test_hooks_compute_in_float32_or_wider(how: str) -> None:
    model = decoder(Watching)
    if how != "float64":
        model = model.float()
    if how == "bfloat16":
        model = model.bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
        logits = model(tokens(2, 5))
    assert logits.dtype == (torch.float64 if how == "float64" else torch.float32)
    interface = vars(Encoding) | vars(StatefulEncoding)
    hooks = {name for name in vars(Watching) if name in interface and name[0] != "_"}
    expected = {torch.float64 if how == "float64" else torch.float32}
    assert isinstance(model.encoding, Watching)
    assert model.encoding.seen == dict.fromkeys(hooks, expected)


@pytest.mark.parametrize("before", [torch.float32, torch.float64])
def test_encodings_are_never_narrowed_below_float32(before: torch.dtype) -> None:
    model = decoder(TAPE).to(before).bfloat16()
    assert {p.dtype for p in model.layers.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in model.encodings.parameters()} == {torch.float32}
    assert {p.dtype for p in model.double().parameters()} == {torch.float64}


def test_a_fused_separable_bias_survives_bfloat16() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 1000, 16, generator=generator).unbind()
    terms = LogitTerms(separable=torch.tensor([[-0.5], [-0.004]]).mul(torch.arange(1000))[None])
    q, k, v = (t.bfloat16() for t in (q, k, v))
    expected = attend(q.float(), k.float(), v.float(), terms, backend="eager")
    backends: tuple[Backend, ...] = ("eager", "sdpa")
    for backend in backends:
        actual = attend(q, k, v, terms, backend=backend).float()
        assert ((actual - expected).square().mean() / expected.square().mean()).sqrt() < 0.02


@torch.no_grad()
@pytest.mark.parametrize("lengths", [[6, 5], [-1, 5]])
def test_a_cache_cannot_be_truncated_to_tokens_that_it_lacks(lengths: list[int]) -> None:
    model, cache = decoder(Sinusoidal), Cache(2, 8)
    model(tokens(2, 5), cache)
    with pytest.raises(InputError, match="lengths of 0 to 5, the number of cached tokens, not"):
        cache.truncate(torch.tensor(lengths))


@torch.no_grad()
def test_rows_of_unequal_length_share_a_cache() -> None:
    model, batch, lengths = decoder(Sinusoidal), tokens(2, 8), [5, 2]
    cache = Cache(2, 8)
    first = model(batch[:, :5], cache)
    cache.truncate(torch.tensor(lengths))
    steps = [[5, 6], [7]]  # two tokens, then one
    seen = [
        torch.stack([batch[row, [lengths[row] + c - 5 for c in step]] for row in (0, 1)])
        for step in steps
    ]
    logits = torch.cat([model(step, cache) for step in seen], dim=1)
    for row, length in enumerate(lengths):
        whole = model(batch[row : row + 1, : length + 3])[0]
        torch.testing.assert_close(first[row, :length], whole[:length])
        torch.testing.assert_close(logits[row], whole[length:])
    assert cache.lengths.tolist() == [8, 5]


def test_a_full_cache_says_so() -> None:
    model, cache = decoder(), Cache(1, 3)
    model(tokens(1, 2), cache)
    with pytest.raises(ValueError, match="the cache holds 3 tokens, not 4"):
        model(tokens(1, 2), cache)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_losses_of_tokens_with_a_target_alone(share: float) -> None:
    model = decoder()
    kept = torch.rand(3, 9, generator=torch.Generator().manual_seed(2)) < share
    targets = torch.where(kept, tokens(3, 9), IGNORE)
    found = []
    for scored in (None, scored_tokens(targets)):
        model.zero_grad()
        losses = model.token_losses(tokens(3, 9), targets, scored=scored)
        losses.sum().backward()
        found.append([losses, *(parameter.grad for parameter in model.parameters())])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (torch.zeros(3).long(), r"ids of shape \(B, T\), not \(3,\)"),
        (torch.zeros(1, 3), "ids of an integer dtype, not torch.float32"),
        (torch.tensor([[3, -1]]), "ids from -1 to 3, but must be 0 to 49"),
        (torch.tensor([[50]]), "ids from 50 to 50, but must be 0 to 49"),
    ],
)
def test_wrong_tokens_are_refused(wrong: Tensor, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        decoder()(wrong)
