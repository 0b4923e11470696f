"""One encoding added to another: the other one keeps its effects."""

import inspect
from typing import Any

import pytest
import torch
from helpers import some_slow
from torch import Tensor

from pe_bench.checks.subject import CONFIG, Subject
from pe_bench.config import ModelConfig
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding, StatefulEncoding
from pe_bench.encodings.abacus import Abacus
from pe_bench.errors import InputError
from pe_bench.layers import Layers
from pe_bench.positions import Positions
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.options import EncodingSpec
from pe_bench.wrapper import Wrapper, join_ids, make_base, split_ids

CLASSES = {name: plugins.load("encoding", name).cls for name in catalogue.names("encoding")}
WRAPPERS = [name for name, cls in CLASSES.items() if issubclass(cls, (Wrapper, Layers))]
BASES = [name for name in CLASSES if name not in WRAPPERS]
INTERFACE = vars(Encoding) | vars(StatefulEncoding)
pytestmark = pytest.mark.usefixtures("four_layers")
HOOKS = [name for name, value in INTERFACE.items() if inspect.isfunction(value)]


def make(spec: str) -> Any:
    return plugins.load("encoding", spec).make(CONFIG, 0)


def subject(spec: str) -> Subject:
    return Subject(plugins.load("encoding", spec).make)


def abacus_on(base: str) -> tuple[Decoder, Decoder]:
    """Return a model with an encoding, and one with abacus added and otherwise equal weights."""
    alone, both = subject(base).model(), subject(f"abacus:base={base}").model()
    state = alone.state_dict().items()
    weights = {key: value for key, value in state if not key.startswith("encodings.")}
    for i, encoding in enumerate(alone.encodings):
        prefix = f"encodings.{i}.base."
        weights |= {prefix + key: value for key, value in encoding.state_dict().items()}
    missing, unread = both.load_state_dict(weights, strict=False)
    assert (missing, unread) == (["encodings.0.table.weight"], [])
    return alone, both


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES)
@torch.no_grad()
def test_a_table_of_zeros_changes_nothing_about_the_base(base: str) -> None:
    (alone, both), tokens = abacus_on(base), subject(base).tokens()
    assert len(both.encodings) == len(alone.encodings)
    assert not torch.allclose(both(tokens), alone(tokens))
    table = both.get_parameter("encodings.0.table.weight")
    table.zero_()
    logits: list[list[Tensor]] = [[], []]
    for model, found in zip((both, alone), logits, strict=True):
        model.hidden(tokens, logits=found)
    for wrapped, plain in zip(*logits, strict=True):
        torch.testing.assert_close(wrapped, plain)
    torch.testing.assert_close(both(tokens), alone(tokens))
    ids = torch.arange(tokens.shape[1])[None] + 5
    torch.testing.assert_close(both(tokens, positions=ids), alone(tokens, positions=ids))


@pytest.mark.slow
@pytest.mark.parametrize("base", [base for base in BASES if make(base).prefix_consistent])
@torch.no_grad()
def test_any_base_still_decodes_with_a_cache(base: str) -> None:
    model, tokens = subject(f"abacus:base={base}").model(), subject(base).tokens(24)
    cache = Cache(*tokens.shape)
    steps = [tokens[:, :11], *tokens[:, 11:].split(1, dim=1)]
    decoded = torch.cat([model(step, cache) for step in steps], dim=1)
    torch.testing.assert_close(decoded, model(tokens))


@pytest.mark.parametrize("base", some_slow(BASES))
def test_any_base_is_trained_too(base: str) -> None:
    model = subject(f"abacus:base={base}").model().train()
    model(subject(base).tokens(80)).square().mean().backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()]
    assert not without


@pytest.mark.parametrize("base", BASES)
def test_facts_are_those_of_the_base(base: str) -> None:
    alone, both = make(base), make(f"abacus:base={base}")
    annotations = inspect.get_annotations(Encoding) | inspect.get_annotations(StatefulEncoding)
    facts = {name for name in annotations if hasattr(alone, name)}
    facts -= {"shift_invariant", "parameters_per_layer", "variants", "version", "tunable"}  # own
    assert {"shared", "max_position", "eval_samples", "divide_scores"} <= facts
    for fact in facts:
        assert getattr(both, fact) == getattr(alone, fact), fact
    own = {"positions", "draw_positions", "embed"}
    assert all(both.overrides(hook) for hook in own)
    private = {name for name in HOOKS if name.startswith("_")}
    for hook in set(HOOKS) - private - own - {"overrides", "kind_of", "at_layer"}:
        assert both.overrides(hook) is alone.overrides(hook), hook


def test_no_hook_is_left_out() -> None:
    public = {name for name in HOOKS if not name.startswith("_")}
    assert {"positions", "embed", "transform_qk", "prepare", "draw_positions"} <= public
    assert public - {"bias_matrix", "kind_of", "at_layer"} <= set(vars(Wrapper))


def test_a_base_without_state_hands_none_on() -> None:
    encoding = make("abacus:base=rope")
    x, ids = torch.zeros(1, 3, CONFIG.width), torch.arange(3)[None]
    assert encoding.prepare(x, Positions(ids, ids)) is None
    assert encoding.extra_values(None) is None and encoding.update_state(None, None, x, x) is None


class Noting(StatefulEncoding):
    """An encoding that records the ids of every hook call."""

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.seen: dict[str, Tensor] = {}

    def note(self, hook: str, positions: Positions) -> None:
        self.seen |= {f"{hook}, query": positions.query, f"{hook}, key": positions.key}

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        self.note("embed", positions)
        return x

    def prepare(self, x: Tensor, positions: Positions) -> None:
        self.note("prepare", positions)

    def token_features(self, x: Tensor, positions: Positions) -> None:
        self.note("token_features", positions)

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        self.note("transform_qk", positions)
        return q, k

    def separable_bias(self, positions: Positions) -> None:
        self.note("separable_bias", positions)

    def bias(self, positions: Positions) -> None:
        self.note("bias", positions)

    def product(self, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        self.note("product", positions)
        return q @ k.mT

    def rewrite_logits(self, scores: Tensor, q: Tensor, k: Tensor, positions: Positions) -> Tensor:
        self.note("rewrite_logits", positions)
        return scores


class Adding(Wrapper):
    """A wrapper that adds unused ids."""

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer, Noting(model, layer))

    def positions(self, tokens: Tensor) -> Tensor:
        return join_ids(super().positions(tokens), 7 * tokens)


@pytest.mark.parametrize("given", [False, True])
@torch.no_grad()
def test_the_base_sees_one_id_per_token(given: bool) -> None:
    model = Decoder(ModelConfig(layers=1), Adding).eval()
    tokens = torch.tensor([[5, 6, 5, 9, 1, 0]])
    everything = torch.arange(6)[None] + (100 if given else 0)
    ids = everything if given else None
    cache = Cache(1, 6)
    model(tokens[:, :4], cache, positions=None if ids is None else ids[:, :4])
    model(tokens[:, 4:], cache, positions=ids)
    assert isinstance(model.encoding, Adding) and isinstance(model.encoding.base, Noting)
    seen = model.encoding.base.seen
    assert len(seen) == 2 * 8
    for where, positions in seen.items():
        whole = where.endswith("key")
        assert torch.equal(positions, everything if whole else everything[:, 4:]), where


def test_a_state_is_rotated_as_the_base_rotates_it() -> None:
    base, angles = make("tape"), torch.linspace(1, 2, CONFIG.head_dim // 2)
    ids = torch.arange(5)[None]
    state = base.prepare(torch.zeros(1, 5, CONFIG.width), Positions(ids, ids))
    rotated = make("abacus:base=tape").rotate_state(state, angles)
    assert torch.equal(rotated, base.rotate_state(state, angles)) and not torch.equal(
        rotated, state
    )


def test_split_takes_apart_what_join_put_together() -> None:
    base, added = torch.arange(4)[None], torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    joined = join_ids(base, added)
    assert joined.shape == (2, 4, 2)
    ids, own = split_ids(joined)
    assert torch.equal(ids, base.expand(2, -1)) and torch.equal(own, added)
    ids, own = split_ids(added)
    assert torch.equal(ids, added) and not own.any()
    two = torch.stack([base, base + 5], dim=-1)  # as if every layer had separate ids
    ids, own = split_ids(join_ids(two, added))
    assert torch.equal(ids, two.expand(2, -1, -1)) and torch.equal(own, added)


@pytest.mark.parametrize("how", ["offset", "random"])
def test_random_training_ids_of_the_base(how: str) -> None:
    tokens = subject("nope").tokens()
    encoding = Abacus(CONFIG, base=EncodingSpec(f"sinusoidal:train_positions={how}"))
    plain, added = split_ids(encoding.positions(tokens))
    torch.manual_seed(3)
    lengths = torch.full((len(tokens),), tokens.shape[1])
    drawn = encoding.draw_positions(encoding.positions(tokens), lengths)
    ids, digits = split_ids(drawn)
    torch.manual_seed(3)
    assert torch.equal(ids, encoding.base.draw_positions(plain, lengths))
    assert not torch.equal(ids, plain)
    assert torch.equal(digits > 0, added > 0)
    torch.manual_seed(3)
    wrapped = Wrapper(CONFIG, 0, encoding.base)
    assert torch.equal(wrapped.draw_positions(plain, lengths), ids)


def test_frozen_choices_reach_the_base() -> None:
    model, tokens = subject("abacus:base=randpe").model(), subject("nope").tokens()
    assert model.encoding.eval_samples == 4
    expected = subject("randpe").model()
    lengths = torch.full((len(tokens),), tokens.shape[1])
    seen = []
    for sample in range(2):
        model.use_eval_sample(sample)
        expected.use_eval_sample(sample)
        ids = model.encoding.draw_positions(model.encoding.positions(tokens), lengths)
        plain = expected.encoding.positions(tokens)
        seen.append(split_ids(ids)[0])
        assert torch.equal(seen[-1][:1], expected.encoding.draw_positions(plain, lengths))
    assert not torch.equal(*seen)


def test_a_table_of_the_base_ends_where_it_ends() -> None:
    model = subject("abacus:base=randpe:max=40").model()
    assert model.encoding.max_position == 40
    model(subject("nope").tokens(40))
    with pytest.raises(InputError, match="the pool has 40"):
        model(torch.zeros(1, 41, dtype=torch.long))
    with pytest.raises(InputError, match="positions 0 to 39, not 40"):
        model(torch.zeros(1, 2, dtype=torch.long), positions=torch.tensor([[3, 40]]))


@pytest.mark.parametrize("name", ["log-temperature", "pose", "sinks", "softpick"])
@pytest.mark.parametrize(("base", "invariant"), [("rope", True), ("fire", False)])
def test_a_wrapper_is_shift_invariant_as_its_base(name: str, base: str, invariant: bool) -> None:
    made = plugins.load("encoding", f"{name}:base={base}").make(CONFIG, 0)
    assert made.shift_invariant == invariant


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_what_adds_to_another_is_no_base(wrapper: str) -> None:
    with pytest.raises(InputError, match="Abacus needs a single encoding as base, but") as caught:
        make(f"abacus:base={wrapper}")
    assert CLASSES[wrapper].__name__ in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("base", "says"),
    [
        ("ropee", "no encoding 'ropee' (did you mean 'rope'?)"),
        ("rope:bass=2", "rope has no option 'bass' (did you mean 'base'?)"),
        ("rope:base=1", "greater than 1"),
    ],
)
def test_bases_that_cannot_be_built(base: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        make(f"abacus:base={base}")
    assert says in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(InputError):
        make_base(base, CONFIG, 0)


def test_a_base_with_an_option() -> None:
    plugin = plugins.load("encoding", "abacus:offset=5,base=rope:base=500")
    assert plugin.label == "abacus:base=rope:base=500,offset=5"
    made = plugin.make(CONFIG, 0)
    assert isinstance(made, Abacus) and made.base.base == 500 and made.offset == 5
    assert plugins.load("encoding", "abacus:base=nope").label == "abacus"


def test_a_base_with_several_options() -> None:
    plugin = plugins.load("encoding", "abacus:offset=5,base=rope:rotary=0.50:base=5e5")
    assert plugin.label == "abacus:base=rope:base=500000:rotary=0.5,offset=5"
    assert plugins.load("encoding", plugin.label).label == plugin.label
    made = plugin.make(CONFIG, 0)
    base = plugins.load("encoding", "rope:base=5e5,rotary=0.5").make(CONFIG, 0)
    assert isinstance(made, Abacus) and made.offset == 5
    assert (made.base.base, made.base.planes) == (base.base, base.planes)
    with pytest.raises(InputError, match="write name:key=value:key=value"):
        plugins.load("encoding", "abacus:base=rope:base=5e5:rotary")
