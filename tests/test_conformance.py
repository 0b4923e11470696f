"""Every check catches what it is there for, and nothing else."""

from pathlib import Path
from typing import Any

import pytest

from pe_bench.checks.encodings import CHECKS, Subject, examine
from pe_bench.checks.table import check_encodings
from pe_bench.decoder import attention
from pe_bench.decoder.cache import Cache
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.registry import plugins

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

BROKEN = {
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
        {"chunks"},
    ),
    "has a parameter that nothing uses": (
        """
class Idle(Encoding):
    def __init__(self, model, layer=0):
        super().__init__(model, layer)
        self.unused = nn.Parameter(torch.ones(3))
""",
        {"gradients"},
    ),
    "has too long a table declared": (
        TABLE.replace("max_position = 100", "max_position = 200"),
        {"bfloat16", "finite", "max_position"},
    ),
    "has a table and no limit declared": (
        TABLE.replace("max_position = 100", "max_position = None"),
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
        {"shift_invariant"},
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
}


def findings(spec: str) -> dict[str, str]:
    """Name of each check that does not hold, and why."""
    found = examine(Subject(plugins.load("encoding", spec).make))
    return {name: finding.reason for name, finding in found.items() if finding.bad}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Makes a plugin file of a class and returns its path."""

    def write(code: str, name: str = "mine.py") -> str:
        (tmp_path / name).write_text(HEADER + code)
        return str(tmp_path / name)

    return write


@pytest.mark.parametrize("what", BROKEN)
def test_broken_encodings(what: str, write: Any) -> None:
    code, checks = BROKEN[what]
    found = findings(write(code))
    assert set(found) == checks, found


@pytest.mark.parametrize(
    "code",
    [TABLE, TABLE.replace("100", "model.train_length"), STRETCHED, FORGETTING, SHARPENING],
    ids=["table", "short table", "stretched", "forgetting", "sharpening"],
)
def test_honest_encodings(code: str, write: Any) -> None:
    assert findings(write(code)) == {}


def test_a_table_is_checked_at_its_end(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write(TABLE.replace("(positions.query)", "(positions.query.clamp(max=99))"))
    assert findings(spec) == {}
    monkeypatch.setattr(Decoder, "_refuse_past_table", lambda self, positions: None)
    assert findings(spec) == {"max_position": "position 100 is accepted although there are 100"}


def test_faults_of_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(attention, "_fold", lambda q, k, c, scale: (q, k))
        assert set(findings("alibi")) == {"sdpa"}
    with monkeypatch.context() as patch:
        patch.setattr(Cache, "truncate", lambda self, lengths: None)
        assert set(findings("rope")) == {"ragged"}


def test_the_printed_table(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    idle = write(BROKEN["has a parameter that nothing uses"][0], "idle.py")
    table = write(BROKEN["has too long a table declared"][0], "table.py")
    assert not check_encodings(["nope", idle, table])
    lines = capsys.readouterr().out.splitlines()
    head, nope, rows, reasons = lines[0], lines[1], lines[2:4], lines[7:]
    assert head.split() == [*CHECKS, "parameters", "extra", "FLOPs", "extra", "cache"]
    assert nope.split() == ["nope", *["ok"] * (len(CHECKS) - 3), *"---", "0", "+0.00%", "+0.0%"]
    assert [row.split().count("FAIL") for row in rows] == [1, 0]
    assert [row.split().count("ERROR") for row in rows] == [0, 3]
    assert reasons[0] == "idle.py: gradients: no gradient reaches encodings.0.unused"
    for reason, check in zip(reasons[1:], ("bfloat16", "finite", "max_position"), strict=True):
        assert reason.startswith(f"table.py: {check}: IndexError: ")


def test_the_printed_table_of_good_encodings(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_encodings(["nope"])
    assert len(capsys.readouterr().out.splitlines()) == 5
    with pytest.raises(InputError, match="there is no encoding 'nopee'"):
        check_encodings(["nope", "nopee"])
    with pytest.raises(InputError, match="greater than 1"):
        check_encodings(["nope", "rope:base=1"])
    assert not capsys.readouterr().out.count("rope")
