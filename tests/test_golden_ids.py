"""Encodings that consist of position ids, compared with published ids."""

import itertools
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.decoder import hooks
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.encodings.abacus import Abacus
from pe_bench.encodings.bipe import BiPE
from pe_bench.encodings.position_coupling import PositionCoupling
from pe_bench.encodings.randpe import RandPE
from pe_bench.encodings.rope import RoPE
from pe_bench.errors import InputError
from pe_bench.positions import Positions
from pe_bench.registry import plugins
from pe_bench.registry.options import plugin_options

SMALL: dict[str, Any] = dict(layers=3, heads=2, width=16, mlp_width=16, init_std=0.3, vocab_size=60)
DIGITS = ModelConfig(**SMALL, train_length=12, digit_ids=tuple(range(10)), separator_ids=(50, 51))


def make(spec: str, model: ModelConfig = DIGITS) -> Any:
    """Return an encoding in evaluation mode."""
    return plugins.load("encoding", spec).make(model, 0).eval()


def decoder(spec: str, model: ModelConfig = DIGITS) -> Decoder:
    """Return a decoder with fixed nonzero weights, in float64 and evaluation mode."""
    torch.manual_seed(0)
    return Decoder(model, plugins.load("encoding", spec).make).double().eval()


def at(ids: Tensor) -> Positions:
    return Positions(ids, ids)


def some_tokens(rows: int = 2, length: int = 12) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(DIGITS.vocab_size, (rows, length), generator=generator)


# Random ids


def draws(encoding: RandPE, rows: int, length: int) -> Tensor:
    """Return the ids of finished rows."""
    ids = torch.arange(length)[None]
    return hooks.draw_positions(encoding, ids, torch.full((rows,), length))


def assert_valid(ids: Tensor, limit: int) -> None:
    assert ids.dtype == torch.long
    assert ids.min() >= 0 and ids.max() < limit
    assert (ids.diff(dim=1) > 0).all()


def test_a_full_pool_in_order_is_plain_ids(golden: Any) -> None:
    """This is the published code if the sequence is at least as long as the pool."""
    arrays = golden("randomized_positions")
    ways: list[Literal["frozen", "even"]] = ["frozen", "even"]
    for training, evaluation in itertools.product((True, False), ways):
        for key, length in (("tape_S32", int(arrays["L_max"])), ("tape_S50", 50)):
            encoding = RandPE(DIGITS, max=length, evaluation=evaluation).train(training)
            ids = draws(encoding, 3, length)
            assert ids.shape == (3 if training else 1, length)
            for row in ids:
                arrays.check(key, row)
    with pytest.raises(
        InputError, match="50 tokens need as many position ids, but the pool has 32"
    ):
        draws(RandPE(DIGITS, max=32), 3, 50)


@pytest.mark.parametrize("key", ["tape_train_draws", "tape_eval_draws"])
def test_published_draws_obey_the_same_rules_as_ours(golden: Any, key: str) -> None:
    arrays = golden("randomized_positions")
    published, limit = arrays[key], int(arrays["L_max"])
    encoding = RandPE(DIGITS, max=limit)
    torch.manual_seed(0)
    for ids in (published, draws(encoding, *published.shape)):
        assert_valid(ids, limit)
        assert len(ids.unique(dim=0)) == len(ids)  # a draw for each row
    # Given as positions, they are RoPE's.
    tokens = some_tokens(*published.shape)
    ours, rope = (decoder(spec)(tokens, positions=published) for spec in ("randpe:max=32", "rope"))
    assert torch.equal(ours, rope)
    assert not torch.allclose(ours, decoder("rope")(tokens))


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
def test_draws_are_uniform_over_subsets(training: bool) -> None:
    pool, length, many = 6, 3, 6000
    encoding = RandPE(ModelConfig(train_length=length), max=pool).train(training)
    torch.manual_seed(0)
    if training:
        ids = draws(encoding, many, length)
    else:
        frozen = []
        for encoding.eval_sample in range(many):
            frozen.append(draws(encoding, 1, length))
        ids = torch.cat(frozen)
    assert_valid(ids, pool)
    _, counts = ids.unique(dim=0, return_counts=True)
    expected = many / 20  # C(6, 3) subsets
    assert len(counts) == 20
    assert float(((counts - expected) ** 2 / expected).sum()) < 43.8  # 0.1 % of chi-square, 19


@pytest.mark.slow
def test_the_mean_of_each_id() -> None:
    pool, length, many = 2048, 40, 1000
    encoding = RandPE(ModelConfig(train_length=length), max=pool)
    torch.manual_seed(0)
    ids = draws(encoding, many, length)
    assert_valid(ids, pool)
    mean = torch.arange(1, length + 1) * (pool + 1) / (length + 1) - 1
    assert ((ids.double().mean(0) - mean).abs() < 5 * ids.double().std(0) / many**0.5).all()
    even = RandPE(ModelConfig(train_length=length), max=pool, evaluation="even").eval()
    assert ((draws(even, 1, length)[0] - mean).abs() < 1).all()


@pytest.mark.parametrize(
    ("pool", "length", "ids"),
    [(7, 3, [1, 3, 5]), (8, 3, [1, 3, 5]), (5, 5, [0, 1, 2, 3, 4]), (6, 5, [0, 1, 2, 3, 4])],
)
def test_even_ids(pool: int, length: int, ids: list[int]) -> None:
    encoding = RandPE(ModelConfig(train_length=1), max=pool, evaluation="even").eval()
    assert draws(encoding, 4, length).tolist() == [ids]
    for length in range(1, pool + 1):
        assert_valid(draws(encoding, 1, length), pool)


def test_frozen_draws_are_fixed_and_differ() -> None:
    first, second = RandPE(DIGITS).eval(), RandPE(DIGITS).eval()
    assert (first.eval_samples, first.max_position) == (4, 2048)
    seen = set()
    for number in range(4):
        first.eval_sample = second.eval_sample = number
        torch.manual_seed(number)  # the global generator has no effect
        ids = draws(first, 5, 12)
        assert_valid(ids, 2048)
        assert torch.equal(ids, draws(second, 2, 12)) and ids.shape == (1, 12)
        assert set(ids[0].tolist()) < set(draws(first, 1, 13)[0].tolist())  # one more of a ranking
        seen.add(tuple(ids[0].tolist()))
    assert len(seen) == 4


def test_training_draws_follow_the_seed_and_differ_by_row() -> None:
    model, tokens = decoder("randpe").train(), some_tokens(1).expand(3, -1)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(model(tokens))
    assert torch.equal(runs[0], runs[1]) and not torch.allclose(runs[0], runs[2])
    assert not torch.allclose(runs[0][0], runs[0][1])
    evaluated = model.eval()(tokens)
    assert torch.equal(evaluated, model(tokens))
    torch.testing.assert_close(evaluated[0], evaluated[1])
    model.use_eval_sample(1)
    assert not torch.allclose(model(tokens), evaluated)


class Recording(RandPE):
    """An encoding that records the rotation of every layer."""

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        self.seen: list[Tensor] = getattr(self, "seen", [])
        seed = torch.get_rng_state()
        self.seen.append(super().transform_qk(torch.ones_like(q), k, positions)[0])
        torch.set_rng_state(seed)
        return super().transform_qk(q, k, positions)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("per_layer", [True, False])
def test_layers_share_a_draw_unless_told_otherwise(training: bool, per_layer: bool) -> None:
    model = Decoder(DIGITS, lambda config, _: Recording(config, per_layer=per_layer))
    model.train(training)(some_tokens())
    (encoding,) = model.encodings
    assert isinstance(encoding, Recording) and len(encoding.seen) == DIGITS.layers
    for one, other in itertools.combinations(encoding.seen, 2):
        assert torch.equal(one, other) is not per_layer
    again = Decoder(DIGITS, lambda config, _: Recording(config, per_layer=per_layer)).eval()
    again(some_tokens(3))
    assert isinstance(again.encoding, Recording)
    if not training:  # the layers' draws are frozen as well
        for one, other in zip(encoding.seen, again.encoding.seen, strict=True):
            assert torch.equal(one[0], other[0])


def test_no_two_layers_or_draws_have_the_same_ids() -> None:
    encoding, seen = RandPE(DIGITS, per_layer=True).eval(), set()
    ones = torch.ones(1, 2, 12, 8)
    for sample in range(encoding.eval_samples):
        encoding.eval_sample = sample
        ids = draws(encoding, 1, 12)
        for layer in range(DIGITS.layers):
            q, _ = encoding.transform_qk(ones, ones, Positions(ids, ids, layer_index=layer))
            seen.add(tuple(q.flatten().tolist()))
    assert len(seen) == encoding.eval_samples * DIGITS.layers


@pytest.mark.parametrize("spec", ["randpe", "randpe:evaluation=even", "randpe:per_layer=true"])
@pytest.mark.parametrize("training", [True, False])
def test_ids_are_drawn_for_the_finished_sequence(spec: str, training: bool) -> None:
    """An unfinished row has the first of these ids; the training length is the minimum length."""
    encoding = make(spec).train(training)

    def first(tokens: int, *lengths: int) -> Tensor:
        torch.manual_seed(0)
        ids = torch.arange(tokens)[None]
        return hooks.draw_positions(encoding, ids, torch.tensor(lengths))

    whole = first(40, 40, 40)
    assert torch.equal(first(25, 40, 40), whole[:, :25])
    assert not torch.equal(first(25, 25, 25), whole[:, :25])
    # Rows of unequal length share a forward pass without sharing their ids.
    short, long = first(40, 20, 40).unbind()
    assert torch.equal(long, whole[-1])
    assert torch.equal(short[:20], first(20, 20, 20)[0])
    assert torch.equal(first(5, 5, 5), first(12, 12, 12)[:, :5])  # 12 tokens were trained


@torch.no_grad()
def test_a_token_keeps_its_id_while_an_answer_is_written() -> None:
    model = decoder("randpe")
    prompt = some_tokens(1, 20)[0].tolist()
    (answer,) = model.generate([prompt], max_new_tokens=6)
    for written in range(6):
        given = torch.tensor([prompt + answer[:written]])
        logits = model(given, final_lengths=torch.tensor([26]))
        assert int(logits[0, -1].argmax()) == answer[written]


def test_randpe_takes_the_options_of_rope() -> None:
    names = [p.name for p in plugin_options(RandPE)]
    assert names[:4] == ["max", "evaluation", "count", "per_layer"] and "base" in names
    ids = torch.tensor([[0, 3, 9, 2000]])
    specs = ("randpe:base=500", "rope:base=500")
    ours, rope = (make(spec).tables(ids, torch.float32) for spec in specs)
    assert all(torch.equal(a, b) for a, b in zip(ours, rope, strict=True))


# Digits in their numbers


def test_abacus_ids(golden: Any) -> None:
    arrays = golden("abacus")
    tokens, k = arrays["token_ids"], int(arrays["k"])
    digits = tuple(arrays["digit_ids"].tolist())
    encoding = Abacus(ModelConfig(**SMALL, digit_ids=digits), offset=k + 1)
    plain = encoding.positions(tokens)
    arrays.check("position_ids_eval", plain[..., 1])
    assert torch.equal(plain[..., 0], torch.arange(12).expand(4, -1))
    drawn = {}
    for seed in range(100):
        torch.manual_seed(seed)
        ids = encoding.draw_positions(plain, torch.full((4,), 12))
        assert torch.equal(ids[..., 0], plain[..., 0])
        drawn[int(ids[0, 0, 1]) - 1] = ids[..., 1]
    assert set(drawn) == set(range(k + 1))  # all numbers below the offset
    arrays.check("position_ids_train", drawn[k])


def test_abacus_ids_know_no_later_token_and_no_order_of_ids() -> None:
    encoding = make("abacus", ModelConfig(**SMALL, digit_ids=(59, 3, 17)))
    tokens = torch.tensor([[59, 3, 17, 17, 1, 3, 3, 58]])
    assert encoding.positions(tokens)[0, :, 1].tolist() == [1, 2, 3, 4, 0, 1, 2, 0]
    whole = encoding.positions(some_tokens())
    for length in range(1, 12):
        assert torch.equal(encoding.positions(some_tokens()[:, :length]), whole[:, :length])


def test_abacus_adds_its_table_to_the_tokens() -> None:
    encoding = make("abacus:rows=3,offset=1")
    x, tokens = torch.randn(1, 5, 16), torch.tensor([[40, 1, 2, 3, 4]])
    with torch.no_grad():
        added = encoding.embed(x, at(encoding.positions(tokens))) - x
    rows = encoding.table.weight[[0, 1, 2, 2, 2]]  # digits beyond the table
    torch.testing.assert_close(added[0], rows.detach())
    encoding.train()
    ids = encoding.positions(tokens)
    assert torch.equal(encoding.draw_positions(ids, torch.tensor([5])), ids)


def test_abacus_is_random_in_training_only() -> None:
    model, tokens = decoder("abacus").train(), some_tokens()
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(model(tokens))
    assert torch.equal(runs[0], runs[1]) and not torch.allclose(runs[0], runs[2])
    evaluated = model.eval()(tokens)
    torch.manual_seed(5)
    assert torch.equal(model(tokens), evaluated)


@pytest.mark.parametrize(("option", "std"), [("", 0.3), (":init_std=1", 1.0), (":init_std=0", 0.0)])
def test_abacus_starts_as_loud_as_the_tokens(option: str, std: float) -> None:
    table = make(f"abacus{option}").table.weight.detach()
    assert table.shape == (1024, 16)
    assert float(table.std()) == pytest.approx(std, rel=0.05)


# Digits of equal significance

ARITHMETIC = ModelConfig(**SMALL, digit_ids=tuple(range(10)), separator_ids=(11,))


@pytest.mark.parametrize("key", ["sum", "totals", "totals_from_zero"])
def test_position_coupling_ids(golden: Any, key: str) -> None:
    arrays = golden("position_coupling")
    tokens = arrays[f"{key}_tokens"]
    there = tokens >= 0
    encoding = PositionCoupling(ARITHMETIC, operands=key != "sum").eval()
    ids = encoding.positions(tokens.clamp(min=0)) + 1  # theirs begin at 1
    arrays.check(f"{key}_ids", ids, where=there if key == "sum" else there[..., None])
    drawn = encoding.draw_positions(ids, torch.full((4,), tokens.shape[1]))
    assert torch.equal(drawn, ids)


def test_position_coupling_starts_anywhere_that_its_table_has_room() -> None:
    encoding = PositionCoupling(ARITHMETIC, rows=7, operands=True).train()
    rows = [[1, 2, 3, 10, 4, 11, 5, 5], [1, 10, 4, 10, 6, 11, 12, 5]]
    tokens = torch.tensor(rows)
    plain = encoding.positions(tokens)
    torch.manual_seed(0)
    drawn = torch.stack([encoding.draw_positions(plain, torch.tensor([8, 8])) for _ in range(300)])
    starts = drawn - plain
    assert (starts == starts[:, :, :1]).all()  # equal shift for all ids of a row
    for row, (places, numbers) in enumerate([(4, 6), (6, 5)]):
        assert set(starts[:, row, 0, 0].tolist()) == set(range(places))
        assert set(starts[:, row, 0, 1].tolist()) == set(range(numbers))
    assert (starts[:, 0, 0, 0] != starts[:, 1, 0, 0]).any()  # each row separately


@pytest.mark.parametrize("operands", [False, True])
def test_position_coupling_adds_its_tables_to_the_tokens(operands: bool) -> None:
    encoding = PositionCoupling(ARITHMETIC, rows=3, operands=operands).eval()
    x = torch.randn(1, 6, 16)
    with torch.no_grad():
        added = encoding.embed(x, at(encoding.positions(torch.tensor([[1, 2, 3, 10, 4, 11]])))) - x
        expected = encoding.table.weight[[1, 2, 2, 0, 1, 0]]  # the last row repeats
        if operands:
            expected = expected + encoding.second.weight[[0, 0, 0, 1, 1, 0]]
    torch.testing.assert_close(added[0], expected)


# Sentences


@pytest.mark.parametrize("train_scale", [1024, 4])
def test_bipe_ids(golden: Any, train_scale: int) -> None:
    arrays = golden("bipe")
    separators = tuple(arrays["sep_ids"].tolist())
    model = ModelConfig(**SMALL | {"vocab_size": 900}, separator_ids=separators)
    ids = BiPE(model, train_scale=train_scale).positions(arrays["token_ids"])
    arrays.check("inter_ids", ids[..., 0])
    arrays.check("intra_ids" if train_scale > 4 else "intra_ids_trainscale4", ids[..., 1])


def test_bipe_alibi(golden: Any) -> None:
    arrays = golden("bipe")
    separators = tuple(arrays["sep_ids"].tolist())
    model = ModelConfig(heads=12, width=24, vocab_size=900, separator_ids=separators)
    encoding = BiPE(model, form="alibi")
    c = encoding.separable_bias(at(encoding.positions(arrays["token_ids"])))
    assert c is not None and not encoding.overrides("transform_qk")
    # Here it is the bias of a query; in the published code it is the bias of a key.
    arrays.check("alibi_key_bias", -c[:, :, None].float())
    second_segment = torch.tensor([[[1, 0]]])
    slopes = encoding.separable_bias(at(second_segment))
    assert slopes is not None
    arrays.check("slopes96_H12", -slopes[0, :, 0].float())


def test_bipe_turns_by_the_segment_and_adds_the_place_within() -> None:
    encoding, x = make("bipe:train_scale=3"), torch.randn(1, 6, 16)
    tokens = torch.tensor([[1, 1, 50, 1, 51, 51]])
    ids = encoding.positions(tokens)
    assert ids[0].T.tolist() == [[0, 0, 0, 1, 1, 2], [0, 1, 2, 0, 1, 0]]
    q, k = torch.randn(2, 1, 2, 6, 8)
    rope = RoPE(DIGITS).transform_qk(q, k, at(ids[..., 0]))
    for ours, expected in zip(encoding.transform_qk(q, k, at(ids)), rope, strict=True):
        assert torch.equal(ours, expected)
    assert encoding.overrides("transform_qk") and encoding.separable_bias(at(ids)) is None
    with torch.no_grad():
        added = encoding.embed(x, at(ids)) - x
    torch.testing.assert_close(added[0], encoding.table.weight[ids[0, :, 1]].detach())


def test_bipe_has_a_row_for_each_place_seen_in_training() -> None:
    assert make("bipe").table.weight.shape == (DIGITS.train_length, 16)
    long = make("bipe", ModelConfig(**SMALL, train_length=512, separator_ids=(1,)))
    assert float(long.table.weight.detach().std()) == pytest.approx(0.3, rel=0.05)
    assert long.positions(torch.zeros(1, 600, dtype=torch.long))[0, :, 1].max() == 511


@pytest.mark.parametrize("spec", ["bipe", "bipe:form=alibi"])
@torch.no_grad()
def test_earlier_segments_do_not_move_later_ones_apart(spec: str) -> None:
    """Inserting a whole segment at the front does not change the logits of later tokens."""
    model = decoder(spec, ModelConfig(**SMALL | {"layers": 1}, separator_ids=(50, 51)))
    tokens, more = some_tokens(1), torch.tensor([[7, 8, 9, 50]])
    alone: list[Tensor] = []
    after: list[Tensor] = []
    model.hidden(tokens, logits=alone)
    model.hidden(torch.cat([more, tokens], dim=1), logits=after)
    torch.testing.assert_close(after[0][..., 4:, 4:], alone[0])


COUNTING = ["abacus", "abacus:base=rope", "bipe", "bipe:form=alibi"]
COUPLED = ["position-coupling", "position-coupling:operands=true"]


@pytest.mark.parametrize("spec", COUNTING + COUPLED)
@torch.no_grad()
def test_counting_goes_on_while_decoding(spec: str) -> None:
    """Runs of digits and sentences continue from earlier tokens."""
    model = decoder(spec)
    tokens = torch.tensor([[1, 2, 3, 4, 50, 5, 6, 7, 51, 50, 8, 9]])
    cache = Cache(1, 12)
    steps = torch.cat([model(token, cache) for token in tokens.split(1, dim=1)], dim=1)
    torch.testing.assert_close(steps, model(tokens))


# Limits and facts


def test_a_sequence_that_outgrows_the_pool_is_refused() -> None:
    model = decoder("randpe:max=16")
    assert model(some_tokens(1, 16)).isfinite().all()
    with pytest.raises(
        InputError, match="17 tokens need as many position ids, but the pool has 16"
    ):
        model(some_tokens(1, 17))
    with pytest.raises(InputError, match="positions 0 to 15, not 16"):
        model(some_tokens(1, 2), positions=torch.tensor([[3, 16]]))


def test_what_is_declared() -> None:
    facts = {
        "randpe": (True, True, 2048, 4, True),
        "randpe:evaluation=even": (True, True, 2048, 1, True),
        "randpe:per_layer=true,count=2": (True, True, 2048, 2, True),
        "abacus": (True, True, None, 1, True),
        "position-coupling": (True, False, None, 1, True),
        "bipe": (True, False, None, 1, True),
        "bipe:form=alibi": (True, False, None, 1, True),
    }
    for spec, expected in facts.items():
        e: Encoding = make(spec)
        declared = (
            e.prefix_consistent,
            e.shift_invariant,
            e.max_position,
            e.eval_samples,
            e.shared,
        )
        assert declared == expected, spec
