"""Options out of range: each spec is refused in one sentence before anything is trained."""

import ast
import re
import traceback
from pathlib import Path
from typing import Any

import pytest

from pe_bench.config import ModelConfig
from pe_bench.errors import InputError
from pe_bench.registry import plugins
from pe_bench.runs.options import RunOptions
from pe_bench.runs.resolve import resolve

ROOT = Path(__file__).resolve().parent.parent / "encodings"

MODEL: dict[str, Any] = {
    "layers": 4,
    "width": 64,
    "heads": 4,
    "train_length": 256,
    "digit_ids": tuple(range(10)),
    "separator_ids": (50, 51),
}

# Spec, and a regular expression for the message.
ENCODINGS = [
    ("abacus:init_std=-1", "init_std must not be negative, not -1"),
    ("abacus:offset=0", "offset must be at least 1, .* not 0"),
    ("abacus:rows=100", "rows must be more than its offset 100, not 100"),
    ("alibi:slope_scale=0", "slope_scale must be greater than 0, not 0.0"),
    ("alibi:slope_scale=inf", "slope_scale must be greater than 0, not inf"),
    ("bipe:form=fire", "must be one of rope, alibi"),
    ("bipe:train_scale=0", "train_scale must be at least 1, not 0"),
    ("cable:bias_init=1", "no option 'bias_init'"),
    ("carope:base=1", "greater than 1, not 1.0"),
    ("carope:start=normal,base=500", "carope:base has no effect with start=normal"),
    ("cope:npos=0", "npos must be at least 2, not 0"),
    ("cope:npos=1", "npos must be at least 2, not 1"),
    ("dapev2:kernel=2", "kernel must be odd and at least 1, not 2"),
    ("dape:base=rope", "one of alibi, kerple, fire"),
    ("dape:hidden=0", "hidden must be at least 1, not 0"),
    ("drope:factor=0.5", "drope:factor must be at least 1, not 0.5"),
    ("drope:temperature=-1", "drope:temperature must be at least 0, not -1.0"),
    ("dual-chunk:chunk=8,local=8", "at least 0 and less than chunk; they are 8 and 8"),
    ("dual-chunk:scaling=dynamic-pi", "DualChunk needs frequencies .*: use a scaling that is not"),
    ("fire:c=0", "c must be greater than 0, not 0.0"),
    ("fire:eps=0", "eps must be greater than 0, not 0.0"),
    ("fire:threshold=-1", "threshold must be greater than 0, not -1.0"),
    ("fire:width=0", "width must be at least 1, not 0"),
    ("fope:base=1", "greater than 1, not 1.0"),
    ("fope:gain=-1", "fope:gain must be at least 0, not -1.0"),
    ("fox:bias_init=inf", "bias_init must be a finite number"),
    ("fox:longest=2", "fox:shortest and fox:longest together"),
    ("fox:shortest=0,longest=2", "finite, positive and ascending"),
    ("fox:shortest=2", "fox:shortest and fox:longest together"),
    ("fox:shortest=2,longest=3,bias_init=1", "without fox:bias_init"),
    ("fox:shortest=2,longest=inf", "finite, positive and ascending"),
    ("fox:shortest=3,longest=2", "not 3.0 and 2.0"),
    ("grape-a:gate=none", "one of both, query, key"),
    ("grape-ap:dim=3", "dim must be even and at least 2, not 3"),
    ("hybrid:every=0", "every must be at least 1, not 0"),
    ("hybrid:first=1", "first has no effect without a window or chunks"),
    ("hybrid:pattern=lg,every=2", "every has no effect with pattern"),
    ("hybrid:pattern=l,window=8,global=alibi", "no layer is global"),
    ("hybrid:every=1,local=tape", "no layer is local"),
    ("hybrid:pattern=g,window=8", "no layer is local"),
    ("hybrid:pattern=lx", "pattern must consist of l and g"),
    ("inkling:extent=0", "extent must be at least 1, not 0"),
    ("inkling:floor=0", "floor must be at least 1, not 0"),
    ("inkling:rank=0", "rank must be at least 1, not 0"),
    ("inkling:strength=-1", "strength must be at least 0, not -1.0"),
    ("kerple:form=cubic", "one of log, power, power-weighted"),
    ("learned:rows=0,past=clamp", "rows must be at least 1, not 0"),
    ("learned:rows=255", "at least 256, as many as there are position ids in training"),
    ("learned:train_positions=random,max_train_position=2049", "at least 2049, as many as"),
    ("lm-infinite:sinks=0", "sinks must be at least 1, not 0"),
    ("lm-infinite:window=0", "window must be at least 1, not 0"),
    ("log-temperature:form=llama4,initial=1", "initial has no effect on form=llama4"),
    ("log-temperature:form=llama4,start=0", "start must be at least 1, not 0"),
    ("log-temperature:form=llama4,scale=-1", "scale must not be negative, not -1.0"),
    ("log-temperature:scale=1", "scale and start have no effect on form=ssmax"),
    ("log-temperature:start=9", "scale and start have no effect on form=ssmax"),
    ("path:rank=0", "rank must be at least 1, not 0"),
    ("pope:base=1", "greater than 1, not 1.0"),
    ("pose:target=255", "target must be at least the training length 256, not 255"),
    ("position-coupling:rows=1", "rows must be at least 2, not 1"),
    ("randpe:count=0", "count must be at least 1, not 0"),
    ("randpe:evaluation=even,count=2", "no effect with evaluation=even"),
    ("randpe:evaluation=odd", "must be one of frozen, even"),
    ("randpe:max=255", "max must be at least the training length 256, not 255"),
    ("randpe:train_positions=random", "leave out train_positions"),
    ("repo:base=1", "greater than 1, not 1.0"),
    ("repo:lower=0.9", "repo:lower must be at least 0 and leave one of 4 layers, not 0.9"),
    ("repo:lower=-1", "repo:lower must be at least 0"),
    ("rerope:leak=2", "rerope:leak must be from 0 to 1, not 2.0"),
    ("rerope:window=0", "window must be at least 1, not 0"),
    ("rope:base=1", "greater than 1, not 1.0"),
    ("rope:beta_slow=2", "beta_slow has no effect with scaling=none"),
    ("rope:factor=2", "factor has no effect with scaling=none"),
    ("rope:eval_positions=contiguous", "no effect without train_positions=random"),
    ("randpe:eval_positions=contiguous", "no effect without train_positions=random"),
    ("rope:max_train_position=99", "max_train_position has no effect without train_positions"),
    ("rope:proportional=0.1", "leave more of the 8 planes"),
    ("rope:rotary=0", "rotary=0.0 and proportional=1.0 must be at most 1"),
    ("rope:rotary=0.1", "leave more of the 8 planes"),
    ("rope:rotary=1.5", "rotary=1.5 and proportional=1.0 must be at most 1"),
    ("rope:resonance=true,trainable=true", "no gradient: leave out trainable"),
    ("rope:scaling=clipped,clipped=8", "clipped must be from 2 to 7, .* the 8 planes, not 8"),
    ("rope:scaling=clipped,clipped=1", "clipped must be from 2 to 7"),
    ("rope:scaling=clipped,rotary=0.25", "leave more of the 8 planes"),
    ("rope:scaling=hope,turns=41", "above 0 and below 40.74, .* within 256 tokens, not 41"),
    ("rope:scaling=hope,clipped=2", "clipped has no effect with scaling=hope"),
    ("rope:scaling=rope-id,turns=0", "turns must be above 0 and below 40.74"),
    ("rope:scaling=rope-id,share=0.15", "leave two of 8 planes, not 0.15"),
    ("rope:scaling=dynamic-pi,factor=2", "factor has no effect with scaling=dynamic-pi"),
    ("rope:scaling=dynamic-pi,original_length=1", "original_length must be at least 2"),
    ("rope:scaling=dynamic-yarn,attention_factor=-1", "attention_factor must be at least 0"),
    ("rope:scaling=dynamic-yarn,truncate=false,ramp=rotations", "no effect with ramp="),
    ("rope:scaling=llama3,attention_factor=2", "attention_factor has no effect"),
    ("rope:scaling=llama3,beta_slow=5", "beta_slow=5.0 must be .* below beta_fast=4.0"),
    ("rope:scaling=llama3,ramp=rotations", "ramp has no effect with scaling=llama3"),
    ("rope:scaling=llama3,truncate=false", "truncate has no effect with scaling=llama3"),
    ("rope:scaling=longrope,factor=2", "must be 8 positive numbers .* not ''"),
    ("rope:scaling=longrope,factor=2,factors=1;1;1;1;1;1;1;0", "8 positive numbers"),
    ("rope:scaling=longrope,factor=2,factors=1;2", "must be 8 positive numbers .* not '1;2'"),
    ("rope:scaling=longrope,factor=2,factors=no/file", "8 positive numbers .*not 'no/file'"),
    ("rope:scaling=longrope,factors=1;1", "scaling=longrope needs a factor"),
    ("rope:scaling=ntk,factor=2,beta_fast=9", "beta_fast has no effect with scaling=ntk"),
    ("rope:scaling=ntk,factor=2,rotary=0.125", "leave more of the 8 planes"),
    ("rope:scaling=pi,factor=0.5", "factor must be at least 1, not 0.5"),
    ("rope:scaling=pi,factor=2,factors=1;1", "factors has no effect with scaling=pi"),
    ("rope:scaling=pi,factor=2,original_length=9", "original_length has no effect"),
    ("rope:scaling=pi,factor=inf", "factor must be at least 1, not inf"),
    ("rope:scaling=yarn", "scaling=yarn needs a factor"),
    ("rope:scaling=yarn,factor=2,beta_fast=0", "beta_slow=1.0 must be above 0 and below"),
    ("rope:short_factors=1;1", "short_factors has no effect with scaling=none"),
    ("rope:train_positions=offset,max_train_position=3", "the training length 256, not 3"),
    ("rope:train_positions=random,max_train_position=-1", "training length 256, not -1"),
    ("sandwich:dim=7", "dim must be even and at least 2, not 7"),
    ("sandwich:first=2", "one of 0, 1"),
    ("selective-rope:base=1", "greater than 1, not 1.0"),
    ("selective-rope:rank=0", "rank must be at least 1, not 0"),
    ("self-extend:group=0", "group must be at least 1, not 0"),
    ("sinusoidal:layout=sines", "one of interleaved, concat, t2t"),
    ("streaming-llm:sinks=0", "sinks must be at least 1, not 0"),
    ("string-rope:gain=0", "string-rope:gain must be greater than 0, not 0.0"),
    ("string-rope:offset=5,local=6", "local from 0 to offset; they are 5 and 6"),
    ("t5:buckets=1", "buckets must be at least 2, not 1"),
    ("t5:max_distance=16", "greater than half of the 32 buckets, not 16"),
    ("tape-ablations:mlp_mix=false,gate_input=mlp_in", "leave them out"),
    ("tape-ablations:mlp_mix=false,mixing=all", "leave them out"),
    ("tape-ablations:mlp_mix=false,position_size=4", "leave them out"),
    ("tape-ablations:mlp_mix=false,post_mix=off", "use rope"),
    ("tape:base=5e5,post_mix=matrix", "no option .*: write tape-ablations:post_mix=matrix"),
    ("tape:position_size=-1", "position_size must be at least 1, not -1"),
    ("tape:position_size=0", "position_size must be at least 1, not 0"),
    ("wall:bias_init=inf", "bias_init must be a finite number"),
    ("xpos:factor=2", "factor has no effect with scaling=none"),
    ("xpos:scale_base=0.5", "scale_base must be at least 1, not 0.5"),
]

# The same for a model that the encoding does not fit.
SHAPES: list[tuple[str, dict[str, Any], str]] = [
    ("abacus", {"digit_ids": ()}, "needs tokens for single digits"),
    ("bipe", {"separator_ids": ()}, "needs tokens that end a sentence or line"),
    ("carope", {"width": 8}, "even head_dim of at least 4; .* is 2"),
    ("fope", {"train_length": 6}, "within the 6 tokens of training"),
    ("fope", {"width": 12}, "even head_dim; .* is 3"),
    ("repo", {"width": 12}, "even head_dim; .* is 3"),
    ("position-coupling", {"digit_ids": ()}, "needs tokens for single digits"),
    (
        "position-coupling:operands=true",
        {"separator_ids": ()},
        "operands needs a token that ends the question",
    ),
    ("rope", {"width": 12}, "even head_dim; .* is 3"),
    ("selective-rope", {"kv_heads": 2}, r"equal numbers of kv_heads and heads \(4\), not 2"),
    ("selective-rope", {"width": 12}, "even head_dim; .* is 3"),
    ("sinusoidal", {"width": 3, "heads": 1}, "model.width 3 must be even"),
    (
        "tape-ablations:layers=earlier-half",
        {"layers": 1},
        "layers=earlier-half selects none of the 1 layers",
    ),
    (
        "tape-ablations:layers=later-half",
        {"layers": 2},
        "layers=later-half selects none of the 2 layers",
    ),
    ("xpos", {"width": 12}, "even head_dim; .* is 3"),
]


@pytest.mark.parametrize(
    ("spec", "shape", "sentence"),
    [*((spec, {}, sentence) for spec, sentence in ENCODINGS), *SHAPES],
)
def test_options_of_encodings(spec: str, shape: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        plugins.load("encoding", spec).make(ModelConfig(**MODEL | shape), 0)
    assert "\n" not in str(caught.value)


LONG_ROW = "tokens need as many position ids"  # of randpe, for a row instead of an option


@pytest.mark.slow
def test_every_refusal_of_an_encoding_is_tried() -> None:
    """Whoever adds one to encodings/ adds a spec above."""
    tried: set[tuple[Path, int]] = set()
    for spec, shape, _ in [*((spec, {}, "") for spec, _ in ENCODINGS), *SHAPES]:
        try:
            plugins.load("encoding", spec).make(ModelConfig(**MODEL | shape), 0)
        except InputError as refusal:
            last = traceback.extract_tb(refusal.__traceback__)[-1]
            tried.add((Path(last.filename).resolve(), last.lineno or 0))
    for path in ROOT.rglob("*.py"):
        if path.name == "llama.py":
            continue  # reads the options of checkpoints: tests/test_llama_config.py
        for node in ast.walk(ast.parse(path.read_text())):
            text = ast.unparse(node)
            if isinstance(node, ast.Raise) and "InputError" in text and LONG_ROW not in text:
                lines = range(node.lineno, (node.end_lineno or 0) + 1)
                assert any((path, line) in tried for line in lines), text


def edges(spec: str) -> list[str]:
    """Return specs with the smallest and largest values that the refusal of a spec names."""
    with pytest.raises(InputError) as caught:
        plugins.load("encoding", spec).make(ModelConfig(**MODEL), 0)
    said = re.search(
        r"(\w+) must be .*?(?:at least|from) (?:the training length )?([\d.]+)(?: to ([\d.]+))?.*, "
        r"not (.*)",
        str(caught.value),
    )
    if said is None:
        return []
    option, least, most, _ = said.groups()
    values = [least, most] if most else [least]
    return [re.sub(rf"\b{option}=[^,]*", f"{option}={value}", spec) for value in values]


def test_values_at_the_edge_of_a_range_are_accepted() -> None:
    specs = {
        "dual-chunk:chunk=8,local=0",
        "dual-chunk:chunk=8,local=7",
        "string-rope:offset=1,local=0",
        "string-rope:offset=5,local=5",
    }
    for spec, _ in ENCODINGS:
        specs |= {*edges(spec)} - {spec}
    assert len(specs) > 40
    for spec in sorted(specs):
        plugins.load("encoding", spec).make(ModelConfig(**MODEL), 0)


# Spec of a task, other options of the command, and a part of the message.
TASKS: list[tuple[str, dict[str, Any], str]] = [
    ("addition:digits=0", {}, "addition:digits must be from 1 to 200, not 0"),
    ("addition:gate=101", {}, "addition:gate .*101"),
    ("addition:samples=0", {}, "addition:samples must be .*not 0"),
    ("copying:max_train_symbols=0", {}, "max_train_symbols must be from 1 to 1000, not 0"),
    ("copying:min_symbols=11", {}, "copying:min_symbols must be from 1 to 10, not 11"),
    ("copying:symbols=1", {}, "copying:symbols must be from 2"),
    ("flipflop:pairs=1", {}, "flipflop:pairs must be from 2 to 8192, not 1"),
    ("flipflop:times=3", {}, "flipflop:times must be a power of two, not 3"),
    ("indexing:min_symbols=5", {}, "indexing:min_symbols must be from 2 to 4, not 5"),
    ("indexing:reach=4", {}, "indexing:reach must be from 1 to 3, not 4"),
    ("indexing:questions=0", {}, "indexing:questions must be from 1 to 1000, not 0"),
    ("mqar:length=16", {}, "mqar:length must be a power of two"),
    ("mqar:length=48", {}, "mqar:length must be a power of two from 32 to 4096, not 48"),
    ("mqar:vocabulary=126", {}, "mqar:vocabulary must be even, from 128"),
    ("mqar:vocabulary=129", {}, "mqar:vocabulary must be even"),
    ("multi-addition:digits=0", {}, "multi-addition:digits must be from 1 to 100, not 0"),
    ("multi-addition:operands=1", {}, "multi-addition:operands must be from 2 to 100, not 1"),
    ("multiplication:digits=0", {}, "multiplication:digits must be from 1 to 200, not 0"),
    ("posgen:modulus=1", {}, "posgen:modulus must be from 2 to 100, not 1"),
    ("posgen:near=8", {}, "posgen:near must be from 1 to 4, not 8"),
    ("posgen:max_train_numbers=7", {}, "max_train_numbers must be from 8 to 4096, not 7"),
    ("state-tracking:points=6", {}, "state-tracking:points must be from 2 to 5, not 6"),
    ("state-tracking:modulus=1", {}, "state-tracking:modulus must be from 2 to 100, not 1"),
    ("passkey", {"data": {"": Path("text")}}, "passkey makes its own prompts: leave out --data"),
    ("passkey", {"tokenizer": "bpe:400"}, "--tokenizer bpe:400 has no effect on a vocabulary of"),
    (
        "passkey",
        {"train": {"length": 64}},
        r"64 tokens \(words\) is too short .*--train\.length 65",
    ),
    ("passkey:vocabulary=tokenizer", {}, r"128 tokens \(bytes\) is too short"),
    ("passkey:lengths=64;128", {}, r"lengths must be numbers of tokens joined by \+, .*not 64;128"),
    ("ruler:lengths=64+0", {}, r"ruler:lengths must be numbers of tokens joined by"),
    ("chained-facts:lengths=64+128+64", {}, r"names a length twice: 64\+128\+64"),
    ("passkey:depths=0.5+2", {}, r"depths must be different numbers from 0 to 1, .*not 0\.5\+2"),
    ("passkey:depths=nan", {}, "depths must be different numbers from 0 to 1"),
    ("passkey:depths=0.5", {"protocol": "paper"}, "depths has no effect in protocol paper"),
    ("passkey:lengths=256", {"protocol": "paper"}, "lengths has no effect in protocol paper"),
    ("perplexity:lengths=64+256", {}, "lengths must have the training length, 128, and a longer"),
    ("perplexity:lengths=64+128", {}, "lengths must have the training length, 128, and a longer"),
    ("perplexity:stride=0", {}, "stride must be from 1 to 32, the shortest window, not 0"),
    ("perplexity:train_files=0", {}, "train_files must be at least 1, not 0"),
    ("perplexity:windows=-1", {}, "windows must not be negative .*, not -1"),
    ("probes:max_train_symbols=15", {}, "max_train_symbols must be from 16 to 4096, not 15"),
    ("scrolls", {"data": {"": Path("nowhere")}}, "nowhere is not a folder"),
    ("scrolls", {"preset": "paper", "tokenizer": "bytes"}, "needs tokens of several bytes"),
    ("scrolls:start=perplexity", {}, "start=perplexity has no effect: the preset quick trains"),
    ("scrolls:start=addition", {"preset": "small"}, "addition is not a language model"),
    ("scrolls:start=perplexiti", {"preset": "small"}, "no task 'perplexiti' .*did you mean"),
    ("scrolls:start=perplexity:corpu=c4", {"preset": "small"}, "has no option 'corpu'"),
    ("scrolls", {"subsets": ("qasperr",)}, r"no subset 'qasperr' \(did you mean 'qasper'\?\)"),
    ("scrolls:answer_tokens=-1", {}, "scrolls:answer_tokens must be from 0 to .*, not -1"),
    ("scrolls:summary_tokens=-1", {}, "scrolls:summary_tokens must be from 0 to .*, not -1"),
    ("recall:records=24", {}, "recall:records must be a multiple of 16, up to 4096, not 24"),
    ("recall:records=0", {}, "recall:records must be a multiple of 16"),
    ("recall:kinds=latest+last", {}, "recall:kinds must be all, or some of latest, .*joined by +"),
    ("recall:kinds=nth+nth", {}, "recall:kinds must be all, or some of"),
    ("recall:words=63", {}, "recall:words must be from 64 to 1048576, not 63"),
    ("ruler:needles=5", {}, "ruler:needles must be even, not 5"),
    ("ruler:needles=0", {}, "ruler:needles must be from 4"),
    ("ruler:kinds=vt+cwx", {}, "ruler:kinds must be all, or some of niah-single, .*joined by +"),
    ("ruler:kinds=vt+vt", {}, "ruler:kinds must be all, or some of"),
    (
        "ruler:kinds=all",
        {"train": {"length": 64}},
        r"64 tokens \(words\) is too short .*--train\.length",
    ),
    ("chained-facts:stories=1", {}, "chained-facts:stories must be from 2"),
    ("chained-facts:hops=4", {}, "chained-facts:hops must be from 1 to 3, not 4"),
    ("chained-facts:moves=9", {}, "chained-facts:moves must be from 1 to 4, not 9"),
    ("selective-copy:blanks=3", {}, "selective-copy:blanks must be from 4 to 10000, not 3"),
    ("selective-copy:symbols=1", {}, "selective-copy:symbols must be from 2"),
    ("selective-copy:tokens=0", {}, "selective-copy:tokens must be from 1"),
]


def smallest(spec: str, sentence: str) -> str | None:
    """Return a spec with the smallest value that its sentence names; None: it names none."""
    found = re.search(r"(\w+) must be at least (?:the training length )?([\d.]+), not ", sentence)
    if found is None:
        return None
    option, least = found.groups()
    return re.sub(rf"\b{option}=[^,:]+", f"{option}={least}", spec)


ALLOWED = []
for spec, sentence in ENCODINGS:
    least = smallest(spec, sentence)
    if least is not None and least not in ALLOWED:
        ALLOWED.append(least)


@pytest.mark.parametrize("spec", ALLOWED)
def test_the_smallest_value_is_allowed(spec: str) -> None:
    plugins.load("encoding", spec).make(ModelConfig(**MODEL), 0)


@pytest.mark.parametrize(("spec", "options", "sentence"), TASKS)
def test_options_of_tasks(
    spec: str,
    options: dict[str, Any],
    sentence: str,
    cache_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # nothing is there
    with pytest.raises(InputError, match=sentence) as caught:
        resolve(RunOptions(cache=cache_folder, **options), spec)
    assert "\n" not in str(caught.value)
