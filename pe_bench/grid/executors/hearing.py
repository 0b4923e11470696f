"""Shows what other processes say of the cells that they work on."""

from pe_bench.grid.display import Display
from pe_bench.grid.executors.job import Answer, Line
from pe_bench.runs.run import Run
from pe_bench.system.console import Bar


class Hearing:
    """Shows lines and bars of other processes as if they were of this one.

    Args:
        display: of the grid.
    """

    def __init__(self, display: Display) -> None:
        self.display = display
        self.bars: dict[str, Bar] = {}

    def show(self, answer: Answer, run: Run) -> None:
        """Show what is said of a run."""
        view = self.display.view(run)
        if isinstance(answer, Line):
            view.line(answer.text, error=answer.error)
        elif answer == "begins":
            self.display.begin(run)
        elif isinstance(answer, Bar):
            bar = self.bars.get(run.title)
            if bar is None or bar.title != answer.title:
                bar = self.bars[run.title] = answer
            bar.done = answer.done
            bar.note = answer.note
            if answer.closed:
                del self.bars[run.title]
                view.closed(bar)
            else:
                view.moved(bar)
