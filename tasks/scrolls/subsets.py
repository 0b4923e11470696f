"""The seven subsets of SCROLLS."""

from typing import NamedTuple

from pe_bench.api import Sampling
from pe_bench.tasks.scrolls.text_metrics import Metric


class Subset(NamedTuple):
    """One of the seven subsets.

    Attributes:
        metric: metric of its score.
        miniature: kind of the built-in documents that replace it.
        summary: whether the output is a longer text.
        sampling: sampling options of protocol paper; None: greedy decoding.
    """

    metric: Metric
    miniature: str
    summary: bool = False
    sampling: Sampling | None = None


SPLITS = ("train", "validation")
"""The labels of a third split, "test", are not public."""

SUBSETS = {
    "qasper": Subset("f1", "paper question"),
    "contract_nli": Subset("em", "inference"),
    "narrative_qa": Subset("f1", "story question"),
    "quality": Subset("em", "multiple choice"),
    "qmsum": Subset("rgm", "meeting query", True, Sampling(top_k=3)),
    "summ_screen_fd": Subset("rgm", "screenplay", True, Sampling(top_k=3)),
    "gov_report": Subset("rgm", "report", True, Sampling(top_k=50)),
}
