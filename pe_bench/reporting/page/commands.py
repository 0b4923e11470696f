"""The commands that reproduce the runs of a table, from their records."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pe_bench.config import ROUNDING_ONLY, AdaptConfig, ModelConfig, TrainConfig
from pe_bench.option_table import option_names, option_words
from pe_bench.results.labels import plugin_name
from pe_bench.results.record import RunRecord
from pe_bench.runs.tuning import VERSION, default_rates

USUAL = "bytes"  # the default tokenizer of a preset
PLACEHOLDERS = {"DIR": "the folder with the data", "FILE": "the file of the tokenizer"}


def list_commands(records: Sequence[RunRecord]) -> list[str]:
    """Return the commands that reproduce the runs of a table in an empty folder.

    Runs with the same options share a command.

    Args:
        records: records of the runs, with equal settings.
    """
    groups: dict[tuple[str, ...], list[RunRecord]] = {}
    for record in records:
        groups.setdefault(tuple(_options(record)), []).append(record)
    return [_command(options, own) for options, own in groups.items()]


def describe_commands(records: Sequence[RunRecord], commands: Sequence[str]) -> str:
    """Explain the commands of `list_commands`, what they lack, and their placeholders."""
    words = {word.rpartition("=")[2] for command in commands for word in shlex.split(command)}
    text = "Makes these runs in a folder without results, given the same versions of code and data."
    if records[0].options is None:
        text += (
            " The version that made them recorded neither the changed values, so all values are "
            "given, nor a choice of subsets."
        )
    tune = records[0].settings.get("tune")
    if tune and tune.get("version", 1) != VERSION:
        text += " The version that made them had another search for learning rates."
    for placeholder, meaning in PLACEHOLDERS.items():
        if placeholder in words:
            text += f" {placeholder}: {meaning}, which an export does not name."
    return text


def show_seeds(seeds: Sequence[int]) -> list[str]:
    """Return seeds as words of a command line, with consecutive seeds as a range such as "0-4"."""
    found: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if found and seed == found[-1][-1] + 1:
            found[-1].append(seed)
        else:
            found.append([seed])
    return [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found]


def _command(options: Sequence[str], records: Sequence[RunRecord]) -> str:
    about = records[0]
    specs = {_spec(record) for record in records}
    words = ["pe-bench", "run", "--encoding", *sorted(specs)]
    words += ["--task", _spec_with_path(about, "task", about.task)]
    words += ["--seeds", *show_seeds([record.seed for record in records])]
    return shlex.join([*words, *options])


def _spec(record: RunRecord) -> str:
    """Return the spec of a run's encoding, with the path of its file if it is not shipped."""
    label = record.adaptation["encoding"] if record.adaptation else record.encoding
    return _spec_with_path(record, "encoding", label)


def _spec_with_path(record: RunRecord, kind: str, label: str) -> str:
    name, colon, options = label.partition(":")
    return f"{record.sources.get(kind, name)}{colon}{options}"


def _options(record: RunRecord) -> list[str]:
    """Return all options of a run except its encoding, task and seed."""
    words: list[str] = []
    if record.adaptation:
        words += ["--from", record.sources.get("checkpoint", record.adaptation["from"])]
    if record.preset:
        words += ["--preset", record.preset]
    if record.protocol not in ("", "strict"):
        words += ["--protocol", record.protocol]
    precision = record.settings.get("precision")
    if precision and (record.preset, precision) != ("quick", "fp32"):  # the default on all devices
        words += ["--precision", precision]
    if record.options is None:
        return words + _spell_out(record)
    return words + [_find(record, word) for word in record.options]


def _find(record: RunRecord, word: str) -> str:
    """Return a word of a command, with a placeholder replaced by its path if known."""
    name, equals, last = word.rpartition("=")
    if last == "DIR":
        own = "" if name == plugin_name(record.task) else name
        return f"{name}{equals}{record.sources.get('data', {}).get(own, last)}"
    return str(record.sources.get("tokenizer", word)) if word == "FILE" else word


def _spell_out(record: RunRecord) -> list[str]:
    """Return options for all settings that an option can change.

    This is for records of earlier versions, which do not list the changed options.
    """
    settings = record.settings
    model, train = settings.get("model") or {}, settings.get("train") or {}
    start = (settings.get("start") or {}).get("train") or {}
    words = []
    if record.sources.get("tokenizer", USUAL) != USUAL:
        words += ["--tokenizer", record.sources["tokenizer"]]
    folders = record.sources.get("data")
    if folders:
        words += ["--data", *(f"{name}={folder}".lstrip("=") for name, folder in folders.items())]
    from_checkpoint = record.adaptation is not None and not train.get("steps")
    tune = settings.get("tune")
    if tune:
        words += ["--tune", *option_words("tune", {"seeds": tune["seeds"]})]
        if "lr" in train and tuple(tune["lr"]) != default_rates(train["lr"]):
            words += option_words("tune", {"lr": tune["lr"]})
            train = {name: value for name, value in train.items() if name != "lr"}
    if not from_checkpoint:
        words += option_words("train", _phase(train, TrainConfig))
        words += option_words("pretrain", _phase(start, TrainConfig))
        words += option_words("model", _values(model, ModelConfig))
    if record.adaptation and record.adaptation["config"]["steps"]:
        config = AdaptConfig(**record.adaptation["config"])
        idle = ROUNDING_ONLY if config.low_rank else (*ROUNDING_ONLY, "rank", "targets")
        values = _phase(record.adaptation["config"], AdaptConfig)
        words += option_words("adapt", {n: v for n, v in values.items() if n not in idle})
    return words


def _phase(values: Mapping[str, Any], config: type[Any]) -> dict[str, Any]:
    """Return the options of a training phase that have an effect."""
    found = _values(values, config)
    if values.get("steps"):
        return found
    return {name: value for name, value in found.items() if name == "length"}


def _values(values: Mapping[str, Any], config: type[Any]) -> dict[str, Any]:
    names = option_names(config)
    return {name: values[name] for name in names if values.get(name) is not None}
