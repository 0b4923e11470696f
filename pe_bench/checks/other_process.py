"""A check that another process makes the same data of a task.

All processes of a grid must make the same rows. Hashes of strings, and thus the order of sets,
differ between processes. `python -m pe_bench.checks.other_process FILE` is the other process, see
`main`.
"""

import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import Tensor

from pe_bench.checks.findings import NotApplicable
from pe_bench.checks.task_subject import TaskSubject
from pe_bench.registry import plugins

HASH_SEEDS = ("1", "2")  # the other process gets the first one that this process does not have


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
    for phase in subject.phases:
        tensors = [*task.batch(phase, 0, 0), *task.batch(phase, 0, 1)]
        found[f"training batches of {phase}" if phase else "training batches"] = _digest(tensors)
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
    context = replace(subject.context, extends=None)
    seed = next(seed for seed in HASH_SEEDS if seed != os.environ.get("PYTHONHASHSEED"))
    path = os.pathsep.join(entry or "." for entry in sys.path)
    with TemporaryDirectory() as folder:
        file = Path(folder, "data")
        file.write_bytes(pickle.dumps((subject.plugin.given, context)))
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
    """Replace the spec and the context of a task in a file with digests of its data."""
    file = Path(path)
    spec, context = pickle.loads(file.read_bytes())
    subject = TaskSubject(plugins.load("task", spec, context.preset), context)
    file.write_text(json.dumps(digest_data(subject)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
