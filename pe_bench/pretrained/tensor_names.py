"""Mapping of the tensors in files of a family to parameters of the decoder."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pe_bench.config import ModelConfig
from pe_bench.errors import InputError
from pe_bench.pretrained.families import FAMILIES, Family

EMBEDDINGS = "embed_tokens.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Part:
    """A parameter of the decoder, given by rows of a tensor in a file.

    Attributes:
        name: name of the parameter.
        rows: the rows, in the order of the decoder; None: the whole tensor.
        transposed: whether the tensor is transposed before.
    """

    name: str
    rows: Tensor | None = None
    transposed: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the parameter equals the tensor."""
        return self.rows is None and not self.transposed

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the part of a tensor."""
        whole = whole[::-1] if self.transposed else whole
        return whole if self.rows is None else (len(self.rows), *whole[1:])

    def take(self, tensor: Tensor) -> Tensor:
        """Return the part of a tensor."""
        tensor = tensor.t() if self.transposed else tensor
        return tensor if self.rows is None else tensor[self.rows]


@dataclass(frozen=True)
class TensorNames:
    """Names and rows of the tensors of a family.

    Attributes:
        family: the family. Names of Llama are the names of the decoder with a prefix.
        turning: number of leading channels of a head that rotate, in pairs (m, m + turning / 2);
            None: all.
    """

    family: Family = FAMILIES["llama"]
    turning: int | None = None

    def parts(
        self, name: str, shape: tuple[int, ...] = (), model: ModelConfig | None = None
    ) -> list[Part]:
        """Return the parameters of the decoder in a tensor.

        Args:
            name: name of the tensor.
            shape: its shape; needed for fused tensors.
            model: shape of the decoder; needed for fused tensors and reordered channels.

        Raises:
            InputError: a fused tensor has another number of rows than its parts.
        """
        if name.endswith(self.family.ignored):
            return []
        own = name.removeprefix(self.family.prefix)
        for theirs, ours in self.family.renamed.items():
            own = own.replace(theirs, ours)
        transposed = self.family.transposed and own.endswith("_proj.weight")
        for fused, parts in self.family.fused.items():
            if f".{fused}." in own and model is not None:
                names = [own.replace(fused, part) for part in parts]
                return self._split(name, names, shape, model, transposed)
        return [Part(own, self._order(own, model), transposed)]

    def in_files(self, name: str) -> str:
        """Return the name in files of a parameter of the decoder, unless it is a part of a tensor.

        Args:
            name: name in the decoder.
        """
        for theirs, ours in reversed(tuple(self.family.renamed.items())):
            name = name.replace(ours, theirs)
        return name if name == HEAD else f"{self.family.prefix}{name}"

    def _split(
        self,
        name: str,
        own: list[str],
        shape: tuple[int, ...],
        model: ModelConfig,
        transposed: bool,
    ) -> list[Part]:
        parts = []
        start = 0
        for part in own:
            size = _rows(part, model)
            order = self._order(part, model)
            rows = torch.arange(size) if order is None else order
            parts.append(Part(part, start + rows, transposed))
            start += size
        outputs = shape[-1] if transposed else shape[0]
        if start != outputs:
            raise InputError(
                f"{name} is {shape}, but must have {start} outputs according to config.json"
            )
        return parts

    def _order(self, name: str, model: ModelConfig | None) -> Tensor | None:
        """Return the rows of queries or keys in the decoder's order of channels, (heads D,)."""
        if self.turning is None or model is None or not _is_rotated(name):
            return None
        half = torch.arange(self.turning // 2)  # (R/2,)
        still = torch.arange(self.turning, model.head_dim).chunk(2)  # (D/2 - R/2,) each
        # The decoder rotates the channel pair (m, m + D/2).
        channels = torch.cat([half, still[0], half + self.turning // 2, still[1]])  # (D,)
        heads = torch.arange(_rows(name, model) // model.head_dim)  # (heads,)
        return (heads[:, None] * model.head_dim + channels).flatten()  # (heads D,)


def _is_rotated(name: str) -> bool:
    """Return whether rows of a parameter are channels of queries or keys."""
    return ".q_proj." in name or ".k_proj." in name


def _rows(name: str, model: ModelConfig) -> int:
    """Return the number of rows of a projection of the decoder."""
    sizes: Mapping[str, int] = {
        "q_proj": model.heads * model.head_dim,
        "k_proj": model.kv_heads * model.head_dim,
        "v_proj": model.kv_heads * model.head_dim,
        "gate_proj": model.mlp_width,
        "up_proj": model.mlp_width,
    }
    return sizes[name.split(".")[-2]]
