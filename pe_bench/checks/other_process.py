"""A check that another process makes the same data of a task.

All processes of a grid must make the same rows. Hashes of strings, and thus the order of sets,
differ between processes. `python -m pe_bench.checks.other_process FILE` is the other process, see
`main`.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from torch import Tensor

from pe_bench.checks.findings import NotApplicable
from pe_bench.checks.task_subject import TaskSubject
from pe_bench.config import TrainConfig
from pe_bench.registry import plugins
from pe_bench.system.schema import read_as
from pe_bench.task import TaskContext

HASH_SEEDS = ("1", "2")  # the other process gets the first one that this process does not have


@dataclass(frozen=True)
class Request:
    """The task that another process makes: its spec, and the fields of its context."""

    spec: str
    preset: str
    protocol: str
    train: TrainConfig
    data: str | None
    tokenizer: str
    cache: str
    subsets: tuple[str, ...] | None
    untrained: bool
    hold_out: bool

    @classmethod
    def of(cls, subject: TaskSubject) -> Self:
        """Return the request for a task that starts from no other task."""
        context = subject.context
        return cls(
            spec=subject.plugin.given,
            preset=context.preset,
            protocol=context.protocol,
            train=subject.task.train,
            data=None if context.data is None else str(context.data),
            tokenizer=context.tokenizer,
            cache=str(context.cache),
            subsets=context.subsets,
            untrained=context.untrained,
            hold_out=context.hold_out,
        )

    def make(self) -> TaskSubject:
        """Return the task."""
        context = TaskContext(
            preset=self.preset,
            protocol=self.protocol,
            train=self.train,
            data=None if self.data is None else Path(self.data),
            tokenizer=self.tokenizer,
            cache=Path(self.cache),
            subsets=self.subsets,
            untrained=self.untrained,
            hold_out=self.hold_out,
        )
        return TaskSubject(plugins.load("task", self.spec, self.preset), context)


def processes(subject: TaskSubject) -> str | None:
    """Another process makes the same batches and items."""
    if subject.context.start is not None:
        raise NotApplicable("it starts from another task")
    own = digest_data(subject)
    other = _ask(subject)
    different = [name for name, digest in own.items() if other.get(name) != digest]
    if not different:
        return None
    return (
        f"{' and '.join(different)} differ in another process: they must not depend on hash() of a "
        "string, the order of a set or os.getpid()"
    )


def digest_data(subject: TaskSubject) -> dict[str, str]:
    """Return a digest of two training batches and of the items, by name for messages."""
    task = subject.task
    found = {}
    for subset in subject.model_subsets:
        tensors = [*task.batch(subset, 0, 0), *task.batch(subset, 0, 1)]
        found[f"training batches of {subset}" if subset else "training batches"] = _digest(tensors)
    if not task.measures_time:
        for subset, observed in subject.observed.items():
            found[f"items of {subset}"] = _digest(observed.inputs)
    return found


def _digest(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(repr(tuple(tensor.shape)).encode())
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _ask(subject: TaskSubject) -> dict[str, str]:
    """Return the digests that another process computes.

    Raises:
        NotApplicable: the other process fails.
    """
    seed = next(seed for seed in HASH_SEEDS if seed != os.environ.get("PYTHONHASHSEED"))
    path = os.pathsep.join(entry or "." for entry in sys.path)
    with TemporaryDirectory() as folder:
        file = Path(folder, "request.json")
        file.write_text(json.dumps(asdict(Request.of(subject))), encoding="utf-8")
        ended = subprocess.run(
            [sys.executable, "-P", "-m", __name__, str(file)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed},
        )
        if ended.returncode:
            last = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
            words = "; ".join([f"another process ends with exit code {ended.returncode}", *last])
            raise NotApplicable(words)
        answer: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    return answer


def main(path: str) -> None:
    """Replace the request in a file with digests of the task's data."""
    file = Path(path)
    request: Request = read_as(Request, json.loads(file.read_text(encoding="utf-8")))
    subject = request.make()
    file.write_text(json.dumps(digest_data(subject)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
