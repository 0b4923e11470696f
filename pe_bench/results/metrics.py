"""Title, unit and direction of each metric."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

ARROWS = {True: "↑", False: "↓", None: ""}


@dataclass(frozen=True)
class Metric:
    """One kind of number.

    Attributes:
        title: name in tables and plots.
        unit: unit of the values; empty: none.
        higher_is_better: direction of the metric; None: it has none.
        given: additional input of the model besides the prompt; empty: none.
    """

    title: str
    unit: str = ""
    higher_is_better: bool | None = None
    given: str = ""

    @property
    def full_title(self) -> str:
        """The title, with the additional input of the model if there is one."""
        return f"{self.title} given {self.given}" if self.given else self.title

    @property
    def is_percent(self) -> bool:
        """Whether the values are percentages."""
        return self.unit == "%"

    @property
    def ends_at_100(self) -> bool:
        """Whether 100 is the largest value: of percentages, unless lower ones are better.

        An error rate can be above 100 %.
        """
        return self.is_percent and self.higher_is_better is not False

    @property
    def arrow(self) -> str:
        """An arrow that points to better values; empty without a direction."""
        return ARROWS[self.higher_is_better]

    @property
    def title_and_unit(self) -> str:
        """The full title, and the unit if there is one."""
        return f"{self.full_title}, {self.unit}" if self.unit else self.full_title

    @property
    def label(self) -> str:
        """Title, unit and arrow."""
        return replace(self, given="").full_label

    @property
    def full_label(self) -> str:
        """Full title, unit and arrow."""
        return f"{self.title_and_unit} {self.arrow}".strip()


BEFORE = "the correct tokens before it"  # teacher forcing


METRICS = {
    "exact_match": Metric("exact match", "%", higher_is_better=True),
    "accuracy": Metric("accuracy", "%", higher_is_better=True),
    "token_accuracy": Metric("token accuracy", "%", higher_is_better=True, given=BEFORE),
    "correct_prefix": Metric("answer before the first mistake", "%", higher_is_better=True),
    "string_match_all": Metric("string match (all)", "%", higher_is_better=True),
    "accuracy_per_byte": Metric("accuracy per byte", "%", higher_is_better=True),
    "f1": Metric("F1", "%", higher_is_better=True),
    "em": Metric("exact match", "%", higher_is_better=True),
    "rgm": Metric("ROUGE geometric mean", "%", higher_is_better=True),
    "rouge1": Metric("ROUGE-1", "%", higher_is_better=True),
    "rouge2": Metric("ROUGE-2", "%", higher_is_better=True),
    "rougeL": Metric("ROUGE-L", "%", higher_is_better=True),
    "score": Metric("score", "%", higher_is_better=True),
    "bits_per_byte": Metric("bits per byte", higher_is_better=False),
    "tail_bits_per_byte": Metric("bits per byte of the tail", higher_is_better=False),
    "perplexity": Metric("perplexity", higher_is_better=False),
    "tail_perplexity": Metric("perplexity of the tail", higher_is_better=False),
    "prompt_tokens": Metric("prompt", "tokens"),
    "mean_logit": Metric("mean attention logit"),
    "parameters": Metric("parameters", higher_is_better=False),
    "failed": Metric("failed checks", higher_is_better=False),
    "extra_flops_per_token": Metric("extra operations per token", higher_is_better=False),
    "extra_cache_per_token": Metric("extra cached numbers per token", higher_is_better=False),
    "flops_overhead_percent": Metric("operations added", "%", higher_is_better=False),
    "forward_ms": Metric("time of a forward pass", "ms", higher_is_better=False),
    "prefill_gflops": Metric("operations of a forward pass", "GFLOP", higher_is_better=False),
    "prefill_gmacs": Metric("products of a forward pass", "GMAC", higher_is_better=False),
    "cache_overhead_percent": Metric("cache added", "%", higher_is_better=False),
}


def find_metric(name: str, own: Mapping[str, Metric] = MappingProxyType({})) -> Metric:
    """Return title, unit and direction of a metric.

    Args:
        name: name of the metric.
        own: the task's own metrics, which come before those of `METRICS`. For an unknown metric,
            the title is the name, and there is no direction.
    """
    return own.get(name) or METRICS.get(name) or Metric(name.replace("_", " "))
