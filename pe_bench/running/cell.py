"""One cell of the grid: skip, train, evaluate, write, resume."""

import shutil
import time
import traceback
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from pe_bench.decoder.model import Decoder
from pe_bench.errors import InputError, SavingError
from pe_bench.registry.plugins import Plugin
from pe_bench.results.journal import Journal
from pe_bench.results.reading import read_measurements, write_rows
from pe_bench.results.record import RunRecord, Status
from pe_bench.results.schema import COLUMNS, Measurement
from pe_bench.results.statistics import average
from pe_bench.running.stage import Stage
from pe_bench.running.training import Trained, train
from pe_bench.system import environment
from pe_bench.system.console import info, warn
from pe_bench.system.files import read_json, slug, write_json


@dataclass(frozen=True)
class Outcome:
    """How one cell ended.

    Attributes:
        title: encoding, task and seed.
        status: "done" also where parts are missing for a reason that the user knows.
        complaints: sentences about input that the user can mend.
        folder: of the run; None where it did not get that far.
    """

    title: str
    status: Status
    complaints: tuple[str, ...] = ()
    folder: Path | None = None


@dataclass(frozen=True)
class Cell:
    """One encoding on one task under one seed."""

    stage: Stage
    encoding: Plugin
    seed: int
    results: Path
    device: str
    precision: str

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.encoding.label} · {self.stage.label} · seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Of the run; another one wherever anything that decides the numbers is another."""
        identity = self.stage.digest(self.encoding.label, self.encoding.source)
        place = self.results / "runs" / slug(self.stage.label) / slug(self.encoding.label)
        return place / f"seed{self.seed}-{identity}"

    def run(self) -> Outcome:
        """Runs what is not done yet, under a lock: two processes never share a run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / "lock", timeout=0):
                return self._run()
        except Timeout:
            raise InputError(
                f"another process is working on {self.folder}: wait for it or stop it"
            ) from None
        except (InputError, SavingError):
            raise
        except Exception as error:
            self._record("failed", reason=traceback.format_exc())
            info(f"{self.title}: failed, {type(error).__name__}: {error}")
            return Outcome(self.title, "failed", (), self.folder)

    def _run(self) -> Outcome:
        task = self.stage.task
        reason = task.skip(self.stage.make_encoding(self.encoding))
        if reason is not None:
            self._record("skipped", reason=reason)
            complaint = warn(f"{self.title}: skipped, {reason}")
            return Outcome(self.title, "skipped", (complaint,), self.folder)
        if self._is_done():
            info(f"done already, in {self.folder}")
            return Outcome(self.title, "done", (), self.folder)
        started = time.monotonic()
        environment.reset_peak_memory(self.device)
        complaints: list[str] = []
        errors: list[str] = []
        for subset in task.subsets:
            rows = self.folder / "subsets" / f"{slug(subset)}.csv"
            if rows.exists():
                continue
            try:
                self._write(rows, self._measure(subset))
            except InputError as error:
                complaints.append(warn(f"{self.title}: {subset}: {error}"))
            except SavingError:
                raise
            except Exception as error:
                errors.append(f"{subset}: {traceback.format_exc()}")
                info(f"{self.title}: {subset} failed, {type(error).__name__}: {error}")
        parts = self._parts()
        measured = [row for rows in parts.values() for row in rows]
        self._write(self.folder / "rows.csv", [*measured, *task.summarize(measured)])
        status: Status = "done" if set(parts) >= set(task.subsets) else "failed"
        if status == "done":
            shutil.rmtree(self.folder / "work", ignore_errors=True)
        model = self.stage.make_model(self.encoding, self.seed)
        self._record(
            status,
            subsets=tuple(parts),
            reason="\n".join([*complaints, *errors]) or None,
            parameters=sum(p.numel() for p in model.parameters()),
            encoding_parameters=sum(p.numel() for p in model.encodings.parameters()),
            seconds=round(time.monotonic() - started, 3),
            peak_memory_bytes=environment.peak_memory(self.device),
            pretraining=(
                read_json(self._checkpoint(self.stage.start) / "final.json")
                if self.stage.start
                else None
            ),
            costs={
                name: read_json(self.folder / "subsets" / f"{slug(name)}.json") for name in parts
            },
        )
        return Outcome(self.title, status, tuple(complaints), self.folder)

    def _is_done(self) -> bool:
        record = read_json(self.folder / "run.json")
        done = set(record.get("subsets", ()))
        return record.get("status") == "done" and done >= set(self.stage.task.subsets)

    def _parts(self) -> dict[str, list[Measurement]]:
        """Rows of every part that has been measured, now or in an earlier call."""
        folder = self.folder / "subsets"
        paths = {name: folder / f"{slug(name)}.csv" for name in self.stage.task.subsets}
        return {name: read_measurements(path) for name, path in paths.items() if path.exists()}

    def _measure(self, subset: str) -> list[Measurement]:
        task = self.stage.task
        model, trained = self._trained(self.stage, subset if task.trains_each_subset else None)
        started = time.monotonic()
        model.eval()
        autocast = torch.autocast(self.device, torch.bfloat16, enabled=self.precision == "bf16")
        runs = []
        for draw in range(model.encoding.draws):
            model.use_draw(draw)
            name = f"{slug(subset)}-{draw}" if draw else slug(subset)
            journal = Journal(self.folder / "journal" / f"{name}.jsonl")
            with torch.inference_mode(), autocast:
                runs.append(task.evaluate(model, subset, self.seed, journal))
        seconds = round(time.monotonic() - started, 3)
        write_json(
            self.folder / "subsets" / f"{slug(subset)}.json",
            {"training": asdict(trained), "evaluation_seconds": seconds},
        )
        return average(runs)

    def _trained(self, stage: Stage, subset: str | None) -> tuple[Decoder, Trained]:
        """A model after a phase: trained now, or read from where it was trained before."""
        model = stage.make_model(self.encoding, self.seed)
        folder = self._checkpoint(stage)
        if subset is not None:
            folder = self.folder / "work" / slug(subset)
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "lock"):
            if stage.start is not None and not (folder / "final.json").exists():
                start, _ = self._trained(stage.start, None)
                model.load_state_dict(start.state_dict())
            trained = train(
                model,
                lambda step: stage.task.batch(subset, self.seed, step),
                stage.train,
                folder=folder,
                title=f"{self.encoding.label} · {subset or stage.label} · train",
                seed=self.seed,
                device=self.device,
                precision=self.precision,
            )
        return model.to(self.device), trained

    def _checkpoint(self, stage: Stage) -> Path:
        """Where a phase that serves a whole task leaves its model, for this run and later ones."""
        key = stage.digest(self.encoding.label, self.encoding.source, self.seed)
        return stage.task.setup.cache / "checkpoints" / key

    def _write(self, path: Path, measured: list[Measurement]) -> None:
        setup = self.stage.task.setup
        identity = {
            "task": self.stage.label,
            "encoding": self.encoding.label,
            "seed": self.seed,
            "preset": setup.preset,
            "protocol": setup.protocol,
            "data": self.stage.task.data_label,
            "run": self.folder.name,
        }
        write_rows(path, [identity | asdict(row) for row in measured], COLUMNS)

    def _record(self, status: Status, **more: Any) -> None:
        stage, task = self.stage, self.stage.task
        record = RunRecord(
            status=status,
            task=stage.label,
            encoding=self.encoding.label,
            encoding_source=self.encoding.source,
            seed=self.seed,
            preset=task.setup.preset,
            protocol=task.setup.protocol,
            data=task.provenance(),
            settings_digest=stage.digest(),
            settings=stage.settings,
            headline=task.headline,
            shown=dict(task.shown),
            curves=dict(task.curves),
            axes=dict(task.axes),
            figures=task.figures,
            trained_to=task.trained_to,
            train_length=stage.model.train_length,
            fine_tune_length=stage.train.length if stage.start else None,
            missing=dict(task.missing),
            environment=environment.describe(self.device),
            finished=datetime.now(UTC).isoformat(timespec="milliseconds"),
            **more,
        )
        write_json(self.folder / "run.json", record.to_json())
