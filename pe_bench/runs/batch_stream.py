"""Training batches of a phase."""

from pe_bench.batch import Batch
from pe_bench.errors import InputError
from pe_bench.runs.resolve import ResolvedTask
from pe_bench.train.batch_check import find_wrong_batch


class BatchStream:
    """Training batches of a phase, as a function of the step.

    Args:
        task: the phase's task.
        subset: the subset that the phase trains for; None: all subsets.
        seed: seed of the batches.

    Attributes:
        requested: number of batches that this process has requested.

    Raises:
        InputError: see `check_batch`.
    """

    def __init__(self, task: ResolvedTask, subset: str | None, seed: int) -> None:
        self.task = task
        self.subset = subset
        self.seed = seed
        self.requested = 0

    def __call__(self, step: int) -> Batch:
        self.requested += 1
        task = self.task.batches
        batch = task.batch(self.subset, self.seed, self.task.first_step + step)
        check_batch(batch, self.task, f"the batch of step {step}")
        return batch

    @property
    def started(self) -> bool:
        """Whether a training step is complete: the batch of the next step was requested."""
        return self.requested > 1


def check_batch(batch: Batch, task: ResolvedTask, name: str) -> None:
    """Check a batch of a task; `name` names it in messages.

    Raises:
        InputError: it does not consist of token ids in the vocabulary, or is longer than declared.
    """
    wrong = find_wrong_batch(batch, task.model.vocab_size)
    if wrong:
        raise InputError(f"{name} {wrong}")
    longest, declared = batch.tokens.shape[1], task.batches.train_length
    if longest > declared:
        raise InputError(
            f"{name} has {longest} tokens and `train_length` is {declared}, for which encodings "
            "are made: declare the length of the longest training row"
        )
