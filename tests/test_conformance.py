"""Every check detects its defect, and no other check fails because of it."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from helpers import KINDS, some_slow
from torch import Tensor, nn

from pe_bench.checks import encodings as module
from pe_bench.checks import kernels as checked_kernels
from pe_bench.checks.depth import Depths, find_unlike_layers
from pe_bench.checks.differences import difference
from pe_bench.checks.encodings import CHECKS, FACTS, examine
from pe_bench.checks.findings import NotApplicable, run_check
from pe_bench.checks.kernels import compare_kernels
from pe_bench.checks.states import rotation
from pe_bench.checks.subject import CONFIG, Subject
from pe_bench.checks.table import check_encodings
from pe_bench.cli import main
from pe_bench.config import ModelConfig
from pe_bench.decoder import blocked, sdpa, short, token_positions
from pe_bench.decoder.cache import Cache
from pe_bench.encoding import Encoding, StatefulEncoding
from pe_bench.errors import InputError
from pe_bench.grid.plan import make_plan
from pe_bench.grid.spec import GridSpec
from pe_bench.positions import Positions
from pe_bench.registry import catalogue, plugins
from pe_bench.runs.options import RunOptions

NAN, INF = float("nan"), float("inf")

HEADER = """
import torch
from dataclasses import replace
from torch import nn
from pe_bench.encoding import Encoding, StatefulEncoding
from pe_bench.encodings.rope import RoPE
from pe_bench.encodings.sinusoidal import Sinusoidal
from pe_bench.encodings.tape import TAPE
"""

TABLE = """
class Table(Encoding):
    def __init__(self, model, layer=0):
        super().__init__(model, layer)
        self.max_position = 100
        self.table = nn.Embedding(100, model.width)

    def embed(self, x, positions):
        return x + self.table(positions.query)
"""

NARROW = """
class Narrow(RoPE):
    def __init__(self, model, layer=0):
        super().__init__(model, layer)
        own = super().frequencies(torch.device("cpu"))
        self.register_buffer("own", own, persistent=False)

    def frequencies(self, device, length=0):
        return self.own

    def _apply(self, fn, recurse=True):
        return nn.Module._apply(self, fn, recurse)
"""

STRETCHED = """
class Stretched(RoPE):  # frequencies that depend on the current length
    prefix_consistent = False
    shift_invariant = False

    def tables(self, ids, dtype):
        return super().tables(ids / ids.max().clamp(min=1) * 30, dtype)
"""

FORGETTING = """
class Forgetting(Encoding):  # each token says how much of what came before to forget
    shift_invariant = True
    shared = False

    def __init__(self, model, layer=0):
        super().__init__(model, layer)
        self.gate = nn.Linear(model.width, model.heads)

    def token_features(self, x, positions):
        return nn.functional.logsigmoid(self.gate(x)).mT[..., None]

    def separable_bias(self, positions):
        return positions.features[..., 0].cumsum(-1)
"""

SHARPENING = """
class Sharpening(Encoding):  # the more keys to look at, the larger the logits
    def rewrite_logits(self, scores, q, k, positions):
        return scores * positions.causal.sum(-1, keepdim=True).log1p()
"""

LOG_TEMPERATURE = """
class LogTemperature(RoPE):  # every n-th layer without positions, its queries times log n
    shared = False
    shift_invariant = False
    logits_grow = True

    def __init__(self, model, layer=0, *, every: int = 2):
        super().__init__(model, layer)
        self.without = layer % every == every - 1

    def transform_qk(self, q, k, positions):
        if not self.without:
            return super().transform_qk(q, k, positions)
        return q * (positions.query + 2).to(q.dtype).log()[:, None, :, None], k
"""

EVERY_LAYER_GROWS = LOG_TEMPERATURE.replace("logits_grow = True", "").replace("= 2", "= 1")

# Layer index 3 only.
FOURTH_LEAKS = """
class FourthLeaks(RoPE):
    shared = False

    def transform_qk(self, q, k, positions):
        q, k = super().transform_qk(q, k, positions)
        return (q + q.mean(dim=2, keepdim=True), k) if self.layer == 3 else (q, k)
"""

FOURTH_CRASHES = """
class FourthCrashes(RoPE):
    shared = False

    def transform_qk(self, q, k, positions):
        if self.layer == 3:
            raise ValueError("the fourth layer")
        return super().transform_qk(q, k, positions)
"""

RANDOM = """
class Random(Encoding):
    def embed(self, x, positions):
        return x + torch.rand_like(x)
"""

# Chunks of 64 tokens are replaced by their mean as soon as they are complete.
POOLING = """
class Pooling(Encoding):
    shared = False

    def __init__(self, model, layer=0):
        super().__init__(model, layer)
        self.gate = nn.Linear(model.width, model.heads)

    def token_features(self, x, positions):
        return self.gate(x).mT[..., None]

    def scan_features(self, features):
        *whole, rest = features.split(64, dim=2) if features.shape[2] > 64 else [features]
        pooled = [chunk.mean(2, keepdim=True).expand_as(chunk) for chunk in whole]
        return torch.cat([*pooled, rest], dim=2)

    def separable_bias(self, positions):
        return positions.features[..., 0]
"""

# A base that grows with the length beyond 64 tokens.
DYNAMIC = """
class Dynamic(RoPE):
    shift_invariant = False
    longest = 64

    def transform_qk(self, q, k, positions):
        self.longest = max({earlier}, positions.key.shape[1])
        ids = positions.query * (64 / self.longest)
        return super().transform_qk(q, k, replace(positions, query=ids))
"""

LEARNED_BIAS = """
class LearnedBias(Encoding):
    shift_invariant = True
    shared = False

    def __init__(self, model, layer=0):
        super().__init__(model, layer)
        self.table = nn.Parameter(torch.{initial}(model.heads, 64))
        self.gate = nn.Parameter(torch.{initial}(model.heads))
        self.kept = {{}}

    def distance_bias(self, distances):
        key = (len(distances), int(distances[-1]))
        if {stale}:
            return self.kept[key]
        bias = self.table[:, distances.clamp(max=63)] * self.gate[:, None]
        self.kept[key] = bias
        return bias
"""

BROKEN = {
    "pools chunks of 64 tokens": (
        POOLING,
        {"causal", "prefix_consistent", "cache", "chunks", "ragged"},
    ),
    "is off by one when it decodes from position 64 on": (
        """
class OffByOne(Sinusoidal):
    def embed(self, x, positions):
        ids = positions.query
        if x.shape[1] == 1:
            ids = torch.where(ids >= 64, ids + 1, ids)
        return super().embed(x, replace(positions, query=ids))
""",
        {"cache", "ragged"},
    ),
    "keeps the length of its longest text": (
        DYNAMIC.format(earlier="self.longest"),
        {"repeatable"},
    ),
    "depends on lengths beyond 64 tokens": (
        DYNAMIC.format(earlier="64"),
        {"prefix_consistent", "cache", "chunks", "ragged"},
    ),
    "multiplies two parameters that are zero at first": (
        LEARNED_BIAS.format(initial="zeros", stale="False"),
        {"gradients"},
    ),
    "keeps a bias in every mode": (
        LEARNED_BIAS.format(initial="ones", stale="key in self.kept"),
        {"repeatable"},
    ),
    "keeps a bias in evaluation": (
        LEARNED_BIAS.format(initial="ones", stale="not self.training and key in self.kept"),
        {"repeatable"},
    ),
    "keeps a bias in training": (
        LEARNED_BIAS.format(initial="ones", stale="self.training and key in self.kept"),
        {"repeatable"},
    ),
    "rounds its positions in every type": (
        """
class Bfloat16(RoPE):
    shift_invariant = False

    def tables(self, ids, dtype):
        return super().tables(ids.bfloat16().float(), dtype)
""",
        {"precision"},
    ),
    "rounds its positions in the constructor": (
        """
class Constructor(Encoding):
    def __init__(self, model, layer=0):
        super().__init__(model, layer)
        self.register_buffer("ids", torch.arange(8192).bfloat16().float())

    def embed(self, x, positions):
        return x + self.ids[positions.query, None].cos()
""",
        {"precision"},
    ),
    "rounds its positions in long texts": (
        """
class Long(Encoding):
    def embed(self, x, positions):
        ids = positions.query[..., None]
        return x + (ids.bfloat16().float() if x.shape[1] > 64 else ids).cos()
""",
        {"precision"},
    ),
    "returns a bias in float16": (
        """
class Float16(Encoding):
    shift_invariant = True

    def distance_bias(self, distances):
        return (-0.1 * distances.half())[None].expand(self.model.heads, -1)
""",
        {"precision"},
    ),
    "subtracts the mean of the batch": (
        """
class Centred(Encoding):
    def embed(self, x, positions):
        return x - x.mean(0, keepdim=True) / 2
""",
        {"rows", "ragged"},
    ),
    "sees other rows in training": (
        """
class Neighbours(Encoding):
    def embed(self, x, positions):
        return x + x.flip(0) if self.training else x
""",
        {"rows"},
    ),
    "is random": (RANDOM, {"repeatable"}),
    "sees the future in its fourth layer": (
        FOURTH_LEAKS,
        {"causal", "prefix_consistent", "cache", "chunks", "ragged"},
    ),
    "has logits that grow, undeclared": (
        EVERY_LAYER_GROWS,
        {"bfloat16"},
    ),
    "declares logits that grow and loses its frequencies": (
        NARROW.replace("(RoPE):", "(RoPE):\n    logits_grow = True\n"),
        {"bfloat16"},
    ),
    "sees the future": (
        """
class Leaky(Encoding):
    def embed(self, x, positions):
        return x + x.mean(dim=1, keepdim=True)
""",
        {"causal", "prefix_consistent", "cache", "chunks", "ragged"},
    ),
    "counts from zero in every call": (
        """
class Restarting(Sinusoidal):
    def embed(self, x, positions):
        return super().embed(x, replace(positions, query=torch.arange(x.shape[1])[None]))
""",
        {"cache", "chunks", "ragged"},
    ),
    "knows a whole prompt and single tokens only": (
        """
class Impatient(Sinusoidal):
    def embed(self, x, positions):
        ids = positions.query if x.shape[1] == 1 else torch.arange(x.shape[1])[None]
        return super().embed(x, replace(positions, query=ids))
""",
        {"cache", "chunks"},
    ),
    "has a parameter that nothing uses": (
        """
class Idle(Encoding):
    def __init__(self, model, layer=0):
        super().__init__(model, layer)
        self.unused = nn.Parameter(torch.ones(3))
""",
        {"gradients", "interface"},
    ),
    "has too long a table declared": (
        TABLE.replace("100", "240").replace("max_position = 240", "max_position = 300"),
        {"bfloat16", "finite", "max_position"},
    ),
    "has a table and no limit declared": (
        TABLE.replace("100", "240").replace("max_position = 240", "max_position = None"),
        {"bfloat16", "finite"},
    ),
    "claims shift invariance and is absolute": (
        """
class Absolute(Sinusoidal):
    shift_invariant = True
""",
        {"shift_invariant"},
    ),
    "rounds its positions": (
        """
class Rounded(RoPE):
    def tables(self, ids, dtype):
        return super().tables(ids.bfloat16().float(), dtype)
""",
        {"shift_invariant", "precision"},
    ),
    "keeps its frequencies in the model's type": (NARROW, {"bfloat16"}),
    "computes its angles in the model's type": (
        NARROW
        + """
    def tables(self, ids, dtype):
        angles = ids[:, None, :, None] * self.own
        return angles.cos(), angles.sin()
""",
        {"bfloat16"},
    ),
    "claims prefix consistency and depends on the length": (
        STRETCHED.replace("prefix_consistent = False", "prefix_consistent = True"),
        {"prefix_consistent", "cache", "chunks", "ragged"},
    ),
    "mixes the states of tokens": (
        """
class Smearing(StatefulEncoding, Sinusoidal):
    shared = False
    prefix_consistent = False

    def prepare(self, x, positions):
        return self.table(positions.query)

    def transform_qk(self, q, k, positions):
        return q * (1 + positions.state.mean()), k

    def update_state(self, state, extra, mlp_in, mlp_out):
        return state.cumsum(-2) / 10
""",
        {"permutation"},
    ),
    "looks at the angles": (
        """
class Uneven(TAPE):
    def transform_qk(self, q, k, positions):
        cos, sin = positions.state.chunk(2, dim=-1)
        return q * cos.repeat(1, 1, 1, 2), k
""",
        {"shift_invariant", "rotation"},
    ),
    "overflows far from the start": (
        """
class Growing(Encoding):
    def embed(self, x, positions):
        return x * (positions.query / 20).exp()[:, :, None]
""",
        {"bfloat16", "finite"},
    ),
    "overflows with distance": (
        """
class Exploding(Encoding):
    def bias(self, positions):
        distances = positions.query[:, None, :, None] - positions.key[:, None, None, :]
        return (distances / 12).exp().expand(-1, self.model.heads, -1, -1)
""",
        {"bfloat16", "finite"},
    ),
    "overflows in long rows": (
        """
class Long(Encoding):
    def embed(self, x, positions):
        return x * (torch.inf if x.shape[1] > 250 else 1)
""",
        {"finite"},
    ),
    "overflows far from its rows": (
        """
class Far(Encoding):
    def embed(self, x, positions):
        return x * torch.where(positions.query > 300, torch.inf, 1.0)[:, :, None]
""",
        {"bfloat16", "finite"},
    ),
    "draws its table without the seed": (
        """
import random

class Unseeded(Encoding):
    def __init__(self, model, layer=0):
        super().__init__(model, layer)
        self.scale = random.random()

    def embed(self, x, positions):
        return x * self.scale
""",
        {"repeatable"},
    ),
    "keeps the length of its first text": (
        """
class Keeps(Encoding):
    def embed(self, x, positions):
        self.longest = getattr(self, "longest", x.shape[1])
        return x * positions.query.clamp(max=self.longest)[:, :, None]
""",
        {"repeatable"},
    ),
    "is random in training": (
        """
import random

class Noisy(Encoding):
    def embed(self, x, positions):
        return x * random.random() if self.training else x
""",
        {"repeatable"},
    ),
    "sees the future in training": (
        """
class Peeks(Encoding):
    def embed(self, x, positions):
        return x + x.mean(1, keepdim=True) if self.training else x
""",
        {"causal"},
    ),
}


HONEST = {
    "table": TABLE,
    "short table": TABLE.replace("100", "model.train_length"),
    "stretched": STRETCHED,
    "forgetting": FORGETTING,
    "sharpening": SHARPENING,
    "log temperature": LOG_TEMPERATURE,
}

EVERYDAY = ("is random", "sees the future")  # others: see ALONE


def findings(spec: str, checks: Iterable[str] = CHECKS) -> dict[str, str]:
    """Return the name of each failed check, and the reason."""
    subject = Subject(plugins.load("encoding", spec).make)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHECKS", {name: CHECKS[name] for name in checks})
        found = examine(subject)
    return {name: finding.reason for name, finding in found.items() if finding.bad}


# Findings of single checks in the broken encodings of the slow tests.
ALONE = [
    ("causal", "pools chunks of 64 tokens", "with 203 tokens, changing later tokens changes"),
    ("prefix_consistent", "pools chunks of 64 tokens", "with 203 tokens, cutting the sequence"),
    ("prefix_consistent", "depends on lengths beyond 64 tokens", "with 203 tokens, cutting"),
    ("cache", "is off by one when it decodes from position 64 on", "with 203 tokens, decoding"),
    ("chunks", "pools chunks of 64 tokens", "with 203 tokens, feeding the prompt in pieces"),
    ("repeatable", "keeps the length of its longest text", "an earlier, longer text changes"),
    (
        "gradients",
        "multiplies two parameters that are zero at first",
        "5 steps of training do not change encodings.0.table, encodings.0.gate",
    ),
    *(
        ("repeatable", f"keeps a bias in {mode}", f"in {named} mode, a result kept on self")
        for mode, named in [
            ("every mode", "evaluation"),
            ("evaluation", "evaluation"),
            ("training", "training"),
        ]
    ),
    (
        "precision",
        "rounds its positions in every type",
        "Bfloat16.transform_qk computes in bfloat16 (",
    ),
    ("precision", "rounds its positions in the constructor", "Constructor.__init__ computes in"),
    ("precision", "rounds its positions in long texts", "Long.embed computes in bfloat16 ("),
    ("precision", "returns a bias in float16", "Float16.distance_bias computes in float16 ("),
    ("rows", "subtracts the mean of the batch", "another row of a batch changes the outputs by"),
    ("rows", "sees other rows in training", "in training, another row of a batch changes"),
    ("cache", "counts from zero in every call", "decoding with a cache"),
    ("chunks", "knows a whole prompt and single tokens only", "feeding the prompt in pieces"),
    ("ragged", "counts from zero in every call", ""),
    ("bfloat16", "keeps its frequencies in the model's type", ""),
    ("bfloat16", "has logits that grow, undeclared", "relative error"),
    ("finite", "overflows in long rows", "not finite at length 256"),
    ("finite", "overflows far from its rows", "not finite at random increasing position ids"),
    ("max_position", "has too long a table declared", ""),
    ("rotation", "looks at the angles", ""),
    ("prefix_consistent", "sees the future", "cutting the sequence changes the outputs by"),
    ("shift_invariant", "rounds its positions", "shifting the positions by 1000 changes the out"),
    ("gradients", "has a parameter that nothing uses", "no gradient reaches encodings.0.unused"),
    ("permutation", "mixes the states of tokens", "the order of the tokens changes a state by"),
    ("bfloat16", "declares logits that grow and loses its frequencies", "relative error"),
    ("finite", "overflows with distance", "not finite at random increasing position ids"),
    ("interface", "has a parameter that nothing uses", "Idle overrides no hook"),
    ("repeatable", "draws its table without the seed", "two models with the same seed"),
    ("repeatable", "keeps the length of its first text", "an earlier, shorter text changes"),
    ("repeatable", "is random in training", "in training, the same seed and input"),
    ("causal", "sees the future in training", "in training, later tokens change the outputs"),
]

pytestmark = pytest.mark.usefixtures("four_layers")


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Write a plugin file with a class and return its path."""

    def write(code: str, name: str = "mine.py") -> str:
        (tmp_path / name).write_text(HEADER + code)
        return str(tmp_path / name)

    return write


@pytest.mark.parametrize("what", some_slow(BROKEN, EVERYDAY))
def test_broken_encodings(what: str, write: Any) -> None:
    code, checks = BROKEN[what]
    found = findings(write(code))
    assert set(found) == checks, found


@pytest.mark.parametrize(("check", "what", "reason"), ALONE)
def test_a_check_alone(check: str, what: str, reason: str, write: Any) -> None:
    code, checks = BROKEN[what]
    assert check in checks
    found = findings(write(code), ("repeatable", check))
    assert set(found) == {check} and found[check].startswith(reason), found


class Unmoved(StatefulEncoding):
    """An encoding with a state that its layers do not change."""


class Unordered(Unmoved):
    permutation_equivariant = False

    def update_state(self, state: Any, *_: Any) -> Any:
        return state


CLAIMS: list[tuple[str, Any, str]] = [
    ("prefix_consistent", STRETCHED, "declares prefix_consistent = False"),
    *((name, STRETCHED, "needs prefix consistency") for name in ("cache", "chunks", "ragged")),
    ("shift_invariant", STRETCHED, "declares shift_invariant = False"),
    ("max_position", STRETCHED, "has no table of positions"),
    ("out_of_sight", STRETCHED, "sees all tokens"),
    ("temperature", STRETCHED, "has no temperature"),
    ("normalise", STRETCHED, "has the softmax"),
    ("permutation", STRETCHED, "passes its state on unchanged"),
    ("permutation", Unmoved, "passes its state on unchanged"),
    ("permutation", Unordered, "declares permutation_equivariant = False"),
    ("rotation", STRETCHED, "does not declare rotation_equivariant = True"),
    ("rotation", Unmoved, "does not declare rotation_equivariant = True"),
    ("kernels", STRETCHED, "needs a GPU: --device cuda"),
]


@pytest.mark.parametrize(("check", "of", "claim"), CLAIMS)
def test_a_property_that_is_not_claimed_is_not_checked(
    check: str, of: Any, claim: str, write: Any
) -> None:
    make = plugins.load("encoding", write(of)).make if isinstance(of, str) else of
    finding = run_check(CHECKS[check], Subject(make))
    assert finding.status == "-" and claim in finding.reason


@pytest.mark.parametrize(("off", "wrong"), [(3e-12, ""), (5e-12, "tiny"), (1.0, "tiny")])
def test_the_tolerance_of_a_gradient(
    off: float, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients are compared to a thousandth of the largest one at least."""

    def results(model: Any, tokens: Tensor, backend: str) -> tuple[Tensor, dict[str, Tensor]]:
        moved = off if backend == "sdpa" else 0.0
        gradients = {"large": torch.tensor([4.0, -1.0]), "tiny": torch.tensor([0.0, moved])}
        return torch.ones(3), {name: value.double() for name, value in gradients.items()}

    monkeypatch.setattr("pe_bench.checks.backends.outputs_and_gradients", results)
    found = CHECKS["backends"](Subject(Encoding))
    assert (found or "").startswith(
        f"backend sdpa changes the gradient of {wrong} by" * bool(wrong)
    )
    assert bool(found) is bool(wrong)


@pytest.mark.parametrize(
    ("actual", "expected", "found"),
    [
        ([1.0, NAN, INF], [1.0, NAN, INF], None),
        ([1.0, NAN], [1.0, 2.0], "it differs: some are finite in one case only"),
        ([1.0, 2.0], [1.0, INF], "it differs: some are finite in one case only"),
        ([1.5, NAN], [1.0, NAN], "it differs by 5.0e-01 of the largest"),
    ],
)
def test_numbers_that_are_not_finite(
    actual: list[float], expected: list[float], found: str | None
) -> None:
    assert difference(torch.tensor(actual), torch.tensor(expected), "it differs") == found


def test_a_gradient_that_a_backend_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    def results(model: Any, tokens: Tensor, backend: str) -> tuple[Tensor, dict[str, Tensor]]:
        return torch.ones(3), {"table": torch.ones(2)} if backend == "eager" else {}

    monkeypatch.setattr("pe_bench.checks.backends.outputs_and_gradients", results)
    assert CHECKS["backends"](Subject(Encoding)) == "backend sdpa gives no gradient to table"


@pytest.mark.slow
@pytest.mark.parametrize("what", HONEST)
def test_honest_encodings(what: str, write: Any) -> None:
    assert findings(write(HONEST[what])) == {}


def test_logits_may_grow_if_this_is_declared(write: Any) -> None:
    every_layer = LOG_TEMPERATURE.replace("= 2", "= 1")
    assert findings(write(every_layer), ("repeatable", "bfloat16")) == {}


@pytest.mark.slow
def test_a_table_is_checked_at_its_end(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write(TABLE.replace("(positions.query)", "(positions.query.clamp(max=99))"))
    checks = ("repeatable", "max_position")
    assert findings(spec, checks) == {}
    monkeypatch.setattr(token_positions, "check_position_ids", lambda *_: None)
    assert findings(spec, checks) == {
        "max_position": "position 100 is accepted although there are 100"
    }


SOME = ("repeatable", "causal", "cache", "ragged", "backends")


@pytest.mark.slow
def test_faults_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sdpa, "_fold", lambda q, k, c, scale: (q, k))
        # The last tokens of a cache use eager attention, so they also differ from a full pass.
        assert set(findings("alibi", SOME)) == {"cache", "ragged", "backends"}
    with monkeypatch.context() as patch:
        patch.setattr(blocked.GradientSums, "add", lambda self, *_: None)
        reason = findings("fox", ["repeatable", "backends"])["backends"]
        assert reason.startswith("backend blocked changes the gradient of embed_tokens.weight by")
    with monkeypatch.context() as patch:
        patch.setattr(Cache, "truncate", lambda self, lengths: None)
        assert set(findings("rope", SOME)) == {"ragged"}


def test_the_first_wrong_layer_is_named(write: Any) -> None:
    reason = findings(write(FOURTH_LEAKS), ("repeatable", "causal"))["causal"]
    assert re.fullmatch(
        r"changing later tokens changes the outputs by .* of the largest, first in layer 3", reason
    )


def test_a_random_encoding_is_not_called_anything_else(write: Any) -> None:
    found = examine(Subject(plugins.load("encoding", write(RANDOM)).make))
    assert next(iter(found)) == "repeatable"
    assert found["repeatable"].reason.startswith("the same input twice gives different outputs")
    assert {finding.status for name, finding in found.items() if name != "repeatable"} == {"-"}


def test_a_crash_names_the_innermost_hook() -> None:
    class Inner(Encoding):
        def embed(self, x: Tensor, positions: Any) -> Tensor:
            raise ValueError("no")

    class Outer(Encoding):
        def embed(self, x: Tensor, positions: Any) -> Tensor:
            return Inner(CONFIG).embed(x, positions)

    finding = run_check(lambda _: str(Outer(CONFIG).embed(torch.ones(1), None)), Subject(Outer))
    assert finding.reason.startswith("Inner.embed: ValueError: no")


@pytest.mark.slow
def test_a_crash_names_hook_file_and_line(write: Any) -> None:
    spec = write(FOURTH_CRASHES)
    line = Path(spec).read_text().partition("raise")[0].count("\n") + 1
    reason = f"FourthCrashes.transform_qk: ValueError: the fourth layer ({spec}:{line})"
    found = findings(spec)
    assert {"causal", "gradients", "finite"} < set(found) and set(found.values()) == {reason}


class TwoParts(StatefulEncoding):
    """A state of two tensors, one of which turns; no output depends on them."""

    rotation_equivariant = True

    def prepare(self, x: Tensor, positions: Positions) -> Any:
        return x[:, None], x[:, None, :, :1]

    def rotate_state(self, state: Any, angles: Tensor) -> Any:
        turning, still = state
        return -turning, still


class Still(TwoParts):
    def rotate_state(self, state: Any, angles: Tensor) -> Any:
        return state


@pytest.mark.usefixtures("four_layers")
def test_one_of_several_parts_of_a_state_has_to_turn() -> None:
    assert rotation(Subject(TwoParts)) is None
    assert rotation(Subject(Still)) == "rotate_state does not change the state"


@pytest.mark.parametrize(
    ("code", "check", "sentence"),
    [
        (
            "class Mine(RoPE):\n    def embed(self, x, positions):\n"
            "        return x * (1 + positions.query[..., None])",
            "shift_invariant",
            "shift_invariant is inherited from RoPE: set shift_invariant = False",
        ),
        (
            "class Mine(TAPE):\n    def rotate_state(self, state, angles):\n"
            "        return state * 2",
            "rotation",
            "rotation_equivariant is inherited from TAPE: override rotate_state, or set",
        ),
        (
            STRETCHED.replace("    prefix_consistent = False\n", ""),
            "prefix_consistent",
            "prefix_consistent is inherited from Encoding: set prefix_consistent = False",
        ),
    ],
)
def test_an_inherited_claim_is_named(write: Any, code: str, check: str, sentence: str) -> None:
    checks = ("repeatable", check)
    assert sentence in findings(write(code), checks)[check]
    fact, _ = FACTS[check]
    stated = re.sub(r"(class .*\n)", rf"\1    {fact} = True\n", code)
    assert "is inherited" not in findings(write(stated, "stated.py"), checks)[check]


@pytest.mark.slow
def test_growing_logits_are_told_how_to_declare_it(write: Any) -> None:
    checks = ("repeatable", "bfloat16")
    reason = findings(write(EVERY_LAYER_GROWS), checks)["bfloat16"]
    assert re.search(r"at most 0\.\d+ is expected; far logits are [23]\.\d times", reason)
    assert reason.endswith("set logits_grow = True")
    reason = findings(write(NARROW, "narrow.py"), checks)["bfloat16"]
    assert "logits" not in reason


class OtherShapes(Encoding):
    """An encoding whose layers have parameters of different shapes, without an effect."""

    shared = False

    def __init__(self, model: ModelConfig, layer: int = 0) -> None:
        super().__init__(model, layer)
        self.table = nn.Parameter(torch.zeros(layer // 2 + 1))

    def transform_qk(self, q: Tensor, k: Tensor, positions: Positions) -> tuple[Tensor, Tensor]:
        return q * (1 + 0 * self.table.sum() if len(self.table) > 1 else self.table.sum()), k


def test_layers_with_the_parameters_of_the_first_layer_are_compared() -> None:
    assert find_unlike_layers(OtherShapes, replace(CONFIG, layers=2)) == []
    assert find_unlike_layers(OtherShapes, replace(CONFIG, layers=4)) == [2, 3]


@pytest.mark.slow
@pytest.mark.parametrize(("every", "first"), [(4, 3), (3, 2), (2, 1), (12, 11)])
def test_layers_that_a_small_model_lacks(write: Any, every: int, first: int) -> None:
    plugin = plugins.load("encoding", f"{write(LOG_TEMPERATURE)}:every={every}")
    for layers in {1, first, first + 1, 13}:
        note = Depths().describe_missing_layers(plugin, replace(CONFIG, layers=layers))
        assert (note is not None) == (layers <= first)
        if note:
            assert f"this model has {layers}" in note and f"--model.layers to {first + 1}" in note


@pytest.mark.parametrize(("every", "layers"), [(4, 3), (2, None)])
def test_a_run_says_which_layers_its_model_lacks(
    write: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    every: int,
    layers: int | None,
) -> None:
    spec = f"{write(LOG_TEMPERATURE)}:every={every}"
    options = RunOptions(cache=tmp_path)
    plan = make_plan(
        GridSpec(options=options, encodings=[spec, "rope"], tasks=["probes"], results=tmp_path)
    )
    start = f"mine.py:every={every} on probes: layers 3, 7, 11 and 15 of 16 differ from layer 0"
    assert [note.startswith(start) for note in plan.notes] == ([True] if layers else [])
    assert all(note in capsys.readouterr().err for note in plan.notes)


@pytest.mark.parametrize("name", some_slow(catalogue.names("encoding"), [*KINDS, "repo"]))
def test_shipped_encodings_need_no_deep_model(name: str) -> None:
    plugin = plugins.load("encoding", name)
    assert Depths().describe_missing_layers(plugin, replace(CONFIG, layers=2)) is None
    unlike = [1, 2, 3] if name == "repo" else []  # a fraction of the layers, the lowest, has RoPE
    assert find_unlike_layers(plugin.make, replace(CONFIG, layers=4)) == unlike


SCALED = """
class Scaled(Encoding):
    variants = ("size=3",)

    def __init__(self, model, layer=0, *, size: int = 1):
        super().__init__(model, layer)
        self.size = size

    def embed(self, x, positions):
        return x * 2 if self.size == 1 else x + x.mean(1, keepdim=True)
"""


@pytest.mark.slow
def test_variants_of_the_users_encoding_are_checked(
    write: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", write(SCALED)]) == 1
    out = capsys.readouterr().out
    assert "mine.py " in out and "mine.py:size=3 " in out and "mine.py:size=3: causal" in out
    inherits = "from pe_bench.encodings.alibi import ALiBi\n\nclass Mine(ALiBi):\n"
    inherits += "    def __init__(self, model, layer=0):\n        super().__init__(model, layer)"
    assert main(["check", write(inherits, "inherits.py")]) == 0
    assert main(["check", write(SCALED.replace('"size=3"', '"siz=3"'), "wrong.py")]) == 2
    assert "wrong.py has no option 'siz'" in capsys.readouterr().err


def test_what_cannot_be_checked(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="there is no encoding 'nopee'"):
        check_encodings(["nope", "nopee"])
    with pytest.raises(InputError, match="greater than 1"):
        check_encodings(["nope", "rope:base=1"])
    broken = write("class Mine(Encoding):\n    def __init__(self, *_):\n        1 / 0")
    with pytest.raises(InputError, match=r"mine.py cannot be built: Mine.__init__: ZeroDivision"):
        check_encodings(["nope", broken])
    assert not capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["rope", "alibi", "tape", "sandwich"])
def test_kernels_in_the_precisions_of_runs(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, the fused kernel supports encodings without a bias that needs a gradient."""
    subject = Subject(plugins.load("encoding", spec).make)
    model = subject.model(torch.float32, layers=2)
    tokens = subject.tokens(64)
    assert compare_kernels(model, tokens, ["sdpa", "blocked"], [63, 64]) is None
    if spec == "sandwich":  # a bias of pairs is refused in bfloat16
        return
    exact = F.scaled_dot_product_attention

    def coarse(q: Tensor, *args: Any, **more: Any) -> Tensor:
        return exact(q + 0.01 * torch.randn_like(q), *args, **more)

    monkeypatch.setattr(F, "scaled_dot_product_attention", coarse)
    monkeypatch.setattr(short, "LONGEST", 0)  # short rows in training use other products
    wrong = compare_kernels(model, tokens, ["blocked", "sdpa"], [64])
    assert wrong is not None and re.fullmatch(
        r"sdpa, float32, 64 tokens: outputs .*e-0[0-3] off", wrong
    )


@pytest.mark.parametrize(
    ("kind", "of_formula", "off", "wrong"),
    [
        ("float32", 0.0, 0.9e-4, ""),
        ("float32", 0.0, 1.1e-4, "blocked, float32, 8 tokens: gradients 1.1e-04 off"),
        ("float32", 1e-3, 1.9e-3, ""),
        ("float32", 1e-3, 2.1e-3, "blocked, float32, 8 tokens: gradients 2.1e-03 off"),
        ("bfloat16", 0.0, 1.9e-2, ""),
        ("bfloat16", 0.0, 2.1e-2, "blocked, bfloat16, 8 tokens: gradients 2.1e-02 off"),
        ("bfloat16", 0.0, float("nan"), "blocked, bfloat16, 8 tokens: gradients nan off"),
    ],
)
def test_the_bounds_of_kernels(
    kind: str, of_formula: float, off: float, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors are relative; a large error of the formula itself allows twice as much."""

    def results(model: Any, tokens: Tensor, backend: str, dtype: torch.dtype) -> dict[str, Tensor]:
        truth = torch.tensor([30.0, -40.0]).double()
        narrow = dtype == getattr(torch, kind)
        error = (off if backend != "eager" else of_formula) if narrow else 0.0
        return {"outputs": truth, "gradients": truth * (1 + error)}

    monkeypatch.setattr(checked_kernels, "_results", results)
    subject = Subject(Encoding)
    model = subject.model(torch.float32, layers=1)
    assert (compare_kernels(model, subject.tokens(8), ["blocked"], [8, 99]) or "") == wrong


def test_results_of_a_kernel() -> None:
    subject = Subject(plugins.load("encoding", "t5").make)
    model = subject.model(torch.float32, layers=2)
    tokens = subject.tokens(8)
    found = checked_kernels._results(model, tokens, "eager", torch.float32)
    again = checked_kernels._results(model, tokens, "eager", torch.float32)
    of_encoding = sum(p.numel() for p in model.encodings.parameters())
    unused = model.lm_head.weight.numel()
    assert {name: (values.dtype, values.numel()) for name, values in found.items()} == {
        "outputs": (torch.float64, tokens.numel() * CONFIG.width),
        "gradients": (
            torch.float64,
            sum(p.numel() for p in model.parameters()) - of_encoding - unused,
        ),
        "gradients of the encoding": (torch.float64, of_encoding),
    }
    assert all(values.any() and torch.equal(values, again[name]) for name, values in found.items())
    narrow = checked_kernels._results(model, tokens, "eager", torch.bfloat16)
    error = checked_kernels._error(narrow["outputs"], found["outputs"])
    assert 1e-4 < error < 0.05


def test_a_fall_back_to_the_slow_kernel_is_an_error() -> None:
    subject = Subject(plugins.load("encoding", "t5").make)  # on a CPU, a bias has no gradient
    with pytest.raises(RuntimeError, match="No available kernel"):
        compare_kernels(subject.model(torch.float32, layers=2), subject.tokens(8), ["sdpa"], [8])


def test_kernels_are_checked_on_a_gpu_alone() -> None:
    with pytest.raises(NotApplicable):
        CHECKS["kernels"](Subject(plugins.load("encoding", "nope").make))
