"""A run refuses a user's encoding with a fault that makes its results wrong."""

from pathlib import Path

import pytest
import torch
from helpers import some_slow
from test_runner import Toy, record
from test_runner import toy as toy  # a fixture

from pe_bench.checks.before_run import find_fault
from pe_bench.checks.subject import CONFIG
from pe_bench.cli import main
from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError
from pe_bench.pretrained.saving import save_checkpoint
from pe_bench.registry import plugins

LEAK = "changing later tokens changes the outputs"
HEAD = """
import torch
from pe_bench.api import Encoding

class Mine(Encoding):
    def transform_qk(self, q, k, positions):
        return q, {keys}
"""

NOT_FINITE = """
from pe_bench.api import Encoding

class Mine(Encoding):
    def distance_bias(self, distances):
        return ({bias})[None].expand(self.model.heads, -1)
"""

KEPT = """
import torch
from torch import nn
from pe_bench.api import Encoding

class Mine(Encoding):
    def __init__(self, model, layer=0):
        super().__init__(model, layer)
        self.slope = nn.Parameter(torch.ones(model.heads))
        self.kept = {}

    def distance_bias(self, distances):
        if not self.training:
            return -self.slope[:, None] * distances
        if len(distances) not in self.kept:
            self.kept[len(distances)] = -self.slope[:, None] * distances
        return self.kept[len(distances)]
"""


def write(folder: Path, keys: str) -> str:
    file = folder / "mine.py"
    file.write_text(HEAD.format(keys=keys))
    return str(file)


@pytest.mark.parametrize("spec", ["{}", "hybrid:local={}", "hybrid:global={}"])
def test_a_leak_is_found_wherever_the_encoding_acts(spec: str, tmp_path: Path) -> None:
    file = write(tmp_path, "k + k.flip(2)")
    found = find_fault(plugins.load("encoding", spec.format(file)))
    assert found is not None and LEAK in found


def test_rows_of_a_batch_that_see_each_other_are_found(tmp_path: Path) -> None:
    found = find_fault(plugins.load("encoding", write(tmp_path, "k + k.flip(0)")))
    assert found is not None and "another row of a batch changes the outputs" in found


FROM_64_ON = {
    "k + k.flip(2) * (k.shape[2] >= 64)": "with 203 tokens, " + LEAK,
    "k * max(64, k.shape[2])": "with 203 tokens, cutting the sequence changes the outputs",
    "torch.cat([k[:, :, :64], (k + k.flip(0))[:, :, 64:]], 2)": "with 203 tokens, another row",
    "k * vars(self).setdefault('longest', k.shape[2] > 64)": "an earlier, longer text changes",
}


@pytest.mark.parametrize("keys", some_slow(FROM_64_ON, [*FROM_64_ON][:1]))
def test_faults_that_begin_at_64_tokens(keys: str, tmp_path: Path) -> None:
    plugin = plugins.load("encoding", write(tmp_path, keys))
    found = find_fault(plugin)
    assert found is not None
    assert found.startswith(f"its results would be wrong: {FROM_64_ON[keys]}")
    assert find_fault(plugin, longest=48) is None  # the run has no such texts


@pytest.mark.slow
def test_at_most_515_tokens_are_tested(tmp_path: Path) -> None:
    for begin, found in ((515, True), (516, False)):
        keys = f"k + k.flip(2) * (k.shape[2] >= {begin})"
        plugin = plugins.load("encoding", write(tmp_path, keys))
        assert bool(find_fault(plugin, longest=8192)) is found


def test_a_leak_is_found_if_long_texts_are_refused(tmp_path: Path) -> None:
    keys = "k + k.flip(2) * torch.ones(100)[k.shape[2] - 1]"
    found = find_fault(plugins.load("encoding", write(tmp_path, keys)))
    assert found is not None and LEAK in found


CACHED = {
    "k + torch.arange(k.shape[2])[:, None]": "decoding with a cache changes the outputs",
    "k + k.cumsum(2)": "decoding with a cache changes the outputs",
    "k + positions.key[:, None, :, None]": "Mine.transform_qk returned k (2, 4, 31, 16), expected",
}


@pytest.mark.parametrize("keys", CACHED)
def test_a_wrong_cache_is_found(keys: str, tmp_path: Path) -> None:
    plugin = plugins.load("encoding", write(tmp_path, keys))
    found = find_fault(plugin, longest=40)
    assert found is not None
    assert found.startswith(f"its KV cache would be wrong: {CACHED[keys]}")
    assert "whose ids are positions.query" in found


def test_prompts_of_unequal_length_are_tested(tmp_path: Path) -> None:
    keys = "k * (1 + positions.query[:1, None, :, None])"  # the ids of the first row
    found = find_fault(plugins.load("encoding", write(tmp_path, keys)), longest=40)
    assert found is not None and "continues differently among longer ones" in found


@pytest.mark.parametrize(
    ("bias", "value"),
    [
        ("distances.float().log()", "-inf"),
        ("(distances - 2.0).sqrt()", "nan"),
        ("1 / distances", "inf"),
        ("(distances < 4).float().log() + (distances - 2.0).relu() / 0.0", "nan"),
    ],
)
def test_a_hook_whose_result_is_not_finite_is_named(bias: str, value: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(NOT_FINITE.format(bias=bias))
    found = find_fault(plugins.load("encoding", str(file)), longest=40)
    assert found == (
        "the outputs of the model are not finite, because Mine.distance_bias returns " + value
    )


def test_results_show_if_only_outputs_of_longer_texts_are_not_finite(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(NOT_FINITE.format(bias="(20.0 - distances).sqrt()"))
    for longest in (40, 256):
        assert find_fault(plugins.load("encoding", str(file)), longest) is None


def test_infinity_that_hides_a_key_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(NOT_FINITE.format(bias="(distances < 4).float().log()"))
    assert find_fault(plugins.load("encoding", str(file)), longest=40) is None


def test_a_result_from_before_a_training_step_is_found(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(KEPT)
    found = find_fault(plugins.load("encoding", str(file)))
    assert found is not None and "in training mode, a result kept on self from before" in found


STATE = """
import torch
from torch import nn
from pe_bench.api import Encoding

class Mine(Encoding):
    def __init__(self, model, layer=0):
        super().__init__(model, layer)
        if {refused}:
            raise ValueError("this training length does not fit")
        self.slope = nn.Parameter(torch.ones(model.heads))
        self.register_buffer("mean", torch.zeros(()))
        self.generator = torch.Generator().manual_seed(0)
        self.kept, self.seen, self.calls = {{}}, 1, 0

    def train(self, mode=True):
        self.kept = {{}}
        return super().train(mode)

    def embed(self, x, positions):
        ids = positions.query[..., None]
        self.calls += 1
        {change}
        return x + ids.cos()

    def separable_bias(self, positions):
        key = positions.key.shape[1], torch.is_grad_enabled()
        if {keeps} and key in self.kept:
            return self.kept[key]
        self.kept[key] = -self.slope.float()[:, None] * positions.key[:, None].float()
        return self.kept[key]
"""
NOISE = "x = x + torch.rand(1, generator=self.generator) if self.training else x"
MEAN = "self.mean += 0.1 * float(x.mean()) if self.training else 0"
FAULTS_OF_STATES = {
    "ids = ids + self.calls": "an earlier text changes the outputs",
    "ids = ids + self.seen; self.seen += x.shape[1]": "an earlier text changes the outputs",
    "self.seen = self.seen + self.training; ids = ids * self.seen": "an earlier text in training",
    f"{NOISE}; x = x + x.mean(1, keepdim=True)": LEAK,
    f"{MEAN}; x = x + self.mean; x = x + x.mean(1, keepdim=True)": LEAK,
    "x = x + x.flip(0) if self.training and x.shape[1] > 40 else x": "with 48 tokens, in training, "
    "another row",
}
HONEST_STATES = (NOISE, f"x = x - self.mean; {MEAN}")


def state_file(folder: Path, change: str, keeps: str = "False", refused: str = "False") -> str:
    file = folder / "mine.py"
    file.write_text(STATE.format(change=change, keeps=keeps, refused=refused))
    return str(file)


@pytest.mark.usefixtures("four_layers")
@pytest.mark.parametrize("change", FAULTS_OF_STATES)
def test_faults_of_an_encoding_with_a_state(change: str, tmp_path: Path) -> None:
    found = find_fault(plugins.load("encoding", state_file(tmp_path, change)), 48)
    assert found is not None
    assert found.startswith(f"its results would be wrong: {FAULTS_OF_STATES[change]}")


@pytest.mark.usefixtures("four_layers")
@pytest.mark.parametrize("change", HONEST_STATES)
def test_states_that_change_no_result(change: str, tmp_path: Path) -> None:
    """Noise in training has no effect on evaluation, and a buffer is saved."""
    assert find_fault(plugins.load("encoding", state_file(tmp_path, change)), 48) is None


@pytest.mark.usefixtures("four_layers")
@pytest.mark.parametrize(("keeps", "wrong"), [("not self.training", False), ("True", True)])
def test_a_result_that_is_dropped_at_a_change_of_the_mode(
    keeps: str, wrong: bool, tmp_path: Path
) -> None:
    found = find_fault(plugins.load("encoding", state_file(tmp_path, "pass", keeps)), 48)
    assert (found is not None and "in training mode, a result kept" in found) is wrong


@pytest.mark.usefixtures("four_layers")
def test_rows_are_compared_if_a_long_training_length_is_refused(tmp_path: Path) -> None:
    change = "x = torch.cat([x[:, :40], (x + x.flip(0))[:, 40:]], 1)"
    file = state_file(tmp_path, change, refused="model.train_length > 40")
    found = find_fault(plugins.load("encoding", file), 48)
    assert found is not None and "with 48 tokens, another row of a batch" in found


def test_the_longest_text_of_a_run_is_tested(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    monkeypatch.setattr(
        "pe_bench.runs.run.find_fault", lambda _, longest, layers: lengths.append(longest)
    )
    toy(encodings=("nope",))
    assert lengths == [16]  # `max_eval_tokens`


@pytest.mark.parametrize(
    "keys",
    [
        "k * (q.float() @ q.float().new_ones(16, 16)).sigmoid()",  # rounds in float32
        "k + k.flip(2) * __import__('random').random()",  # random, so nothing can be compared
        "torch.cat([k[:, :, :100], k[:, :, 100:] * torch.inf], 2)",  # the results show it
        "k + k.flip(2) * torch.ones(7)",  # does not fit the small model
    ],
)
def test_nothing_is_said_without_evidence(keys: str, tmp_path: Path) -> None:
    assert find_fault(plugins.load("encoding", write(tmp_path, keys))) is None


IN_EVALUATION = {
    "k * __import__('random').random()": (None, "the same seed and input give different outputs"),
    "torch.nn.functional.dropout(k, 0.1)": (None, "outputs in evaluation are random, as with a"),
    "k + k.flip(2) * torch.rand(1)": (LEAK, "outputs in evaluation are random"),
    "k * torch.randn(int((q > 0).sum())).sum()": (LEAK, "outputs in evaluation are random"),
}


@pytest.mark.parametrize("keys", IN_EVALUATION)
def test_random_outputs_in_evaluation_are_named(
    keys: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leak, warning = IN_EVALUATION[keys]
    assert find_fault(plugins.load("encoding", write(tmp_path, keys))) is None
    said = capsys.readouterr().err
    assert said.count(f"mine.py: {warning}") == 1
    assert said.count("unless later tokens change the number of random draws") == bool(leak)
    assert leak is None or f"mine.py: {leak}" in said


TWO_LAYERS = """
from pe_bench.api import Encoding

class Mine(Encoding):
    shared = False

    def __init__(self, model, layer=0):
        super().__init__(model, layer)
        self.rate = [0.5, 1.0][layer]

    def transform_qk(self, q, k, positions):
        return q, k + self.rate * k.flip(2)
"""


def test_an_encoding_for_a_few_layers_is_tested_with_these(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(TWO_LAYERS)
    plugin = plugins.load("encoding", str(file))
    found = find_fault(plugin, layers=2)
    assert found is not None and LEAK in found
    assert find_fault(plugin, layers=3) is None  # the run itself reports the crash


@pytest.mark.parametrize("changed", ["positions.key.add_(1)", "k.mul_(2)", "q[:, :, 1:].add_(1)"])
def test_a_hook_that_changes_an_argument_in_place_is_named(changed: str, tmp_path: Path) -> None:
    found = find_fault(plugins.load("encoding", write(tmp_path, f"k + 0 * len({changed})")))
    assert found is not None
    assert found.startswith("Mine.transform_qk changes an argument in place, which others use")


WRONG_SHAPE = """
from pe_bench.api import Encoding

class Flat(Encoding):
    def distance_bias(self, distances):
        return -1.0 * distances
"""


def test_all_encodings_are_tested_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PE_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "k + k.flip(2)")
    (tmp_path / "flat.py").write_text(WRONG_SHAPE)
    given = ["nope", "./mine.py", "./flat.py"]
    assert main(["run", "--encoding", *given, "--task", "mqar", "--no-report"]) == 2
    said = capsys.readouterr().err
    assert f"mine.py: its results would be wrong: {LEAK}" in said
    assert "flat.py: Flat.distance_bias returned (8,), expected (4, 8)" in said
    assert not (tmp_path / "results" / "runs").exists()


def test_an_encoding_with_a_leak_is_not_trained(toy: Toy, tmp_path: Path) -> None:
    write(tmp_path, "k + k.flip(2)")
    assert toy(encodings=("./mine.py", "nope")) == (2, ["batch", "batch", "a", "b"])  # nope alone
    refused = record(tmp_path, "mine.py")[0]
    assert refused["status"] == "failed"
    assert refused["reason"].startswith(f"its results would be wrong: {LEAK}")
    assert record(tmp_path)[0]["status"] == "done"


LATE = """
import torch
from torch import nn
from pe_bench.api import Encoding

class Mine(Encoding):
    def distance_bias(self, distances):
        if not hasattr(self, "size"):
            {create}
        return -self.size * distances[None].expand(self.model.heads, -1)
"""


@pytest.mark.parametrize(
    ("create", "sentence"),
    [
        ("nn.Parameter(torch.ones(1))", "which would not be trained: create parameters in"),
        ("torch.ones(1)", "so checkpoints could not be loaded: create buffers in __init__, or"),
    ],
)
def test_weights_that_a_forward_pass_creates_are_found(
    create: str, sentence: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    if "Parameter" in create:
        file.write_text(LATE.format(create=f"self.size = {create}"))
    else:
        file.write_text(LATE.format(create=f"self.register_buffer('size', {create})"))
    found = find_fault(plugins.load("encoding", str(file)))
    assert found is not None and found.startswith("a forward pass creates size, ")
    assert sentence in found
    file.write_text(file.read_text().replace("torch.ones(1))", "torch.ones(1), persistent=False)"))
    if "Parameter" not in create:
        assert find_fault(plugins.load("encoding", str(file))) is None


RANDOM = """
import torch, random, numpy
from torch import nn
from pe_bench.api import Encoding

class Mine(Encoding):
    shared = {shared}

    def __init__(self, model, layer=0):
        super().__init__(model, layer)
        self.w = torch.ones(2)
        {make}

    def distance_bias(self, distances):
        return -distances[None].expand(self.model.heads, -1).float()
"""
UNSAVED = (
    "self.register_buffer('w', torch.randn(2), persistent=False)",
    "self.w = torch.randn(2)",
    "self.w = float(torch.rand(()))",
    "self.w = random.random()",
    "self.w = numpy.random.randn(2)",
    "self.w = {'of a': [torch.ones(2), torch.randn(2)]}",
    "self.w = 1 if layer == 0 else torch.rand(1)",
)
SAVED = (
    "self.register_buffer('w', torch.randn(2))",
    "self.register_buffer('w', torch.tensor([1.0, torch.nan]), persistent=False)",
    "self.w = nn.Parameter(torch.randn(2))",
    "self.w = torch.rand(2, generator=torch.Generator().manual_seed(0))",
    "self.w = numpy.array(['a', 'b'])",
)


@pytest.mark.parametrize("make", UNSAVED)
def test_random_values_that_are_not_saved_are_found(make: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    make = make.replace("self.register", "del self.w; self.register")
    file.write_text(RANDOM.format(make=make, shared="layer" not in make))
    found = find_fault(plugins.load("encoding", str(file)))
    assert found is not None and found.startswith("w is random and not saved with a model, so")
    spec = f"hybrid:local={file}"
    found = find_fault(plugins.load("encoding", spec))
    assert found is not None and ".w is random" in found
    plugin = plugins.load("encoding", str(file))
    model = Decoder(CONFIG, plugin.make)
    with pytest.raises(InputError, match=r"w is random and not saved with a model"):
        save_checkpoint(model, tmp_path / "saved", str(file))


@pytest.mark.parametrize("make", SAVED)
def test_other_values_are_accepted(make: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(RANDOM.format(make=f"del self.w; {make}", shared=True))
    assert find_fault(plugins.load("encoding", str(file))) is None


LENGTH = """
import torch
from pe_bench.api import Encoding

class Mine(Encoding):
    prefix_consistent = {declared}

    def {hook}(self, {arguments}):
        return {result}
"""


@pytest.mark.parametrize("hook", ["temperature", "bias"])
def test_outputs_that_depend_on_the_number_of_later_tokens(hook: str, tmp_path: Path) -> None:
    size = "positions.key.shape[1]"
    result = f"(positions.query_column + 1.0)[:, None] * {size}"
    if hook == "bias":
        result = f"-positions.distance[:, None] / {size}"
    file = tmp_path / "mine.py"
    for declared in (True, False):
        file.write_text(
            LENGTH.format(declared=declared, hook=hook, arguments="positions", result=result)
        )
        found = find_fault(plugins.load("encoding", str(file)))
        if not declared:
            assert found is None
            continue
        assert found is not None
        assert found.startswith("its results would be wrong: cutting the sequence changes")
        assert "if this is by design, set prefix_consistent = False" in found


SETTINGS = {
    "torch.set_default_dtype(torch.float64)": "default dtype",
    "torch.set_default_device('meta')": "default device",
    "torch.set_grad_enabled(False)": "gradient mode",
}


def settings() -> tuple[object, ...]:
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        torch.overrides._get_current_function_mode_stack(),
    )


@pytest.mark.parametrize("change", SETTINGS)
def test_changed_settings_of_torch_are_refused_and_restored(change: str, tmp_path: Path) -> None:
    before = settings()
    file = tmp_path / "mine.py"
    file.write_text(HEAD.format(keys="k") + f"\n{change}\n")
    for _ in range(2):  # a second time, it is not in the cache of imports
        with pytest.raises(InputError, match=f"mine.py changes the {SETTINGS[change]} of torch"):
            plugins.load("encoding", str(file))
        assert settings() == before
    file.write_text(HEAD.format(keys=f"[k, {change}][0]"))
    found = find_fault(plugins.load("encoding", str(file)))
    assert found is not None
    assert found.startswith(f"the encoding changes the {SETTINGS[change]} of torch")
    assert settings() == before


def test_a_changed_number_of_threads_is_restored(tmp_path: Path) -> None:
    before = settings()
    file = tmp_path / "mine.py"
    change = "\ntorch.set_num_threads(torch.get_num_threads() + 1)\n"
    file.write_text(HEAD.format(keys="k") + change)
    plugins.load("encoding", str(file))
    assert settings() == before


def test_an_error_in_an_import_has_its_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("from pe_bench.api import InputError\n\nraise InputError('bad constant')\n")
    with pytest.raises(InputError, match=r"cannot be imported \(InputError: bad constant, line 3"):
        plugins.load("encoding", str(file))
