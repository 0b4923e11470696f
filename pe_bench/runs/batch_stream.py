"""Training batches of a phase."""

from pe_bench.batch import Batch
from pe_bench.errors import InputError
from pe_bench.runs.resolve import ResolvedTask


class BatchStream:
    """Training batches of a phase, as a function of the step.

    Args:
        task: the phase's task.
        subset: the subset that the phase trains for; None: all subsets.
        seed: seed of the batches.

    Attributes:
        requested: number of batches that this process has requested.

    Raises:
        InputError: a batch is longer than the task declares.
    """

    def __init__(self, task: ResolvedTask, subset: str | None, seed: int) -> None:
        self.task = task
        self.subset = subset
        self.seed = seed
        self.requested = 0

    def __call__(self, step: int) -> Batch:
        self.requested += 1
        batch = self.task.batches.batch(self.subset, self.seed, self.task.first_step + step)
        longest, declared = batch.tokens.shape[1], self.task.batches.train_length
        if longest > declared:
            raise InputError(
                f"the batch of step {step} has {longest} tokens and `train_length` is {declared}, "
                "for which encodings are made: declare the length of the longest training row"
            )
        return batch

    @property
    def started(self) -> bool:
        """Whether a training step is complete: the batch of the next step was requested."""
        return self.requested > 1
