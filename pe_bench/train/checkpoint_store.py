"""The checkpoint files of a training phase: one to resume from, and one with the trained model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from pe_bench.system.cache_entries import FINAL, mark_used
from pe_bench.system.sealed import DamagedError, read_if_intact
from pe_bench.train.adaptation_methods import saved_part
from pe_bench.train.checkpoints import SUFFIX, read_checkpoint, write_checkpoint
from pe_bench.train.training_result import TrainingResult
from pe_bench.train.training_state import TrainingState

FORMAT = 2
"""Version of resume checkpoints. Checkpoints of another version are set aside."""


class CheckpointStore:
    """The checkpoint files of a training phase.

    A checkpoint that is damaged, has another identity, or belongs to a model of another shape
    counts as missing. It is set aside with a message.

    Args:
        folder: holds `resume.safetensors` during training and `final.safetensors` after it.
        identity: digest of every setting that determines the weights.
        trainable_only: store only the parameters that require gradients, because the others come
            from a pretrained checkpoint.
    """

    def __init__(self, folder: Path, identity: str, *, trainable_only: bool = False) -> None:
        self.identity = identity
        self.trainable_only = trainable_only
        self.final = folder / FINAL
        self.resume = folder / f"resume{SUFFIX}"

    def load_result(self) -> TrainingResult | None:
        """Return the result of a finished training, or None."""
        content = read_if_intact(lambda: read_checkpoint(self.final, owner=self.identity))
        return TrainingResult.from_json(content["trained"]) if content else None

    def load_final(self, model: nn.Module) -> TrainingResult | None:
        """Load the trained weights into a model and return the result, or None if missing."""
        content = read_if_intact(lambda: self._read(self.final, model))
        if content is None:
            return None
        self._load(model, content["weights"])
        mark_used(self.final)
        return TrainingResult.from_json(content["trained"])

    def save_final(self, model: nn.Module, result: TrainingResult) -> None:
        """Save a trained model and its result, and remove the checkpoint to resume from."""
        weights = self._stored_part(model, model.state_dict())
        content = {"weights": weights, "trained": result.to_json()}
        self.resume.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(self.final, content, owner=self.identity)
        self.discard_resume()

    def load_resume(self, model: nn.Module) -> TrainingState | None:
        """Load the weights of an interrupted training into a model; return its state, or None."""
        return read_if_intact(lambda: self.load_resume_or_raise(model))

    def load_resume_or_raise(self, model: nn.Module) -> TrainingState:
        """Load the weights of an interrupted training into a model; return its state.

        Raises:
            FileNotFoundError: there is no checkpoint.
            DamagedError: the checkpoint cannot be used.
        """
        content = self._read(self.resume, model, version=FORMAT)
        self._load(model, content["weights"])
        return TrainingState(**{k: v for k, v in content.items() if k != "format"})

    def save_resume(self, model: nn.Module, state: TrainingState) -> None:
        """Save the state of a training of a model, atomically."""
        weights = self._stored_part(model, state.weights)
        content = {"format": FORMAT, **vars(state), "weights": weights}
        self.resume.parent.mkdir(parents=True, exist_ok=True)
        write_checkpoint(self.resume, content, owner=self.identity)

    def discard_resume(self) -> None:
        """Remove the checkpoint to resume from."""
        self.resume.unlink(missing_ok=True)

    def _read(self, path: Path, model: nn.Module, version: int | None = None) -> dict[str, Any]:
        content = read_checkpoint(path, owner=self.identity)
        if content.get("format") != version:
            raise DamagedError(path, "was written by another version of pe-bench")
        expected = self._stored_part(model, model.state_dict())
        if _shapes(content["weights"]) != _shapes(expected):
            raise DamagedError(path, "belongs to a model of another shape")
        return content

    def _load(self, model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        model.load_state_dict(weights, strict=not self.trainable_only)

    def _stored_part(self, model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return saved_part(weights, model, self.trainable_only)


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in weights.items()}
