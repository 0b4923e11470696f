"""Mistakes in the use of the interface that raise no exception, such as a misspelt hook."""

import inspect
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from pe_bench.checks.gradients import (
    describe_unchanged,
    find_unchanged_parameters,
    training_loss,
)
from pe_bench.checks.names import describe_similar
from pe_bench.checks.subject import Subject
from pe_bench.encoding import Encoding, StatefulEncoding
from pe_bench.registry.options import plugin_options
from pe_bench.registry.plugins import Plugin
from pe_bench.registry.versions import is_shipped
from pe_bench.visibility import EVERYTHING

NO_HOOKS = ("layer_kinds", "kind_of", "at_layer", "bias_matrix", "overrides", "options_of_llama")
"""Methods of the interface that describe an encoding and do not change outputs."""

METHODS = vars(Encoding) | vars(StatefulEncoding)
HOOKS = [
    name
    for name, value in METHODS.items()
    if inspect.isfunction(value) and not name.startswith("_") and name not in NO_HOOKS
]
FACTS = [*inspect.get_annotations(Encoding), *inspect.get_annotations(StatefulEncoding)]
OF_STATES = [name for name in HOOKS if not hasattr(Encoding, name)]


def interface(subject: Subject) -> str | None:
    """No name is misspelt, some hook is overridden, and tensors are buffers."""
    return "; ".join(find_oversights(subject.make_encoding(subject.config, 0))) or None


def find_oversights(encoding: Encoding) -> list[str]:
    """Return a sentence for each mistake found in the class and in a new instance."""
    found = [*_misspelt_names(encoding), *_plain_tensors(encoding)]
    changed = any(each.overrides(hook) for each in encoding.layer_kinds for hook in HOOKS)
    restricted = any(each.visible != EVERYTHING for each in encoding.layer_kinds)
    if not changed and not restricted and not is_shipped(type(encoding)):
        name = type(encoding).__name__
        found.append(f"{name} overrides no hook, so it has no effect on the decoder")
    cls = type(encoding)
    tunable = vars(cls).get("tunable")
    options = {option.name for option in plugin_options(cls)}
    if tunable is not None and tunable.option not in options:
        found.append(
            f"{cls.__name__}.tunable names '{tunable.option}', which is not one of its options"
        )
    return found


def find_unused_parameters(plugin: Plugin) -> list[str]:
    """Return sentences on parameters that nothing uses, or training does not change.

    A parameter counts only if this is so in every layer of a small model. Its texts are long, since
    some parameters serve far distances only.
    """
    subject = Subject(plugin.make).trained_on_long()
    with torch.random.fork_rng(devices=[]):
        model = subject.untrained_model().train()
        tokens = subject.tokens(subject.longest)
        training_loss(model, tokens).backward()
        without = [
            name
            for name, parameter in model.encodings.named_parameters()
            if parameter.requires_grad and parameter.grad is None
        ]
        unused = _in_every_layer(without, model.encodings)
        if unused:
            return [f"no gradient reaches {', '.join(unused)}: no hook uses it"]
        model.zero_grad()
        unchanged = _in_every_layer(find_unchanged_parameters(model, tokens), model.encodings)
    return [describe_unchanged(unchanged)] if unchanged else []


def _in_every_layer(names: Sequence[str], encodings: nn.ModuleList) -> list[str]:
    """Return the names within a layer of parameters that are listed for every layer."""
    others = set()
    for full, _ in encodings.named_parameters():
        if full not in names:
            others.add(full.partition(".")[2])
    within = dict.fromkeys(full.partition(".")[2] for full in names)
    return [name for name in within if name not in others]


def _misspelt_names(encoding: Encoding) -> Iterator[str]:
    """Yield a sentence for each method or attribute with a name similar to one of the interface."""
    cls = type(encoding)
    own = dict(vars(encoding))
    for ancestor in cls.__mro__:
        if issubclass(ancestor, Encoding) and ancestor not in (Encoding, StatefulEncoding):
            own = dict(vars(ancestor)) | own
    for name in own:
        if name in OF_STATES and not isinstance(encoding, StatefulEncoding):
            yield f"{cls.__name__}.{name} is never called: extend StatefulEncoding, not Encoding"
    yield from describe_similar(cls, own, StatefulEncoding, HOOKS, FACTS)


def _plain_tensors(encoding: Encoding) -> Iterator[str]:
    """Yield a sentence for each tensor that is neither a parameter nor a buffer.

    Such a tensor is not moved to a device and not saved in a checkpoint.
    """
    of_modules = vars(nn.Module())
    for prefix, module in encoding.named_modules():
        for name, value in vars(module).items():
            values = value if isinstance(value, list | tuple) else [value]
            if name not in of_modules and any(isinstance(one, Tensor) for one in values):
                full = f"{prefix}.{name}".lstrip(".")
                if any(isinstance(one, nn.Parameter) for one in values):
                    yield (
                        f"{type(encoding).__name__}.{full} has parameters in a list, which are "
                        "never trained: use nn.ParameterList"
                    )
                    continue
                yield (
                    f"{type(encoding).__name__}.{full} is a plain tensor, which stays on the CPU: "
                    "use self.register_buffer"
                )
