"""Measurements on a GPU, compared with expectations.

    python benchmarks/gpu_first.py --out results/gpu
    python benchmarks/gpu_first.py --only attention training

The expectations were derived from the source of torch 2.13 and from counts on a CPU, for an H100;
times may be off by half. Each part is a separate process with a time limit, so a crash or a
compiler that hangs does not affect the others. Results are written after each part, as `gpu.json`
and `gpu.md`. Parts that were measured earlier on the same device stay in these files; each part
names its commit.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters

from pe_bench.checks.table import check_encodings
from pe_bench.config import ModelConfig, TrainConfig
from pe_bench.decoder.attention import Backend, attend
from pe_bench.decoder.logits import PLAIN, LogitTerms
from pe_bench.decoder.model import Decoder
from pe_bench.registry import catalogue, plugins
from pe_bench.reporting.markdown import markdown_table
from pe_bench.system import environment
from pe_bench.task import Batch
from pe_bench.train.loop import train
from pe_bench.train.training_setup import Training

KERNELS = ("math", "flash", "mem_efficient", "cudnn")  # numbers of torch
GIB = 2**30


@dataclass(frozen=True)
class Row:
    """One measurement and its expectation.

    Attributes:
        what: the measured quantity.
        expected: the expectation, in words.
        found: the result, in words.
        holds: whether the expectation holds; None if there is nothing to compare.
    """

    what: str
    expected: str
    found: str
    holds: bool | None = None


@dataclass(frozen=True)
class Bench:
    """The device, and the sizes: those of the presets `small`, or tiny ones to test the script."""

    device: str
    tiny: bool

    @property
    def cuda(self) -> bool:
        """Whether the device is a GPU."""
        return self.device == "cuda"

    def config(self) -> ModelConfig:
        """Return the model of perplexity's preset `small`."""
        if self.tiny:
            return ModelConfig(layers=2, heads=2, width=32, mlp_width=32, vocab_size=64)
        model = plugins.load("task", "perplexity").cls.presets["small"].model
        small: ModelConfig = model.changed(vocab_size=258, train_length=1024)
        return small

    def model(self, spec: str, config: ModelConfig | None = None) -> Decoder:
        """Return a decoder with fixed weights."""
        torch.manual_seed(0)
        make = plugins.load("encoding", spec).make
        return Decoder(config or self.config(), make).to(self.device)

    def tokens(self, rows: int, length: int) -> Tensor:
        """Return fixed random tokens, (rows, length)."""
        generator = torch.Generator().manual_seed(1)
        return torch.randint(64, (rows, length), generator=generator).to(self.device)

    def half(self) -> AbstractContextManager[object]:
        """Return the autocast context of a run."""
        return torch.autocast(self.device, torch.bfloat16, cache_enabled=False)

    def wait(self) -> None:
        """Wait until the device has finished all work."""
        if self.cuda:
            torch.cuda.synchronize()

    def milliseconds(self, call: Callable[[], object], repeats: int = 10) -> float:
        """Return the median time of a call in milliseconds, after three warm-up calls."""
        repeats = 2 if self.tiny else repeats
        for _ in range(1 if self.tiny else 3):
            call()
        times = []
        for _ in range(repeats):
            self.wait()
            start = time.perf_counter()
            call()
            self.wait()
            times.append(1000 * (time.perf_counter() - start))
        return statistics.median(times)

    def peak_gib(self, call: Callable[[], object]) -> float:
        """Return the peak memory of a call in GiB; 0 on a CPU."""
        if not self.cuda:
            call()
            return 0.0
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        call()
        return torch.cuda.max_memory_allocated() / GIB


def machine(bench: Bench) -> Iterator[Row]:
    """Is the device a GPU, and do global flags have the expected values?"""
    about = environment.describe(bench.device)
    yield Row("device", "H100", str(about["device"]))
    yield Row("driver, CUDA", "580 or later, 13.0", f"{about['driver']}, {about['cuda']}")
    yield Row("cuDNN", "later than 9.15", str(about["cudnn"]))
    if bench.cuda:
        yield Row("TF32", "[]", str(about["tf32"]), about["tf32"] == [])
        without = "cudnn" not in about["sdpa"]
        yield Row("SDPA", "without cudnn", " ".join(about["sdpa"]), without)


def kernels(bench: Bench) -> Iterator[Row]:
    """Which kernel does torch choose? Padding to multiples of 8 avoids widths such as 65 and 67."""
    expected = {
        "float32": {64: "mem_efficient", 65: "math", 72: "mem_efficient", 128: "mem_efficient"},
        "bfloat16": {64: "flash", 67: "flash", 72: "flash", 128: "flash"},
    }
    for name, by_width in expected.items():
        for width, kernel in by_width.items():
            q = torch.randn(2, 8, 256, width, device=bench.device, dtype=getattr(torch, name))
            chosen = KERNELS[torch._fused_sdp_choice(q, q, q, None, 0.0, True)]
            what = f"{name}, width {width}, causal"
            yield Row(what, kernel, chosen, chosen == kernel if bench.cuda else None)
    mask = torch.zeros(1, 8, 256, 256, device=bench.device, requires_grad=True)
    q = torch.randn(2, 8, 256, 64, device=bench.device, requires_grad=True)
    chosen = KERNELS[torch._fused_sdp_choice(q, q, q, mask)]
    holds = chosen == "mem_efficient" if bench.cuda else None
    yield Row("float32, bias with a gradient", "mem_efficient", chosen, holds)


def attention(bench: Bench) -> Iterator[Row]:
    """How long does attention take, as a multiple of causal flash attention?"""
    length = 64 if bench.tiny else 4096
    heads = 2 if bench.tiny else 12
    q, k, v = torch.randn(3, 1, heads, length, 64, device=bench.device).bfloat16()
    wide = torch.cat([v, v], dim=-1)  # TAPE's values have 64 additional channels
    table = torch.randn(heads, length, device=bench.device)
    decay = torch.randn(1, heads, length, device=bench.device).cumsum(-1).double()
    cases: dict[str, tuple[Tensor, LogitTerms, Backend, tuple[float, float] | None]] = {
        "TAPE, sdpa": (wide, PLAIN, "sdpa", (2.0, 2.0)),  # zeros that pad q and k
        "TAPE, flex": (wide, PLAIN, "flex", (1.5, 1.6)),  # the arithmetic minimum
        "TAPE, blocked": (wide, PLAIN, "blocked", None),
        "distance table, flex": (v, LogitTerms(by_distance=table), "flex", None),
        "distance table, blocked": (v, LogitTerms(by_distance=table), "blocked", None),
        "fixed decay, sdpa": (v, LogitTerms(separable=decay), "sdpa", None),
        "learned decay, flex": (v, LogitTerms(separable=decay), "flex", None),
    }
    flash = _times(bench, q, k, v, PLAIN, "sdpa")
    yield Row("causal flash, ms", "0.13 and 0.45", f"{flash[0]:.2f} and {flash[1]:.2f}")
    for name, (values, terms, backend, most) in cases.items():
        expected = f"at most {most[0]} and {most[1]}" if most else ""
        try:
            times = _times(bench, q, k, values, terms, backend)
        except Exception as error:  # a failure is a result
            yield Row(name, expected, _first_line(error), False if bench.cuda else None)
            continue
        ratios = [one / two for one, two in zip(times, flash, strict=True)]
        holds = None
        if most and bench.cuda:
            holds = ratios[0] <= most[0] and ratios[1] <= most[1]
        yield Row(name, expected, f"{ratios[0]:.2f} and {ratios[1]:.2f}", holds)


def _times(
    bench: Bench, q: Tensor, k: Tensor, v: Tensor, terms: LogitTerms, backend: Backend
) -> tuple[float, float]:
    """Return milliseconds of a forward pass, and of one with its backward pass."""
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    separable = None if terms.separable is None else terms.separable.detach()
    if separable is not None and backend == "flex":
        separable.requires_grad_()
    own = LogitTerms(separable=separable, by_distance=terms.by_distance)
    if own.by_distance is not None:
        own.by_distance.requires_grad_()

    def both() -> None:
        attend(leaves[0], leaves[1], leaves[2], own, backend=backend).float().sum().backward()

    with torch.no_grad():
        forward = bench.milliseconds(lambda: attend(q, k, v, own, backend=backend))
    return forward, bench.milliseconds(both)


def flex_shapes(bench: Bench) -> Iterator[Row]:
    """Does flex attention stay compiled over many lengths? If not, its memory is T x S."""
    if not bench.cuda:
        yield Row("flex attention over 12 lengths", "compiled", "needs CUDA")
        return
    most = 0.0
    heads, dtype = 8, torch.bfloat16
    start = time.perf_counter()
    for length in range(1024, 4096 + 1, 279):
        q = torch.randn(1, heads, length, 64, device="cuda", dtype=dtype, requires_grad=True)
        table = torch.randn(heads, length, device="cuda", requires_grad=True)

        def step(q: Tensor = q, table: Tensor = table) -> None:
            terms = LogitTerms(by_distance=table)
            attend(q, q, q, terms, backend="flex").float().sum().backward()

        step()  # compiles
        squares = heads * length**2 * 4 / GIB
        most = max(most, bench.peak_gib(step) / squares)
    seconds = time.perf_counter() - start
    graphs = sum(counters["stats"].values())
    yield Row("peak memory over that of T x S logits", "below 0.5", f"{most:.2f}", most < 0.5)
    yield Row("seconds for 12 lengths", "below 120", f"{seconds:.0f}", seconds < 120)
    yield Row("counts of the compiler", "", f"{graphs}, {dict(counters['graph_break'])}")


def flex_terms(bench: Bench) -> Iterator[Row]:
    """Are flex attention's outputs and gradients right, and is it faster than blocks?"""
    if not bench.cuda:
        yield Row("flex attention with learned terms", "", "needs CUDA")
        return
    for dtype, most in ((torch.bfloat16, 5e-3), (torch.float32, 5e-5)):
        for kind in ("no term", "distance table", "learned decay", "both"):
            for width in (64, 128):
                what = f"{str(dtype).removeprefix('torch.')}, {kind}, values of {width}"
                expected = f"errors below {most:.0e}"
                try:
                    worst, flex, blocked = _compare_flex(dtype, kind, width)
                except Exception as error:  # a failure is a result
                    yield Row(what, expected, _first_line(error), False)
                    continue
                found = f"{worst:.1e}; {flex:.2f} ms, blocked {blocked:.2f} ms"
                yield Row(what, expected, found, worst < most)


def _compare_flex(dtype: torch.dtype, kind: str, width: int) -> tuple[float, float, float]:
    """Return the largest relative error against float64, and ms of flex and of blocked."""
    generator = torch.Generator("cuda").manual_seed(0)
    rows, heads, length = 2, 8, 1024
    q, k, v, out = (
        torch.randn(rows, heads, length, size, device="cuda", generator=generator).to(dtype)
        for size in (64, 64, width, width)
    )
    table = torch.randn(heads, length, device="cuda", generator=generator)
    decay = torch.rand(rows, heads, length, device="cuda", generator=generator)
    leaves = [q, k, v]
    places: list[int | None] = [None, None]  # of the terms among the leaves
    if kind in ("distance table", "both"):
        places[0] = len(leaves)
        leaves.append(table)
    if kind in ("learned decay", "both"):
        places[1] = len(leaves)
        leaves.append(decay.cumsum(-1).double())

    def step(backend: Backend, exact: bool = False) -> list[Tensor]:
        own = [(t.double() if exact else t.clone()).requires_grad_() for t in leaves]
        by_distance, separable = (None if i is None else own[i] for i in places)
        terms = LogitTerms(by_distance=by_distance, separable=separable)
        found = attend(own[0], own[1], own[2], terms, backend=backend)
        return [found, *torch.autograd.grad(found, own, out.to(found.dtype))]

    worst = 0.0
    for found, truth in zip(step("flex"), step("eager", exact=True), strict=True):
        worst = max(worst, float((found.detach().double() - truth).norm() / truth.norm()))
    bench = Bench("cuda", False)
    flex = bench.milliseconds(lambda: step("flex"))
    return worst, flex, bench.milliseconds(lambda: step("blocked"))


class Step:
    """A training step of a task's size, in bf16 or in float32."""

    def __init__(self, bench: Bench, spec: str, *, half: bool = True) -> None:
        self.bench = bench
        self.half = half
        self.model = bench.model(spec).train()
        self.tokens = bench.tokens(*((2, 32) if bench.tiny else (64, 1024)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)

    def __call__(self) -> None:
        with self.bench.half() if self.half else nullcontext():
            losses = self.model.token_losses(self.tokens, self.tokens)
        losses.mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def training(bench: Bench) -> Iterator[Row]:
    """How long does a step of `perplexity small` take, 64 x 1024 tokens, and how much memory?"""
    most = {"tape": 1.2, "t5": 1.4, "fire": 1.4}  # as multiples of rope
    names = ["rope", "nope", "alibi", "tape", "t5", "fox", "fire", "kerple", "cable", "randpe"]
    names += ["selective-rope", "path", "cope", "dape"]
    rope = 1.0
    for name in names[:4] if bench.tiny else names:
        expected = f"at most {most[name]} x rope" if name in most else "fits"
        try:
            step = Step(bench, name)
            found = bench.milliseconds(step, 5)
            peak = bench.peak_gib(step)
        except torch.OutOfMemoryError:
            yield Row(name, expected, "out of memory", False)
            continue
        except Exception as error:
            yield Row(name, expected, _first_line(error), False)
            continue
        if name == "rope":
            rope = found
            yield Row("rope, bf16", "71 ms, 25 GB", f"{found:.1f} ms, {peak:.1f} GiB")
            slow = bench.milliseconds(Step(bench, name, half=False), 3)
            yield Row("rope, fp32", "347 ms", f"{slow:.1f} ms")
            continue
        holds = found / rope <= most[name] if bench.cuda and name in most else None
        yield Row(name, expected, f"{found / rope:.2f} x rope, {peak:.1f} GiB", holds)


def scarce_memory(bench: Bench) -> Iterator[Row]:
    """Does a training with too little memory continue, with the same losses?"""
    rows, length = (4, 16) if bench.tiny else (64, 1024)
    config = TrainConfig(steps=4, batch_size=rows, length=length, lr=1e-4)

    def batch(step: int) -> Batch:
        tokens = bench.tokens(rows, length).cpu()
        return Batch(tokens, tokens.roll(-1, 1))

    losses = []
    for share in (1.0, 0.12):
        if bench.cuda:
            torch.cuda.empty_cache()
            torch.cuda.set_per_process_memory_fraction(share)
        title = "scarce" if share < 1 else "plenty"
        training = Training(bench.model("rope"), batch, config, 0, bench.device, "bf16", title)
        losses.append(train(training).loss)
    difference = abs(losses[0] - losses[1])
    what = "losses with 12 % of the memory differ by"
    yield Row(what, "below 0.01", f"{difference:.5f}", difference < 0.01)


def waits(bench: Bench) -> Iterator[Row]:
    """How often does a training step wait for the device? On a CPU, the expectation is never."""
    names = ["rope", "alibi", "learned", "randpe", "xpos", "sandwich", "t5", "tape", "fox", "path"]
    for name in names[:2] if bench.tiny else names:
        step = Step(bench, name)
        step()
        if bench.cuda:
            torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            step()
        if bench.cuda:
            torch.cuda.set_sync_debug_mode("default")
        count = sum("synchroniz" in str(warning.message) for warning in caught)
        holds = count == 0 if bench.cuda else None
        yield Row(f"{name}: waits in a step", "0", str(count), holds)


def decoding(bench: Bench) -> Iterator[Row]:
    """How long does a cached token take, and what does cuDNN's attention do to it?"""
    prompt, new = (8, 4) if bench.tiny else (512, 256)
    prompts = bench.tokens(8, prompt).tolist()
    rope = 1.0
    for name, cudnn in (("rope", True), ("rope", False), ("tape", False), ("t5", False)):
        model = bench.model(name).eval()
        torch.backends.cuda.enable_cudnn_sdp(cudnn)
        with bench.half():
            model.generate(prompts, max_new_tokens=new)  # kernels are compiled for its cache
            bench.wait()
            start = time.perf_counter()
            model.generate(prompts, max_new_tokens=new)
        bench.wait()
        found = 1000 * (time.perf_counter() - start) / new
        if cudnn:
            yield Row("rope with cuDNN, ms a token", "far more than without", f"{found:.1f}")
        elif name == "rope":
            rope = found
            yield Row("rope, ms a token", "3 to 6", f"{found:.1f}", None)
        else:
            ratio = found / rope
            holds = ratio <= 1.3 if bench.cuda else None
            yield Row(f"{name}, x rope", "at most 1.3", f"{ratio:.2f}", holds)
    torch.backends.cuda.enable_cudnn_sdp(False)


def repeated(bench: Bench) -> Iterator[Row]:
    """Do two equal trainings have the same final weights?"""
    for name in ("rope", "t5", "cope")[: 1 if bench.tiny else 3]:
        weights = []
        for _ in range(2):
            step = Step(bench, name)
            for _ in range(3):
                step()
            weights.append(torch.cat([p.detach().flatten() for p in step.model.parameters()]))
        most = float((weights[0] - weights[1]).abs().max())
        what = f"{name}: weights of two trainings differ by"
        yield Row(what, "0, or rounding below 1e-3", f"{most:.1e}", most < 1e-3)


def profile(bench: Bench) -> Iterator[Row]:
    """Where does the time of a step of `perplexity small` go, and how idle are small models?"""
    if not bench.cuda:
        yield Row("fraction of elementwise kernels", "a third", "needs CUDA")
        return
    for what, step in (("perplexity small", Step(bench, "rope")), ("copying small", _small(bench))):
        for _ in range(3):
            step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
            bench.wait()
            start = time.perf_counter()
            for _ in range(5):
                step()
            bench.wait()
            wall = 1e6 * (time.perf_counter() - start)
        by_name = {e.key: e.self_device_time_total for e in found.key_averages()}
        busy = sum(by_name.values())
        light = sum(t for n, t in by_name.items() if "elementwise" in n or "copy" in n.lower())
        largest = sorted(by_name, key=lambda n: -by_name[n])[:5]
        fused = [name for name in by_name if "flash" in name or "fmha" in name]
        idle = "at most 10 %" if what.startswith("perplexity") else "70 %"
        yield Row(f"{what}: idle", idle, f"{1 - busy / wall:.0%}")
        yield Row(f"{what}: elementwise kernels", "a third", f"{light / busy:.0%}")
        names = "; ".join(name[:60] for name in fused)
        yield Row(f"{what}: attention", "flash_fwd, flash_bwd", names)
        names = "; ".join(name[:60] for name in largest)
        yield Row(f"{what}: largest kernels", "", names)


def _small(bench: Bench) -> Callable[[], None]:
    """Return a step of the size of `copying small`: 64 rows of 48 tokens."""
    step = Step(bench, "rope")
    step.tokens = bench.tokens(64, 48)
    return step


def compiled(bench: Bench) -> Iterator[Row]:
    """How much time does torch.compile save? The engine compiles only flex attention."""
    if not bench.cuda:
        yield Row("compiled step, x plain", "0.7", "needs CUDA")
        return
    for name in ("rope", "tape"):
        step = Step(bench, name)
        plain = bench.milliseconds(step, 5)
        start = time.perf_counter()
        step.model.token_losses = torch.compile(step.model.token_losses)  # type: ignore[method-assign]
        step()
        bench.wait()
        seconds = time.perf_counter() - start
        ratio = bench.milliseconds(step, 5) / plain
        found = f"{ratio:.2f}, compiled in {seconds:.0f} s"
        yield Row(f"{name}: compiled step, x plain", "0.7, in 60 s", found)


def checks(bench: Bench) -> Iterator[Row]:
    """`pe-bench check all --device cuda`: every encoding, with the kernels that runs use."""
    names = ["nope"] if bench.tiny else catalogue.names("encoding")
    for name in names:
        good = check_encodings([name], bench.device)
        yield Row(f"{name}: checks", "hold", "hold" if good else "see the log", good)


PARTS: dict[str, tuple[Callable[[Bench], Iterator[Row]], int]] = {
    "machine": (machine, 20),
    "kernels": (kernels, 20),
    "attention": (attention, 120),
    "training": (training, 240),
    "scarce_memory": (scarce_memory, 45),
    "waits": (waits, 50),
    "decoding": (decoding, 75),
    "repeated": (repeated, 45),
    "profile": (profile, 45),
    "flex_terms": (flex_terms, 150),
    "flex_shapes": (flex_shapes, 110),
    "compiled": (compiled, 90),
    "checks": (checks, 330),
}
"""The parts, with their time limits in seconds: 22 minutes in all."""


def run_part(name: str, bench: Bench) -> Iterator[Row]:
    """Yield the results of a part; a crash is a result."""
    try:
        yield from PARTS[name][0](bench)
    except Exception as error:
        yield Row(name, "no crash", _first_line(error), False)


def run_apart(name: str, bench: Bench, out: Path) -> Iterator[Row]:
    """Yield the results of a part in a separate process, whose output goes to a log."""
    seconds = PARTS[name][1]
    log = out / f"{name}.log"
    kept = out / f"{name}.json"
    kept.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--device", bench.device, "--part", name]
    command += ["--out", str(out), *(["--tiny"] if bench.tiny else [])]
    end = None
    with log.open("w", encoding="utf-8") as file:
        try:
            done = subprocess.run(command, stdout=file, stderr=file, timeout=seconds, check=False)
            if done.returncode:
                end = Row(name, "no crash", f"ended early, see {log.name}", False)
        except subprocess.TimeoutExpired:
            end = Row(name, f"within {seconds} s", f"stopped, see {log.name}", False)
    if kept.exists():
        for line in kept.read_text(encoding="utf-8").splitlines():
            yield Row(**json.loads(line))
        kept.unlink()
    if end:
        yield end


def describe(found: dict[str, list[Row]]) -> str:
    """Return expectations and results as a Markdown table."""
    words = {True: "yes", False: "**no**", None: ""}
    table = []
    for part, rows in found.items():
        for row in rows:
            table.append([part, row.what, row.expected, row.found, words[row.holds]])
    return markdown_table(["part", "what", "expected", "found", "holds"], table, "lllll")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:150]}"


def parse(given: list[str] | None = None) -> argparse.Namespace:
    """Return the options from the command line, or from `given`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small sizes to test the script itself")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts")
    parser.add_argument("--out", type=Path, default=Path("results/gpu"), help="results/gpu")
    # For the processes of the parts.
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> None:
    """Measure all parts, print a table, and write it after each of them."""
    args = parse(given)
    if args.device == "cuda" and not torch.cuda.is_available():
        sys.exit("there is no CUDA device here: try --device cpu --tiny")
    environment.set_up(args.device)
    bench = Bench(args.device, args.tiny)
    args.out.mkdir(parents=True, exist_ok=True)
    if args.part:
        with (args.out / f"{args.part}.json").open("w", encoding="utf-8") as file:
            for row in run_part(args.part, bench):
                print(json.dumps(asdict(row)), file=file, flush=True)
        return
    kept = args.out / "gpu.json"
    parts = read(kept, environment.describe(args.device)["device"])
    for name in args.only or PARTS:
        start = time.perf_counter()
        apart = bench.cuda and not bench.tiny
        rows = list(run_apart(name, bench, args.out) if apart else run_part(name, bench))
        parts[name] = {
            "machine": environment.describe(args.device),
            "seconds": round(time.perf_counter() - start, 1),
            "rows": [asdict(row) for row in rows],
        }
        print(describe({name: rows}), flush=True)
        kept.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
        (args.out / "gpu.md").write_text(describe_all(parts), encoding="utf-8")


def read(path: Path, device: str) -> dict[str, Any]:
    """Return the parts of an earlier call on the same device."""
    if not path.exists():
        return {}
    parts = json.loads(path.read_text(encoding="utf-8"))
    return {name: part for name, part in parts.items() if part["machine"]["device"] == device}


def describe_all(parts: dict[str, Any]) -> str:
    """Return all parts as a Markdown page."""
    machine = next(iter(parts.values()))["machine"]
    sources: dict[str, list[str]] = {}
    for name, part in parts.items():
        commit = (part["machine"]["git"] or {}).get("commit", "unknown")[:10]
        sources.setdefault(f"commit {commit}", []).append(name)
    lines = [f"# {machine['device']}, torch {machine['versions']['torch']}", ""]
    lines += [f"- {source}: {', '.join(names)}" for source, names in sources.items()]
    found = {name: [Row(**row) for row in part["rows"]] for name, part in parts.items()}
    return "\n".join([*lines, "", describe(found), ""])


if __name__ == "__main__":
    main()
