"""Configuration of the model and of training."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

from pe_bench.errors import InputError, suggest
from pe_bench.option_table import check_values, is_whole, option

IGNORE = -100
"""Target id for positions without a loss."""


PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""Linear layers of a block."""


def show_rate(lr: float) -> str:
    """Format a learning rate: 3e-3."""
    digits, _, exponent = f"{lr:.3e}".partition("e")
    return f"{float(digits):g}e{int(exponent)}"


def check_ids(ids: Iterable[int], vocab_size: int, name: str) -> None:
    """Check that token ids are in a vocabulary; `name` says which ids they are.

    Raises:
        InputError: one is not.
    """
    for token in ids:
        if not is_whole(token) or not 0 <= token < vocab_size:
            raise InputError(
                f"{name} has the token id {token!r}, but a vocabulary of {vocab_size} tokens has "
                f"the ids 0 to {vocab_size - 1}"
            )


@dataclass(frozen=True)
class BlockConfig:
    """Computations in the blocks of a pretrained model; the defaults are those of a Llama.

    Attributes:
        head_dim: channels per head; 0: width / heads.
        norms: places of the norm of attention and MLP: at their input, their output, or both.
        norm_offset: whether the gain of a norm is 1 + its weight, as in Gemma.
        norm: RMSNorm, LayerNorm with weight and bias, or LayerNorm without parameters.
        gated: whether the MLP has a gate.
        bias: whether all projections of attention and MLP have a bias.
        activation: activation function of the gate of the MLP, or of its hidden channels.
        embedding_scale: factor of the token embeddings.
        residual_scale: factor of the outputs of attention and MLP, before the residual addition.
        score_scale: factor of the query-key products; 0: 1 / sqrt(head_dim).
        score_cap: c in c tanh(z / c), applied to the attention logits z; 0: no cap.
        logit_scale: factor of the next-token logits.
        logit_cap: c in c tanh(z / c), applied to the next-token logits z; 0: no cap.
    """

    head_dim: int = 0
    norms: Literal["input", "output", "both"] = "input"
    norm_offset: bool = False
    norm: Literal["rms", "layer", "fixed"] = "rms"
    gated: bool = True
    bias: bool = False
    activation: Literal["silu", "gelu_tanh"] = "silu"
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    score_scale: float = 0.0
    score_cap: float = 0.0
    logit_scale: float = 1.0
    logit_cap: float = 0.0


ADDED = ("norm", "gated", "bias")
"""Fields of `BlockConfig` that are not in settings of earlier runs."""


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a decoder. Parameters have the same shapes as in the Hugging Face Llama.

    It also contains facts for encodings: the training length, the tokens that are a single decimal
    digit, and the tokens that end a sentence or a line. Only pretrained models have tied
    embeddings, biases of the projections to q, k and v, or a `block` that differs from a Llama.

    Raises:
        InputError: the sizes do not fit together, or an id is not in the vocabulary.
    """

    layers: int = option(4, "decoder layers", least=1)
    heads: int = option(4, "query heads", least=1)
    kv_heads: int = option(0, "key and value heads, fewer for grouped queries; 0: as many as heads")
    width: int = option(128, "hidden size, a multiple of heads", least=1)
    mlp_width: int = option(384, "hidden size of the SwiGLU MLP", least=1)
    norm_eps: float = option(1e-5, "epsilon of RMSNorm")
    init_std: float = option(0.02, "standard deviation of the initial weights")
    qk_norm: Literal["none", "rms", "width"] = option(
        "none", "RMSNorm of queries and keys: rms: for each head; width: over all heads"
    )
    vocab_size: int = field(default=260, metadata={"set_by": "the tokenizer"})
    train_length: int = field(default=256, metadata={"set_by": "the training sequence length"})
    digit_ids: tuple[int, ...] = field(default=(), metadata={"set_by": "the tokenizer"})
    separator_ids: tuple[int, ...] = field(default=(), metadata={"set_by": "the tokenizer"})
    tied_embeddings: bool = field(default=False, metadata={"set_by": "a pretrained checkpoint"})
    qkv_bias: bool = field(default=False, metadata={"set_by": "a pretrained checkpoint"})
    block: BlockConfig = field(
        default=BlockConfig(),  # frozen
        metadata={"set_by": "a pretrained checkpoint"},
    )

    def __post_init__(self) -> None:
        check_values(self, "model.")
        for name in ("vocab_size", "train_length"):
            if getattr(self, name) < 1:
                raise InputError(f"model.{name} must be at least 1, not {getattr(self, name)}")
        for name in ("digit_ids", "separator_ids"):
            check_ids(getattr(self, name), self.vocab_size, f"model.{name}")
        if self.width % self.heads and not self.block.head_dim:
            raise InputError(
                f"model.width must be a multiple of model.heads; {self.width} is not one of "
                f"{self.heads}"
            )
        if self.kv_heads == 0:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.heads % self.kv_heads:
            raise InputError(
                f"model.kv_heads must divide model.heads; {self.kv_heads} does not divide "
                f"{self.heads}"
            )

    @property
    def head_dim(self) -> int:
        """Channels per head."""
        return self.block.head_dim or self.width // self.heads

    @property
    def settings(self) -> dict[str, Any]:
        """The fields as JSON values, without `block` if it has the defaults."""
        found = asdict(self)
        if self.block == BlockConfig():
            del found["block"]
            return found
        for name in ADDED:
            if getattr(self.block, name) == getattr(BlockConfig, name):
                del found["block"][name]
        return found

    def changed(self, **values: Any) -> "ModelConfig":
        """Return a copy with changed values; if each head has separate keys, this is kept."""
        kv_heads = 0 if self.kv_heads == self.heads else self.kv_heads
        return replace(self, **{"kv_heads": kv_heads, **values})


ROUNDING_ONLY = ("save_every", "micro_batch", "recompute")
"""Options of training that change numbers by rounding at most.

`micro_batch` also changes the random position ids that training draws.
"""


@dataclass(frozen=True)
class TrainConfig:
    """One training phase: AdamW with warm-up and a learning rate schedule.

    Raises:
        InputError: a value is out of range.
    """

    prefix: ClassVar[str] = "train"  # prefix of the options' names

    steps: int = option(300, "optimizer steps")
    batch_size: int = option(16, "sequences per optimizer step", least=1)
    micro_batch: int | None = option(None, "sequences per forward; None: the whole batch", least=1)
    length: int | None = option(
        None, "longest training sequence, in tokens; None: set by options of the task", least=1
    )
    lr: float = option(1e-3, "peak learning rate of AdamW")
    encoding_lr_factor: float = option(
        1.0, "factor of the learning rate for the parameters of the encoding", above=0
    )
    schedule: Literal["cosine", "linear", "constant"] = option(
        "cosine", "learning rate after the warm-up; cosine and linear go to zero"
    )
    warmup: float = option(
        0.05, "fraction of the steps in which the learning rate increases", most=1
    )
    weight_decay: float = option(0.01, "on matrices only, not on norms and biases")
    beta2: float = option(0.999, "second moment decay of AdamW (the first is 0.9)", below=1)
    clip: float = option(1.0, "largest gradient norm; 0: no clipping")
    recompute: bool = option(
        False, "activation checkpointing: recompute each block in the backward pass"
    )
    save_every: float = option(30.0, "seconds between resumable checkpoints")

    def __post_init__(self) -> None:
        check_values(self, f"{self.prefix}.")

    @property
    def check_every(self) -> int:
        """Number of steps between checks of whether a trial of a search can end early."""
        return max(1, self.steps // 20)


@dataclass(frozen=True)
class AdaptConfig(TrainConfig):
    """Adaptation of a trained model to another encoding.

    | method | trained parameters |
    |---|---|
    | full | all |
    | encoding | parameters of the encoding |
    | lora | low-rank updates of `targets` (Hu et al. 2022, arXiv 2106.09685) |
    | encoding+lora | both |
    | longlora | both, embeddings, norms; with shifted sparse attention |
    | none | only those of `also` |

    LongLoRA: Chen et al. 2024, arXiv 2309.12307. TAPE (Zhu et al. 2025, arXiv 2501.00712) is
    published with `encoding`, and its LoRA baseline with `lora`, both with `also`
    embeddings+norms. `none` with the same `also` is their control.

    Raises:
        InputError: a value is out of range.
    """

    prefix: ClassVar[str] = "adapt"

    steps: int = option(0, "optimizer steps with the new encoding; 0: evaluate without training")
    method: Literal["full", "encoding", "lora", "encoding+lora", "longlora", "none"] = option(
        "full", "trained parameters: full, encoding, lora, encoding+lora, longlora, none"
    )
    also: Literal["embeddings", "norms", "embeddings+norms"] | None = option(
        None, "train these, too: embeddings (of tokens), norms, or embeddings+norms"
    )
    rank: int = option(8, "rank of the low-rank updates; their alpha is twice the rank", least=1)
    targets: str = option(
        "q_proj+k_proj+v_proj+o_proj", "projections with low-rank updates, joined by +"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        wrong = [name for name in self.targets.split("+") if name not in PROJECTIONS]
        if wrong:
            raise InputError(
                f"adapt.targets has no '{wrong[0]}'{suggest(wrong[0], PROJECTIONS)}; "
                f"there are {', '.join(PROJECTIONS)}"
            )
        if self.also and self.method in ("full", "longlora"):
            raise InputError(
                f"adapt.also has no effect with adapt.method {self.method}, which trains "
                "embeddings and norms: use none, encoding, lora or encoding+lora"
            )
        if self.method == "none" and not self.also:
            raise InputError(
                "adapt.method none trains nothing by itself: add adapt.also, such as "
                "embeddings+norms"
            )

    @property
    def also_trained(self) -> tuple[str, ...]:
        """Which of "embeddings" and "norms" are trained with the method; full trains everything."""
        # Chen et al. 2024, section 3.3: without these, low rank does not reach long rows.
        also = "embeddings+norms" if self.method == "longlora" else self.also
        return tuple(also.split("+")) if also else ()

    @property
    def low_rank(self) -> bool:
        """Whether low-rank updates of projections are trained."""
        return "lora" in self.method
