"""The files of one run: a set for each subset, all rows, items and curves, and the record."""

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from filelock import Timeout

from pe_bench.errors import SavingError
from pe_bench.results.item_files import read_items, write_items
from pe_bench.results.items import Items
from pe_bench.results.journal import Journal
from pe_bench.results.layout import (
    CURVES,
    EXECUTING,
    ITEMS,
    JOURNAL,
    RECORD,
    ROWS,
    RUN_LOCK,
    SUBSETS,
    WORK,
)
from pe_bench.results.learning_curves import (
    OF_A_RUN,
    CurveKey,
    LearningCurve,
    read_curve_file,
    write_curve_file,
)
from pe_bench.results.measurement import CSV_COLUMNS, Measurement
from pe_bench.results.record import RunRecord
from pe_bench.results.record_parts import Cost
from pe_bench.results.row_files import read_measurements, write_rows
from pe_bench.results.run_data import read_run_rows
from pe_bench.results.store import owner_of, read_record
from pe_bench.system.files import saving, slug, write_atomic
from pe_bench.system.locks import hold
from pe_bench.system.sealed import (
    DamagedError,
    read_if_intact,
    read_sealed,
    set_aside,
    write_sealed,
)
from pe_bench.system.time_limit import TimeLimit
from pe_bench.task import Evaluation


@dataclass(frozen=True)
class RunFolder:
    """Reader and writer of the files of a run.

    Attributes:
        path: path of the folder.
        labels: values of columns that are equal in all rows of the run.
    """

    path: Path
    labels: Mapping[str, Any]

    def make(self) -> None:
        """Make the folder; rename a file in its place."""
        if self.path.exists() and not self.path.is_dir():
            set_aside(DamagedError(self.path, "is not the folder of a run"))
        with saving(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def work(self, subset: str) -> Path:
        """Return the folder for the training of a subset."""
        return self.path / WORK / slug(subset)

    def remove_work(self) -> None:
        """Remove the files that only an unfinished run needs."""
        shutil.rmtree(self.path / WORK, ignore_errors=True)

    def journal(self, subset: str, sample: int, limit: TimeLimit | None = None) -> Journal:
        """Return the journal of a subset's evaluation.

        Args:
            subset: name of the subset.
            sample: index of the evaluation, from 0; an encoding that draws positions is evaluated
                several times.
            limit: time limit of the run; None: no limit.
        """
        name = f"{slug(subset)}-{sample}" if sample else slug(subset)
        path = self.path / JOURNAL / f"{name}.jsonl"
        return Journal(path, owner=f"{owner_of(self.path)}/{name}", limit=limit)

    def write_subset(
        self,
        subset: str,
        rows: Sequence[Measurement],
        items: Sequence[Items],
        cost: Mapping[str, Any],
        curves: Mapping[CurveKey, LearningCurve],
    ) -> None:
        """Write the files of a subset; its cost, written last, seals the other files."""
        files = [self._file(subset, ".csv"), self._file(subset, ".parquet")]
        self._write_rows(files[0], rows)
        write_items(files[1], items)
        if curves:
            files.append(self._file(subset, ".curves.parquet"))
            write_curve_file(files[2], curves, OF_A_RUN)
        write_sealed(self._file(subset, ".json"), cost, owner=self._owner(subset), files=files)

    def recall_cost(self, subset: str) -> dict[str, Any] | None:
        """Return the cost of a measured subset; None: its rows or items are missing or damaged."""
        path = self._file(subset, ".json")
        return read_if_intact(lambda: read_sealed(path, owner=self._owner(subset), kind=Cost))

    def read_subsets(self, subsets: Sequence[str]) -> Evaluation:
        """Return the rows and items of measured subsets."""
        rows: list[Measurement] = []
        items: list[Items] = []
        for subset in subsets:
            rows += read_measurements(self._file(subset, ".csv"))
            items += read_items(self._file(subset, ".parquet"))
        return Evaluation(rows, items=items)

    def read_curves(self, subsets: Sequence[str]) -> dict[CurveKey, LearningCurve]:
        """Return the learning curves of measured subsets."""
        curves: dict[CurveKey, LearningCurve] = {}
        for subset in subsets:  # subsets of the same training have the same curve
            curves |= read_curve_file(self._file(subset, ".curves.parquet"), OF_A_RUN)
        return curves

    def is_finished(self, subsets: Sequence[str]) -> bool:
        """Return whether the run is finished and undamaged, with all of these subsets."""
        path = self.path / RECORD
        if read_if_intact(lambda: read_sealed(path, owner=owner_of(self.path))) is None:
            return False
        return self.looks_finished(subsets)

    def looks_finished(self, subsets: Sequence[str]) -> bool:
        """Return the same as `is_finished`, but do not rename damaged files."""
        record = self.find_finished()
        return record is not None and {*record.subsets} >= {*subsets}

    def find_finished(self) -> RunRecord | None:
        """Return the record of a finished and undamaged run; None: it is not finished."""
        try:
            read_sealed(self.path / RECORD, owner=owner_of(self.path))
        except (OSError, DamagedError):
            return None
        record = read_record(self.path)
        return record if record.status == "done" else None

    @contextlib.contextmanager
    def executing(self) -> Iterator[None]:
        """Mark the run as being executed within the context, for `has_died`."""
        with saving(self._mark):
            self._mark.touch()
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                self._mark.unlink()

    def has_died(self) -> bool:
        """Return whether the process that last executed the run was killed, or killed itself."""
        if self._mark.exists():
            with contextlib.suppress(Timeout, OSError, SavingError), hold(self.path / RUN_LOCK, 0):
                return True  # no process executes it
        return False

    @property
    def _mark(self) -> Path:
        return self.path / EXECUTING

    def has_begun(self) -> bool:
        """Return whether an earlier call has left files of an unfinished run."""
        return any((self.path / name).is_dir() for name in (WORK, SUBSETS, JOURNAL))

    def read(self) -> RunRecord | None:
        """Return the record of the run; None: there is none."""
        return read_record(self.path) if (self.path / RECORD).is_file() else None

    def next_order(self) -> int:
        """Return an order for a record that follows all runs of this encoding and task."""
        return 1 + max((other.order for other in self.siblings()), default=0)

    def come_last(self) -> None:
        """Let reports show this finished run, instead of a later run of other code."""
        own = read_record(self.path)
        for other in self.siblings():
            edited = other.encoding_version != own.encoding_version
            if edited and other.settings_digest == own.settings_digest and other.age > own.age:
                self._write_record(replace(own, order=self.next_order()))
                return

    def write(self, record: RunRecord, found: Evaluation | None = None) -> None:
        """Write rows, items and the learning curves of the subsets, and then the record."""
        if found:
            write_items(self.path / ITEMS, found.items)
            self._write_rows(self.path / ROWS, found.rows)
            curves = self.read_curves(record.subsets)
            if curves:
                write_curve_file(self.path / CURVES, curves, OF_A_RUN)
        self._write_record(record)

    def copy_numbers_of(self, record: RunRecord, other: RunRecord) -> None:
        """Write the rows, items and curves of another run for this run, and the record."""
        rows = [{**row, "run": self.path.name} for row in read_run_rows(other)]
        write_rows(self.path / ROWS, rows, CSV_COLUMNS)
        for name in (ITEMS, CURVES):
            assert other.folder is not None
            if (other.folder / name).exists():
                write_atomic(self.path / name, (other.folder / name).read_bytes())
        self._write_record(record)

    def _write_record(self, record: RunRecord) -> None:
        files = [self.path / name for name in (ROWS, ITEMS, CURVES)]
        write_sealed(
            self.path / RECORD,
            record.to_json(),
            owner=owner_of(self.path),
            files=[file for file in files if file.exists()],
        )

    def _write_rows(self, path: Path, rows: Sequence[Measurement]) -> None:
        labels = {**self.labels, "run": self.path.name}
        write_rows(path, [labels | asdict(row) for row in rows], CSV_COLUMNS)

    def _file(self, subset: str, suffix: str) -> Path:
        return self.path / SUBSETS / f"{slug(subset)}{suffix}"

    def _owner(self, subset: str) -> str:
        """Return the key of the seal of a subset's files."""
        return f"{owner_of(self.path)}/{subset}"

    def siblings(self) -> list[RunRecord]:
        """Return the records of all runs of this encoding and task, including this one."""
        return [read_record(path.parent) for path in self.path.parent.glob(f"*/{RECORD}")]
