"""Different encodings in different layers."""

from collections.abc import Callable, Sequence
from typing import cast

from torch import nn

from pe_bench.config import ModelConfig
from pe_bench.encoding import Encoding
from pe_bench.visibility import Visibility


class Layers(Encoding):
    """Combination of several encodings, one for each layer.

    Each encoding has separate positions, embeddings and state; layers with other encodings do not
    change them. A guarantee, such as shift invariance, holds if all encodings give it. A subclass
    assigns encodings to layers.

    Args:
        makers: functions that make the encodings from the shape of the model and a layer index.
        kinds: index of the encoding of each layer.
        visible: keys that the layers of each encoding may attend to; None: as the encoding
            declares.
    """

    shared = True

    def __init__(
        self,
        model: ModelConfig,
        makers: Sequence[Callable[[ModelConfig, int], Encoding]],
        kinds: Sequence[int],
        visible: Sequence[Visibility | None],
    ) -> None:
        super().__init__(model)
        used = sorted(set(kinds))
        self.kinds = [used.index(kind) for kind in kinds]
        self.groups = nn.ModuleList()  # instances of each encoding: one, or one for each layer
        self.indices: list[int] = []  # index of each layer's instance in its group
        made: list[list[Encoding]] = []
        for kind in used:
            make = makers[kind]
            layers = [layer for layer, own in enumerate(kinds) if own == kind]
            first = make(model, layers[0])
            if first.shared:  # a shared instance is always made for layer 0
                first = make(model, 0)
            rest = [] if first.shared else [make(model, layer) for layer in layers[1:]]
            made.append([first, *rest])
            for encoding in made[-1]:
                encoding.visible = visible[kind] or encoding.visible
            self.groups.append(nn.ModuleList(made[-1]))
        for layer, kind in enumerate(self.kinds):
            index = self.kinds[:layer].count(kind)
            self.indices.append(min(index, len(made[kind]) - 1))
        self._combine_facts()

    def _combine_facts(self) -> None:
        layer_kinds = self.layer_kinds
        self.prefix_consistent = all(one.prefix_consistent for one in layer_kinds)
        self.shift_invariant = all(one.shift_invariant for one in layer_kinds)
        limits = [one.max_position for one in layer_kinds if one.max_position is not None]
        self.max_position = min(limits, default=None)
        self.needs_final_length = any(one.needs_final_length for one in layer_kinds)
        self.eval_samples = max(one.eval_samples for one in layer_kinds)
        self.logits_grow = any(one.logits_grow for one in layer_kinds)

    @property
    def layer_kinds(self) -> Sequence[Encoding]:
        return [cast(Encoding, cast(nn.ModuleList, group)[0]) for group in self.groups]

    def kind_of(self, layer: int) -> int:
        return self.kinds[layer]

    def at_layer(self, layer: int) -> Encoding:
        group = cast(nn.ModuleList, self.groups[self.kinds[layer]])
        return cast(Encoding, group[self.indices[layer]])

    def overrides(self, hook: str) -> bool:
        """Return whether one of the encodings changes a hook's default."""
        return any(one.overrides(hook) for one in self.layer_kinds)
