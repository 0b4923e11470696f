"""Position ids in training: contiguous, shifted by one random number, or random and ascending."""

from typing import Any

import pytest
import torch
from helpers import KINDS, some_slow
from torch import Tensor

from pe_bench.checks.subject import CONFIG, Subject
from pe_bench.config import ModelConfig
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import Encoding
from pe_bench.errors import InputError
from pe_bench.layers import Layers
from pe_bench.positions import Positions
from pe_bench.random_ids import random_ids
from pe_bench.registry import catalogue, plugins
from pe_bench.registry.options import plugin_options
from pe_bench.wrapper import Wrapper

SMALL = ModelConfig(layers=2, train_length=4)
TOKENS = torch.tensor([[4, 9, 4, 1], [3, 3, 7, 2]])


class Noting(Encoding):
    """An encoding that records the ids of each forward pass."""

    def __init__(self, model: ModelConfig, layer: int = 0, **options: Any) -> None:
        super().__init__(model, layer, **options)
        self.embedded: list[Tensor] = []
        self.biased: list[Tensor] = []

    def embed(self, x: Tensor, positions: Positions) -> Tensor:
        self.embedded.append(positions.query)
        return x

    def separable_bias(self, positions: Positions) -> None:
        self.biased.append(positions.key)


def noted(times: int = 1, training: bool = True, **options: Any) -> Tensor:
    """Return the ids of forward passes with one seed, (times, S)."""
    model = Decoder(SMALL, lambda config, _: Noting(config, **options)).train(training)
    torch.manual_seed(0)
    for _ in range(times):
        model(TOKENS)
    encoding = model.encoding
    assert isinstance(encoding, Noting)
    # All layers get the same ids.
    for i, ids in enumerate(encoding.embedded):
        assert ids.shape == (1, 4)
        assert all(torch.equal(ids, other) for other in encoding.biased[2 * i : 2 * i + 2])
    return torch.cat(encoding.embedded)


@pytest.mark.parametrize(
    "options",
    [
        {"train_positions": "contiguous"},
        {"train_positions": "offset"},
        {"train_positions": "random", "eval_positions": "contiguous"},
    ],
)
def test_evaluation_has_plain_ids(options: Any) -> None:
    assert noted(2, training=False, **options).tolist() == [[0, 1, 2, 3]] * 2


def test_evaluation_has_frozen_random_ids_after_random_ones_in_training() -> None:
    encoding = Noting(SMALL, train_positions="random").eval()
    assert (encoding.needs_final_length, encoding.eval_samples) == (True, 4)
    assert (encoding.prefix_consistent, encoding.max_position) == (True, 2048)
    seen = []
    for encoding.eval_sample in range(4):
        torch.manual_seed(encoding.eval_sample)  # the global generator has no effect
        plain = torch.arange(9)[None]
        ids = encoding.draw_positions(plain, torch.tensor([9, 9]))
        assert ids.shape == (1, 9) and (ids.diff() > 0).all()
        assert torch.equal(ids, encoding.draw_positions(plain, torch.tensor([9])))
        # Tokens of a sequence that is not finished have its first ids.
        assert torch.equal(encoding.draw_positions(plain[:, :3], torch.tensor([9])), ids[:, :3])
        short, long = encoding.draw_positions(plain, torch.tensor([6, 9]))
        assert torch.equal(long, ids[0])
        alone = encoding.draw_positions(plain[:, :6], torch.tensor([6]))
        assert torch.equal(short[:6], alone[0])
        seen.append(ids)
    assert len(torch.cat(seen).unique(dim=0)) == 4


@pytest.mark.slow
def test_offset_grows_all_ids_by_one_number_below_the_limit() -> None:
    ids = noted(60, train_positions="offset", max_train_position=7)
    assert torch.equal(ids - ids[:, :1], torch.arange(4).expand(60, -1))
    assert set(ids[:, 0].tolist()) == {0, 1, 2, 3}  # 3 puts the last id at 6


@pytest.mark.slow
def test_random_ids_ascend_below_the_limit() -> None:
    ids = noted(200, train_positions="random", max_train_position=6)
    assert (ids.diff(dim=1) > 0).all() and ids.min() == 0 and ids.max() == 5
    assert len(ids.unique(dim=0)) == 15  # all possible draws
    far = noted(40, train_positions="random")  # 2048 of them
    assert (far.diff(dim=1) > 0).all()
    assert far.max() < 2048 and far.float().mean() == pytest.approx(1023.5, abs=250)


@pytest.mark.parametrize("how", ["offset", "random"])
def test_draws_follow_the_seed(how: Any) -> None:
    first = noted(20, train_positions=how)
    assert torch.equal(first, noted(20, train_positions=how))
    assert len(first.unique(dim=0)) > 15  # new in each forward pass


@pytest.mark.parametrize("how", ["offset", "random"])
def test_no_more_ids_than_tokens_are_plain_ids(how: Any) -> None:
    assert noted(5, train_positions=how, max_train_position=4).tolist() == [[0, 1, 2, 3]] * 5


@pytest.mark.parametrize("how", ["offset", "random"])
def test_more_tokens_than_ids_are_refused(how: Any) -> None:
    encoding = Noting(SMALL, train_positions=how, max_train_position=4)
    assert encoding.draw_positions(torch.arange(4)[None], torch.tensor([4])).shape == (1, 4)
    with pytest.raises(InputError, match=r"^5 .* 4: (raise the limit|ask for more)$"):
        encoding.draw_positions(torch.arange(5)[None], torch.tensor([5]))


@pytest.mark.parametrize("how", ["offset", "random"])
def test_ids_with_ties_and_gaps_keep_their_order(how: Any) -> None:
    """Such ids come from encodings that do not count tokens."""
    positions = torch.tensor([[0, 0, 1, 5], [2, 2, 2, 3]])
    encoding = Noting(SMALL, train_positions=how, max_train_position=50)
    for seed in range(20):
        torch.manual_seed(seed)
        drawn = encoding.draw_positions(positions, torch.tensor([4, 4]))
        assert drawn.shape == positions.shape and drawn.dtype == torch.long
        assert torch.equal(drawn.diff(dim=1).sign(), positions.diff(dim=1).sign())
        assert drawn.min() >= 0 and drawn.max() < 50
        assert len(drawn.unique()) == len(positions.unique())  # one number for each, in both rows


def test_given_positions_are_left_alone() -> None:
    model = Decoder(SMALL, lambda config, _: Noting(config, train_positions="random")).train()
    ids = torch.tensor([[3, 5, 8, 9]])
    model(TOKENS, positions=ids)
    assert isinstance(model.encoding, Noting)
    assert torch.equal(model.encoding.embedded[0], ids)


def test_random_ids_of_many_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    ids = random_ids(500, 3, 5, generator)
    assert ids.shape == (500, 3) and (ids.diff(dim=1) > 0).all()
    assert len(ids.unique(dim=0)) == 10
    assert torch.equal(ids, random_ids(500, 3, 5, generator.manual_seed(0)))
    assert random_ids(2, 1, 1, None).tolist() == [[0], [0]]
    lengths = torch.tensor([1, 3])
    drawn = random_ids(1, lengths, 5, generator.manual_seed(0))  # one ranking
    assert torch.equal(drawn[1], ids[0]) and int(drawn[0, 0]) in ids[0]
    assert drawn[0, 1:].tolist() == [4, 4]
    drawn = random_ids(2, lengths, 5, generator.manual_seed(0))
    assert torch.equal(drawn[1], random_ids(2, 3, 5, generator.manual_seed(0))[1])
    with pytest.raises(InputError, match="6 tokens need as many position ids, but there are 5"):
        random_ids(1, 6, 5, None)


def takes_train_positions(name: str) -> bool:
    return "train_positions" in {p.name for p in plugin_options(plugins.load("encoding", name).cls)}


NAMES = catalogue.names("encoding")


@pytest.mark.parametrize("name", some_slow(NAMES, [*KINDS, "bipe", "hybrid"]))
@torch.no_grad()
def test_every_encoding_with_position_ids_can_be_trained_on_drawn_ones(name: str) -> None:
    plugin = plugins.load("encoding", name)
    if issubclass(plugin.cls, (Wrapper, Layers)):  # its parts have the option
        assert not takes_train_positions(name)
        return
    if name == "position-coupling":  # it draws the first id
        assert not takes_train_positions(name)
        return
    model, tokens = Subject(plugin.make).model(), TOKENS.repeat(1, 5)
    ids = (torch.arange(20) ** 2)[None]
    moved = not torch.allclose(model(tokens, positions=ids), model(tokens, positions=ids // 20))
    assert takes_train_positions(name) is moved


@pytest.mark.parametrize(
    "name", some_slow(n for n in NAMES if takes_train_positions(n) and n != "randpe")
)
@pytest.mark.parametrize("how", ["offset", "random"])
@torch.no_grad()
def test_training_ids_of_shipped_encodings(name: str, how: str) -> None:
    plugin = plugins.load("encoding", f"{name}:train_positions={how}")
    model, tokens = (
        Subject(plugin.make).model(torch.float32),
        TOKENS.repeat(1, CONFIG.train_length // 4),
    )
    evaluated = model(tokens)
    outputs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        outputs.append(model.train()(tokens))
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(model.eval()(tokens), evaluated)
    if how == "random":
        assert not torch.allclose(outputs[0], outputs[2], atol=1e-4)
