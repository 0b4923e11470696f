"""The files of a training phase, and the handling of damaged ones."""

from pathlib import Path

import pytest
import torch
from torch import nn

from pe_bench.train import checkpoint_store
from pe_bench.train.checkpoint_store import CheckpointStore
from pe_bench.train.checkpoints import read_checkpoint
from pe_bench.train.training_result import TrainingResult
from pe_bench.train.training_state import TrainingState

RESULT = TrainingResult(steps=3, tokens=48, seconds=1.5, loss=0.5)


def test_a_finished_training_leaves_the_model_alone(tmp_path: Path) -> None:
    store, model = CheckpointStore(tmp_path, "key"), nn.Linear(3, 2)
    state = TrainingState(2, model.state_dict(), {}, 1.0, 0, {"losses": [0.5]})
    store.save_resume(model, state)
    found = store.load_resume(nn.Linear(3, 2))
    assert found is not None and (found.step, found.log) == (2, {"losses": [0.5]})
    store.save_final(model, RESULT)
    assert [path.name for path in tmp_path.iterdir()] == [store.final.name]
    again = nn.Linear(3, 2)
    assert store.load_final(again) == RESULT
    assert torch.equal(again.weight, model.weight)


def test_a_model_of_another_shape_or_key_is_not_loaded(tmp_path: Path) -> None:
    CheckpointStore(tmp_path, "key").save_final(nn.Linear(3, 2), RESULT)
    assert CheckpointStore(tmp_path, "another key").load_final(nn.Linear(3, 2)) is None
    CheckpointStore(tmp_path, "key").save_final(nn.Linear(3, 2), RESULT)
    assert CheckpointStore(tmp_path, "key").load_final(nn.Linear(4, 2)) is None


def test_a_model_that_is_loaded_counts_as_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Path] = []
    monkeypatch.setattr(checkpoint_store, "mark_used", used.append)
    store, model = CheckpointStore(tmp_path, "key"), nn.Linear(3, 2)
    store.save_final(model, RESULT)
    store.load_final(model)
    assert used == [store.final]


class Tied(nn.Module):
    """A model with two frozen layers that share a weight, and a trained layer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 3).requires_grad_(False)
        self.tied = nn.Linear(3, 3).requires_grad_(False)
        self.tied.weight = self.head.weight
        self.new = nn.Linear(3, 3)


def test_frozen_weights_are_not_kept_under_any_name(tmp_path: Path) -> None:
    model = Tied()
    store = CheckpointStore(tmp_path, "key", trainable_only=True)
    store.save_final(model, RESULT)
    assert set(read_checkpoint(store.final, owner="key")["weights"]) == {"new.weight", "new.bias"}
    model.head.weight.fill_(7)
    assert store.load_final(model) == RESULT
    assert torch.equal(model.tied.weight, torch.full((3, 3), 7.0))
