"""lm-evaluation-harness scores exported models like the models themselves."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pe_bench.config import ModelConfig
from pe_bench.decoder.generation import generate
from pe_bench.decoder.model import Decoder
from pe_bench.pretrained.saving import save_checkpoint
from pe_bench.registry.plugins import load
from pe_bench.text.tokenizer import ByteTokenizer

lm_eval = pytest.importorskip("lm_eval", reason="lm_eval is not installed")
pytestmark = pytest.mark.slow

TEXTS = ["for i in range(9)", "two and two"]
ENDINGS = [" is four", ":\n"]
COMMON = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
"""
TASKS = {
    "choice": """
output_type: multiple_choice
target_delimiter: ""
doc_to_text: text
doc_to_choice: endings
doc_to_target: 0
metric_list:
  - metric: acc
""",
    "rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: text
metric_list:
  - metric: bits_per_byte
""",
    "generation": """
output_type: generate_until
doc_to_text: text
doc_to_target: text
generation_kwargs:
  until: ["</s>"]
  max_gen_toks: 5
metric_list:
  - metric: exact_match
""",
}


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a folder with tasks on a local file."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    folder = tmp_path / "tasks"
    folder.mkdir()
    lines = [json.dumps({"text": text, "endings": ENDINGS}) + "\n" for text in TEXTS]
    data = folder / "texts.jsonl"
    data.write_text("".join(lines))
    for name, body in TASKS.items():
        (folder / f"{name}.yaml").write_text(COMMON.format(name=name, data=data) + body)
    return folder


def decoder(spec: str) -> Decoder:
    """Return a decoder of bytes with large weights, so that its answers differ."""
    config = ModelConfig(
        layers=2, heads=2, width=32, mlp_width=48, vocab_size=ByteTokenizer().vocab_size,
        train_length=64, init_std=0.3,
    )  # fmt: skip
    model = Decoder(config, load("encoding", spec).make).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


@torch.no_grad()
def log_likelihood(model: Decoder, before: list[int], after: list[int]) -> float:
    """Return the log-likelihood of a continuation."""
    logits = model(torch.tensor([[*before, *after]]))[0, len(before) - 1 : -1]
    return float(logits.log_softmax(-1)[range(len(after)), after].sum())


@pytest.mark.parametrize("spec", ["rope", "tape", "alibi"])
def test_scores_are_those_of_the_model(spec: str, tasks: Path, tmp_path: Path) -> None:
    tokenizer = ByteTokenizer()
    model = decoder(spec)
    save_checkpoint(model, tmp_path / "model", spec, tokenizer=tokenizer)
    found = lm_eval.simple_evaluate(
        model="hf",
        model_args={
            "pretrained": str(tmp_path / "model"), "trust_remote_code": True, "dtype": "float32"
        },
        tasks=list(TASKS),
        task_manager=lm_eval.tasks.TaskManager(include_path=str(tasks), include_defaults=False),
        device="cpu",
        batch_size=2,
        log_samples=True,
        bootstrap_iters=0,
    )  # fmt: skip
    samples: dict[str, list[Any]] = found["samples"]

    bits = 0.0
    for text, choice, generation in zip(
        TEXTS, samples["choice"], samples["generation"], strict=True
    ):
        ids = tokenizer.encode_text(text).tolist()
        for ending, answer in zip(ENDINGS, choice["filtered_resps"], strict=True):
            expected = log_likelihood(model, ids, tokenizer.encode_text(ending).tolist())
            assert float(answer[0]) == pytest.approx(expected, rel=1e-3)
        (continued,) = generate(model, [ids], max_new_tokens=5, end=tokenizer.eos)
        assert generation["filtered_resps"][0] == tokenizer.decode(continued)
        bits -= log_likelihood(model, [tokenizer.bos], ids) / math.log(2)
    size = sum(map(len, TEXTS))
    assert found["results"]["rolling"]["bits_per_byte,none"] == pytest.approx(bits / size, 1e-3)
