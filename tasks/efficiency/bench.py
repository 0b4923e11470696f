"""The benchmark cases of one encoding: an attention layer, training steps, prefill and decoding."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import torch

from pe_bench.api import MakeEncoding, Measurement, ModelConfig, progress
from pe_bench.api.engine import Backend

from .attention_layer import MiddleLayer
from .cases import Case, Entry, Meter, Pass, make_rows
from .models import Decoding, Prefill, Setting, TrainingStep

AUTO: Backend = "auto"
BACKENDS: tuple[Backend, ...] = get_args(Backend)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Benchmark of an encoding against a reference.

    Attributes:
        make_encoding: constructor of the encoding under test.
        make_reference: constructor of the reference encoding.
        config: shape of the models.
        lengths: numbers of input tokens of one attention layer.
        length: number of input tokens of models.
        model_backends: attention backends for models.
        batch_size: number of sequences of a training step, and number of prompts.
        new_tokens: number of tokens to decode after a prompt.
        projections: whether to include the four projections of the attention layer.
        device: "cpu" or "cuda".
        dtype: dtype of queries, keys and values.
    """

    make_encoding: MakeEncoding
    make_reference: MakeEncoding
    config: ModelConfig
    lengths: Sequence[int]
    length: int
    model_backends: Sequence[Backend]
    batch_size: int
    new_tokens: int
    projections: bool
    device: str
    dtype: torch.dtype

    def measure(self, subset: str, meter: Meter) -> list[Measurement]:
        """Return the rows of a subset.

        Args:
            subset: "operator", "training" or "inference".
            meter: measures the cases.
        """
        if subset == "operator":
            return self._operator(meter)
        if subset == "training":
            return self._models(meter, subset, {"training step": self._training_step})
        makers = {"prompt": self._prefill, "decoding": self._decoding}
        return self._models(meter, subset, makers)

    def _operator(self, meter: Meter) -> list[Measurement]:
        """Measure one attention layer with every backend at every length."""
        rows = []
        known: dict[Backend, dict[int, Entry]] = {backend: {} for backend in BACKENDS}
        bar = progress("operator", len(BACKENDS) * len(self.lengths))
        for length in self.lengths:
            for backend in BACKENDS:
                case = Case(
                    f"{backend} at {length} tokens",
                    name_subset("operator", backend),
                    backend,
                    length,
                    self.config.heads * length**2,
                    partial(self._attention, backend),
                )
                known[backend][length] = meter.measure(case, known[backend])
                rows += make_rows(case, known[backend][length])
                bar.update()
        bar.close()
        return rows

    def _models(
        self, meter: Meter, subset: str, makers: Mapping[str, Callable[..., Any]]
    ) -> list[Measurement]:
        """Measure whole models with every backend; `makers` construct their passes by name."""
        rows = []
        length = self.length
        pairs = self.batch_size * self.config.layers * self.config.heads * length**2
        bar = progress(subset, len(self.model_backends) * len(makers))
        for backend in self.model_backends:
            for title, make in makers.items():
                case = Case(
                    f"{title}, {backend}",
                    name_subset(subset, backend),
                    backend,
                    length,
                    pairs,
                    partial(make, backend),
                )
                rows += make_rows(case, meter.measure(case, {}))
                bar.update()
        bar.close()
        return rows

    def _attention(self, backend: Backend, length: int) -> dict[str, Pass]:
        """Return the passes of one attention layer."""
        config = self.config.changed(train_length=length)
        make = partial(
            MiddleLayer,
            config,
            device=self.device,
            autocast=self._autocast(),
            dtype=self.dtype,
            projections=self.projections,
        )
        subject = make(self.make_encoding, backend)
        reference = make(self.make_reference, AUTO)
        return {
            "forward": Pass(subject.forward, reference.forward),
            "forward_backward": Pass(subject.forward_backward, reference.forward_backward),
        }

    def _training_step(self, backend: Backend, length: int) -> dict[str, Pass]:
        setting = self._setting(length)
        subject = TrainingStep(setting, self.make_encoding, backend)
        reference = TrainingStep(setting, self.make_reference, AUTO)
        return {"training_step": Pass(subject, reference, tokens=setting.batch * length)}

    def _prefill(self, backend: Backend, length: int) -> dict[str, Pass]:
        setting = self._setting(length)
        new = self.new_tokens
        subject = Prefill(setting, self.make_encoding, backend, new)
        reference = Prefill(setting, self.make_reference, AUTO, new)
        tokens = setting.batch * length
        return {"prefill": Pass(subject, reference, tokens, kept=lambda: subject.cache_bytes)}

    def _decoding(self, backend: Backend, length: int) -> dict[str, Pass]:
        setting = self._setting(length)
        new = self.new_tokens
        subject = Decoding(setting, self.make_encoding, backend, new)
        reference = Decoding(setting, self.make_reference, AUTO, new)
        return {"decoding": Pass(subject, reference, setting.batch * new, new)}

    def _setting(self, length: int) -> Setting:
        return Setting(self.config, self.batch_size, length, self.device, self._autocast())

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.dtype == torch.float32:
            return nullcontext()
        # Casts of weights are not cached, because optimizer steps change the weights.
        return torch.autocast(self.device, self.dtype, cache_enabled=False)


def name_subset(subset: str, backend: Backend) -> str:
    """Return the name of the rows of a backend."""
    return subset if backend == AUTO else f"{subset}-{backend}"
