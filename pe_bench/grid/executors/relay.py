"""Handling of messages from several workers: lines, bars, and the outcomes of runs."""

from collections.abc import Hashable, Sequence

from pe_bench.errors import SavingError
from pe_bench.grid.display import Display
from pe_bench.grid.executors.executor import Tried
from pe_bench.grid.executors.work import Answer, Event, Line, SavingFailed
from pe_bench.grid.planned_run import PlannedRun
from pe_bench.runs.outcome import Outcome
from pe_bench.system.console import Bar


class Relay:
    """Display of the messages of workers about the runs of a grid.

    Workers report a run as done if another worker or another command has finished it. These two
    cases can only be distinguished when all workers have tried every run.

    Args:
        runs: the runs.
        display: display of the grid.
    """

    def __init__(self, runs: Sequence[PlannedRun], display: Display) -> None:
        self.runs = runs
        self.display = display
        self.left = set(range(len(runs)))
        self._worker_of: dict[int, Hashable] = {}
        self._found: dict[int, list[Line | Bar | Outcome]] = {}
        self._bars: dict[int, Bar] = {}

    def hear(self, worker: Hashable, answer: Answer) -> list[Tried]:
        """Show an answer of a worker, and return the run that ends with it, if any.

        Raises:
            SavingError: the worker could not save a result.
        """
        if isinstance(answer, SavingFailed):
            raise SavingError(answer.sentence)
        if not isinstance(answer, Event):
            return []
        if answer.what == "begins":
            self._worker_of[answer.index] = worker
            self.display.begin(self.runs[answer.index].run)
            return []
        if self._worker_of.get(answer.index) != worker:
            self._found.setdefault(answer.index, []).append(answer.what)
            return []
        return self._show(answer.index, answer.what)

    def end(self) -> list[Tried]:
        """Return the runs that are left after all workers have tried them."""
        ended: list[Tried] = []
        for index in sorted(self.left):
            said = self._found.get(index, [])
            for number, what in enumerate(said):
                if what not in said[:number]:  # every worker sends the same messages
                    ended += self._show(index, what)
        ended += [(self.runs[index], None) for index in sorted(self.left)]
        return ended

    def died(self, worker: Hashable, reason: str) -> list[Tried]:
        """Record the death of a worker: its current run has failed.

        If the worker had no run, the first run that no worker has begun and none has found done
        counts as failed: it may have killed the worker, and would kill the next one too.
        """
        own = [index for index in self.left if self._worker_of.get(index) == worker]
        free = []
        for index in sorted(self.left):
            is_done = any(isinstance(what, Outcome) for what in self._found.get(index, []))
            if index not in self._worker_of and not is_done:
                free.append(index)
        for index in own or free[:1]:
            self.left.discard(index)
            run = self.runs[index].run
            return [(self.runs[index], run.record_death(reason))]
        return []

    def _show(self, index: int, what: Line | Bar | Outcome) -> list[Tried]:
        run = self.runs[index].run
        view = self.display.view(run)
        if isinstance(what, Outcome):
            if index not in self.left:
                return []
            self.left.discard(index)
            return [(self.runs[index], what)]
        if isinstance(what, Line):
            view.line(what.text, error=what.error)
            return []
        bar = self._bars.get(index)
        if bar is None or bar.title != what.title:
            bar = self._bars[index] = what
        bar.done = what.done
        bar.note = what.note
        if what.closed:
            del self._bars[index]
            view.closed(bar)
        else:
            view.moved(bar)
        return []
