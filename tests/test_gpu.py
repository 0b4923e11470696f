"""Requirements of a GPU, as far as a CPU can check them."""

import functools
import itertools
import json
import os
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import CODED, KINDS, some_slow, train_model, weights
from scripts import load_script
from torch import Tensor
from torch._dynamo import config
from torch._dynamo.utils import counters
from torch._inductor.exc import InductorError
from torch.nn.attention import flex_attention as torch_flex

import pe_bench
from pe_bench.commands.device import find_device, find_precision
from pe_bench.config import IGNORE, ModelConfig, TrainConfig
from pe_bench.decoder import flex, logits
from pe_bench.decoder.attention import attend
from pe_bench.decoder.cache import COLUMNS, Cache
from pe_bench.decoder.generation import CHECK_END_EVERY
from pe_bench.decoder.logits import LogitTerms
from pe_bench.decoder.losses import scored_tokens
from pe_bench.decoder.model import Decoder
from pe_bench.encoding import StatefulEncoding
from pe_bench.errors import InputError
from pe_bench.layers import Layers
from pe_bench.random_ids import random_ids
from pe_bench.registry import catalogue, plugins
from pe_bench.runs import memory
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import resolve
from pe_bench.system import environment
from pe_bench.task import Batch
from pe_bench.train.training_result import TrainingResult

NAMES = catalogue.names("encoding")


def make_model(spec: str, length: int = 32, layers: int = 2) -> Decoder:
    config = ModelConfig(
        layers=layers,
        heads=2,
        width=16,
        mlp_width=24,
        vocab_size=12,
        train_length=length,
        digit_ids=(1,),
        separator_ids=(2,),
    )
    torch.manual_seed(0)
    return Decoder(config, plugins.load("encoding", spec).make)


def test_tests_leave_gpus_alone() -> None:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert not torch.cuda.is_available()


@pytest.fixture
def without_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable autocast, which the meta device does not support."""
    monkeypatch.setattr(logits, "scaled_product", lambda q, k, divisor: (q / divisor) @ k.mT)


@pytest.mark.slow
@pytest.mark.usefixtures("without_autocast")
@pytest.mark.parametrize(
    ("name", "length"), [*((name, 512) for name in NAMES), *((kind, 32) for kind in KINDS)]
)
def test_a_training_step_never_waits_for_the_device(name: str, length: int) -> None:
    model = make_model(name, length).to("meta").train()  # numbers there cannot be read
    tokens = torch.zeros(2, length, dtype=torch.long, device="meta")
    targets = torch.full((2, length), IGNORE)  # on the CPU, as in training
    targets[:, ::3] = 1
    model.token_losses(tokens, targets, scored=scored_tokens(targets)).sum().backward()


@pytest.mark.usefixtures("without_autocast")
@pytest.mark.parametrize("name", some_slow(CODED))
@torch.no_grad()
def test_decoding_a_token_never_waits_for_the_device(name: str) -> None:
    model = make_model(name).to("meta").eval()
    tokens = torch.zeros(2, 8, dtype=torch.long, device="meta")
    cache = Cache(2, 16, "meta")
    model.hidden(tokens, cache)
    model.hidden(tokens[:, :1], cache)
    assert cache.longest == 9


UNTRACED = {"fox", "cable", "randpe"}  # autograd.Function of blocks, draws on the CPU


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CODED if name not in UNTRACED])
def test_hooks_do_not_break_a_compiled_graph_under_autocast(name: str) -> None:
    """One layer calls all hooks, except where layers differ or pass on a state."""
    encoding = plugins.load("encoding", name).cls
    several = name == "repo" or issubclass(encoding, (StatefulEncoding, Layers))
    model = make_model(name, layers=2 if several else 1).train()
    tokens = torch.arange(24).view(2, 12) % 12

    def whole(tokens: Tensor) -> Tensor:
        return model.token_losses(tokens, tokens)

    compiled: Any = torch.compile(whole, backend="eager", fullgraph=True)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        torch.manual_seed(0)
        expected = whole(tokens)
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(tokens), expected, rtol=1e-2, atol=1e-2)


@pytest.fixture(autouse=True)
def forget_graphs() -> Iterator[None]:
    """Clear compiled graphs, because each model has another one and torch keeps only a few."""
    yield
    torch.compiler.reset()


def test_random_ids_are_put_in_order_on_the_device() -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([3, 5])
    assert random_ids(2, 3, 8, generator, "meta").is_meta
    assert random_ids(2, lengths, 8, generator, "meta").is_meta


@pytest.mark.parametrize("name", ["fox", "selective-rope"])
def test_scans_run_along_the_last_axis(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    axes: list[int] = []
    original = Tensor.cumsum

    def cumsum(self: Tensor, dim: int) -> Tensor:
        axes.append(dim % self.dim() - self.dim())
        return original(self, dim)

    monkeypatch.setattr(Tensor, "cumsum", cumsum)
    make_model(name)(torch.zeros(1, 8, dtype=torch.long))
    assert axes == [-1, -1]  # one a layer


class Scarce:
    """Memory for a limited number of rows; a larger forward pass fails in the middle."""

    def __init__(self, model: Decoder, rows: int, *, after: int = 0) -> None:
        self.rows = rows
        self.after = after  # forward passes without a limit
        self.seen: list[int] = []
        model.layers[1].register_forward_pre_hook(self.forward)

    def forward(self, module: torch.nn.Module, args: tuple[Tensor, ...]) -> None:
        self.seen.append(len(args[0]))
        if len(args[0]) > self.rows and len(self.seen) > self.after:
            raise torch.OutOfMemoryError("CUDA out of memory")


def batch(step: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(12, (8, 16), generator=generator)
    return Batch(tokens, tokens.roll(-1, 1))


def three_steps(model: Decoder, folder: Path, micro_batch: int | None = None) -> TrainingResult:
    config = TrainConfig(steps=3, batch_size=8, length=16, lr=1e-2, micro_batch=micro_batch)
    return train_model(model, batch, config, folder)


@pytest.mark.slow
def test_training_without_memory_goes_on_with_smaller_slices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plenty = make_model("tape").double()
    assert three_steps(plenty, tmp_path / "plenty").micro_batch is None
    model = make_model("tape").double()
    scarce = Scarce(model, 3)
    assert three_steps(model, tmp_path / "scarce").micro_batch == 2
    torch.testing.assert_close(weights(model), weights(plenty), rtol=1e-6, atol=1e-9)
    assert scarce.seen == [8, 4] + [2] * 12
    assert "memory does not suffice for 4 rows: continuing with 2 rows" in capsys.readouterr().err


@pytest.mark.slow
def test_gradients_of_a_step_that_ran_out_of_memory_do_not_count(tmp_path: Path) -> None:
    plenty = make_model("tape").double()
    three_steps(plenty, tmp_path / "plenty")
    model = make_model("tape").double()
    scarce = Scarce(model, 3, after=3)
    three_steps(model, tmp_path / "scarce", micro_batch=4)
    torch.testing.assert_close(weights(model), weights(plenty), rtol=1e-6, atol=1e-9)
    assert scarce.seen == [4, 4, 4, 4] + [2] * 8  # failure in the second half of a batch


def test_training_without_memory_for_one_row_fails(tmp_path: Path) -> None:
    model = make_model("nope")
    Scarce(model, 0)
    with pytest.raises(torch.OutOfMemoryError):
        three_steps(model, tmp_path)


@torch.no_grad()
def test_evaluation_without_memory_takes_fewer_rows_at_a_time() -> None:
    model = make_model("randpe").eval()  # has a length for each row
    tokens = torch.arange(70).view(7, 10) % 12
    lengths = torch.tensor([10, 40, 33, 50, 10, 36, 45])
    expected = model(tokens, final_lengths=lengths)
    scarce = Scarce(model, 2)
    torch.testing.assert_close(model(tokens, final_lengths=lengths), expected)
    assert scarce.seen == [7, 3, 1, 2, 4, 2, 2]
    scarce.rows = 0
    with pytest.raises(torch.OutOfMemoryError):
        model(tokens)


def test_answers_are_the_same_where_memory_is_scarce() -> None:
    model = make_model("rope").eval()
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8], [9, 10]]
    expected = model.generate(prompts, max_new_tokens=6)
    scarce = Scarce(model, 2)
    assert model.generate(prompts, max_new_tokens=6) == expected
    assert set(scarce.seen[1:]) == {2}


@pytest.mark.parametrize("name", some_slow(CODED))
@torch.no_grad()
def test_columns_behind_the_queries_change_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(name).eval()
    if not model.encoding.prefix_consistent:
        pytest.skip("has no cache")
    prompts = [[1, 2, 3, 10, 5], [4], [5, 6, 7, 8]]
    expected = model.generate(prompts, max_new_tokens=20)
    shapes: list[int] = []
    append = Cache.append

    def noted(self: Cache, what: Hashable, new: Tensor) -> Tensor:
        so_far = append(self, what, new)
        shapes.append(so_far.shape[2])
        return so_far

    monkeypatch.setattr(Cache, "append", noted)
    monkeypatch.setitem(COLUMNS, "cpu", 16)
    assert model.generate(prompts, max_new_tokens=20) == expected
    assert {*shapes} == {5, 16, 25}  # the prompts, a multiple, all there is


def test_ends_are_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model("rope").eval()
    prompts = [[1, 2, 3], [4]]
    free = model.generate(prompts, max_new_tokens=30)
    end = next(token for token in free[0] if token in free[1])
    expected = model.generate(prompts, max_new_tokens=30, end=end)
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    monkeypatch.setitem(CHECK_END_EVERY, "cpu", 7)
    assert model.generate(prompts, max_new_tokens=30, end=end) == expected
    assert len(calls) % 7 == 6 or len(calls) == 29


def test_a_gpu_is_set_up_and_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "H100")
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    before = environment.describe("cuda")
    assert before["tf32"] == ["matmul", "convolution"]
    assert before["sdpa"] == ["flash", "mem_efficient", "cudnn", "math"]
    environment.set_up("cpu")
    assert environment.describe("cuda") == before
    environment.set_up("cuda")
    after = environment.describe("cuda")
    assert (after["tf32"], after["sdpa"]) == ([], ["flash", "mem_efficient", "math"])
    assert environment.describe("cpu")["sdpa"] is None


def test_large_presets_are_bf16_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_precision("auto", "cuda", "small") == "fp32"  # one without
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    cases = {
        ("auto", "cuda", "small"): "bf16",
        ("auto", "cuda", "quick"): "fp32",
        ("auto", "cpu", "small"): "fp32",
        ("fp32", "cuda", "paper"): "fp32",
        ("bf16", "cpu", "quick"): "bf16",
    }
    assert {case: find_precision(*case) for case in cases} == cases


def test_a_large_preset_does_not_fall_on_the_cpu_beside_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "ask_driver", lambda field: f"the {field}")
    assert find_device("auto", "small") == "cpu"  # CUDA_VISIBLE_DEVICES= hides the GPU
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert find_device("auto", "quick") == find_device("cpu", "small") == "cpu"
    with pytest.raises(InputError, match=r"cannot use the the name here.*write --device cpu"):
        find_device("auto", "small")
    monkeypatch.setattr(environment, "ask_driver", lambda field: None)
    assert find_device("auto", "small") == "cpu"


def test_a_gpu_that_is_there_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert find_device("auto", "small") == "cuda"
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_a_record_describes_the_gpu_only_if_the_run_used_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "ask_driver", lambda field: f"the {field}")
    monkeypatch.setattr(environment, "_cpu_field", lambda field: f"the {field}")
    monkeypatch.setattr(environment, "name_of", lambda device: device)
    fields = ("driver", "cudnn", "tf32", "sdpa")
    found = environment.describe("cpu")
    assert [found[name] for name in fields] == [None] * 4 and found["clock"] == "the cpu MHz"
    found = environment.describe("cuda")
    assert found["driver"] == "the driver_version" and found["clock"] == "the clocks.sm"
    assert found["tf32"] is not None and found["sdpa"] is not None


@pytest.fixture
def gpu_first() -> Any:
    """Return the script benchmarks/gpu_first.py."""
    return load_script("benchmarks/gpu_first.py")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # about training without workers, and flex attention
def test_the_first_minutes_on_a_gpu(
    gpu_first: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(bench: Any) -> Iterator[Any]:
        yield gpu_first.Row("one", "1", "2", False)
        raise RuntimeError("illegal memory access")

    monkeypatch.setitem(gpu_first.PARTS, "compiled", (crash, 1))
    assert sum(seconds for _, seconds in gpu_first.PARTS.values()) < 23 * 60
    parts = [part for part in gpu_first.PARTS if part != "checks"]  # checks have separate tests
    gpu_first.main(["--device", "cpu", "--tiny", "--out", str(tmp_path), "--only", *parts])
    content = json.loads((tmp_path / "gpu.json").read_text())
    assert list(content) == parts
    wrong = [
        (part, row["what"], row["found"])
        for part in content
        for row in content[part]["rows"]
        if row["holds"] is False
    ]
    assert wrong == [
        ("compiled", "one", "2"),
        ("compiled", "compiled", "RuntimeError: illegal memory access"),
    ]
    assert "| compiled" in (tmp_path / "gpu.md").read_text()
    assert gpu_first.Bench("cpu", tiny=False).config().train_length == 1024
    with pytest.raises(SystemExit, match="there is no CUDA device here"):
        gpu_first.main(["--out", str(tmp_path)])


@pytest.mark.slow
def test_parts_run_apart_within_their_time(
    gpu_first: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(pe_bench.__file__).parents[1]))
    bench = gpu_first.Bench("cpu", tiny=True)
    monkeypatch.setitem(gpu_first.PARTS, "kernels", (gpu_first.kernels, 200))
    rows = list(gpu_first.run_apart("kernels", bench, tmp_path))
    assert len(rows) == 9 and rows[0].found == "flash"
    monkeypatch.setitem(gpu_first.PARTS, "kernels", (gpu_first.kernels, 0.1))
    (late,) = gpu_first.run_apart("kernels", bench, tmp_path)
    assert (late.expected, late.found) == ("within 0.1 s", "stopped, see kernels.log")
    assert not late.holds


@pytest.fixture
def fresh_limit() -> Iterator[None]:
    """Reset torch's number of compiled graphs to its default, before and after the test."""
    with config.patch(recompile_limit=8):
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_limit")
def test_flex_attention_stays_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_ = functools.partial(torch.compile, backend="eager")
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *_: None)
    monkeypatch.setattr(torch, "compile", compile_)
    flex._compiled.cache_clear()
    compiled = flex._compiled()
    flex._compiled.cache_clear()
    monkeypatch.setattr(flex, "_uncompiled", lambda: compiled)
    counters.clear()
    for length, width in itertools.product((130, 150, 170), (16, 32)):
        table = torch.randn(2, length)
        c = torch.randn(2, 2, length)
        for terms in (LogitTerms(), LogitTerms(by_distance=table), LogitTerms(separable=c)):
            q = torch.randn(2, 2, length, 16)
            v = torch.randn(2, 2, length, width)
            found = flex.flex_attention(q, q, v, terms)
            torch.testing.assert_close(found, attend(q, q, v, terms, backend="eager"))
    assert counters["stats"]["unique_graphs"] > 8
    assert not counters["unimplemented"]


def test_block_sizes_that_do_not_compile_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def compiled(q: Tensor, *_: Tensor, kernel_options: dict[str, int], **__: Any) -> Tensor:
        """Too large for gradients with the first sizes, and with any for 32 channels."""
        tried.append(flex.KERNEL_OPTIONS.index(kernel_options))
        too_large = q.requires_grad and not kernel_options
        if too_large or q.shape[-1] == 32:
            raise InductorError(ValueError("out of shared memory"), None)
        return q

    monkeypatch.setattr(flex, "_options", {})
    monkeypatch.setattr(flex, "_compiled", lambda: compiled)
    for gradients, expected in ((True, [0, 1]), (False, [0]), (True, [1]), (False, [0])):
        tried.clear()
        q = torch.zeros(1, 1, 4, 16, requires_grad=gradients)
        key = flex._signature(q, q, LogitTerms())
        assert flex._compile_first(key)(q, q, q) is q
        assert tried == expected and flex.compiles(q, q, LogitTerms())
    with torch.no_grad():
        assert flex._signature(q.clone().requires_grad_(), q, LogitTerms()) == key
    wide = torch.zeros(1, 1, 4, 32)
    with pytest.raises(flex.CompilationError, match="out of shared memory"):
        flex._compile_first(flex._signature(wide, wide, LogitTerms()))(wide, wide, wide)
    assert not flex.compiles(wide, wide, LogitTerms())


def test_a_batch_that_a_gpu_can_take_in_slices_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = RunOptions(preset="small", train={"batch_size": 512})
    task = resolve(options, "flipflop")
    monkeypatch.setattr(memory, "memory_of", lambda device: 2 * 2**30)
    memory.check_task_fits(task, "cuda", "bf16")
    with pytest.raises(InputError, match="a batch of 512 sequences"):
        memory.check_task_fits(task, "cpu", "bf16")


def test_a_model_that_several_gpus_can_share_out_is_not_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = resolve(RunOptions(preset="small"), "flipflop")
    needed = memory.BYTES_PER_PARAMETER * memory.decoder_parameters(task.model)
    monkeypatch.setattr(memory, "memory_of", lambda device: 0.9 * needed)
    monkeypatch.setattr(memory, "batch_bytes", lambda *args: 0)
    memory.check_task_fits(task, "cuda", "fp32", shards=2)
    with pytest.raises(InputError, match="for weights, gradients and optimizer"):
        memory.check_task_fits(task, "cuda", "fp32")
    monkeypatch.setattr(memory, "memory_of", lambda device: 0.2 * needed)  # in evaluation
    with pytest.raises(InputError, match="for weights, gradients and optimizer"):
        memory.check_task_fits(task, "cuda", "fp32", shards=8)
