"""The types of the parts of `run.json` and of the files of tuning, for validation.

Other keys may have any value, see `pe_bench.system.schema.read_as`.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pe_bench.config import AdaptConfig, ModelConfig, TrainConfig
from pe_bench.system.schema import Count, Label, Line, Measured, PartOf


class Training(TypedDict, total=False):
    """The cost of a training, see `TrainingResult.cost`."""

    steps: Count
    tokens: Count
    seconds: float
    loss: Measured | None
    peak_memory_bytes: Count | None
    micro_batch: Count | None


class Cost(TypedDict, total=False):
    """The cost of a subset."""

    training: Training
    evaluation_seconds: float
    peak_memory_bytes: Count | None
    notes: list[str]


class TrialJson(TypedDict):
    """A trial of a search for learning rates."""

    phase: str
    lr: float
    value: NotRequired[str | None]
    seed: Count
    loss: NotRequired[Measured | None]
    training_loss: NotRequired[Measured | None]
    halfway: NotRequired[Measured | None]
    steps: NotRequired[Count | None]


class Choices(TypedDict, total=False):
    """The choices of a search, by phase."""

    lr: Mapping[str, float]
    values: Mapping[str, str | None]
    at_edge: Mapping[str, bool]
    trainings: Mapping[str, float]
    option: Line | None
    tried: list[TrialJson]


class SearchJson(Choices):
    """A search for learning rates."""

    task: Label
    encoding: Label
    encoding_version: Line


class Baselines(TypedDict, total=False):
    """The content of the seal of a file of baselines."""

    version: Count


class Searches(TypedDict, total=False):
    """The searches of a run."""

    task: SearchJson
    start: SearchJson


class Tune(TypedDict):
    """The options of a search, as in settings."""

    lr: list[float]
    seeds: list[Count]
    batches: NotRequired[Count]
    values: NotRequired[bool]
    version: NotRequired[Count]


class Origin(TypedDict, total=False):
    """The encoding with which the initial weights were trained."""

    encoding: Label
    version: Line


# "from" is a keyword of Python, so that the class syntax is impossible.
Continued = TypedDict("Continued", {"from": Origin}, total=False)
Adaptation = TypedDict(
    "Adaptation",
    {
        "encoding": Label,
        "from": Label,
        "unchanged": NotRequired[bool],
        "config": NotRequired[Annotated[Mapping[str, Any], PartOf(AdaptConfig)]],
    },
)


class Settings(Continued, total=False):
    """The settings of a run."""

    task: Label
    preset: Line
    protocol: Line
    precision: Line
    data: str | None
    versions: Mapping[str, Any]
    options: Mapping[str, Any]
    model: Annotated[Mapping[str, Any], PartOf(ModelConfig, ("layers", "heads", "width"))]
    train: Annotated[Mapping[str, Any], PartOf(TrainConfig, ("steps", "lr", "batch_size"))]
    start: "Settings | None"
    tune: Tune | None
    conditions: Mapping[str, Any]


class Data(TypedDict, total=False):
    """The provenance of data."""

    label: Line


class Sources(TypedDict, total=False):
    """Paths of the user's files."""

    encoding: str
    task: str
    tokenizer: str | None
    data: Mapping[str, str]
    checkpoint: str


class Commit(TypedDict):
    """The commit of the code."""

    commit: Line
    dirty: bool


class Environment(TypedDict, total=False):
    """Device and versions."""

    device: Line | None
    device_type: Literal["cpu", "cuda"]
    threads: Count
    python: Line | None
    versions: Mapping[str, str | None]
    git: Commit | None


class Description(TypedDict, total=False):
    """The docstring of a plugin, and the declared facts of an encoding."""

    summary: str
    text: str
    style: Mapping[str, Line]
    facts: Mapping[str, Any]
    runs_on: list[str]


class Descriptions(TypedDict, total=False):
    """The docstrings of encoding and task."""

    encoding: Description
    task: Description
