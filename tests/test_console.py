"""Lines, progress bars and signals, with clocks and streams made by hand."""

import errno
import io
import os
import pickle
import signal
import sys
import threading
from typing import Any

import pytest

from pe_bench.system import console
from pe_bench.system.console import Bar, View, info, progress, showing, silence, warn, write
from pe_bench.system.stopping import SIGNALS, stopping_cleanly


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(console, "time", made)
    return made


def test_lines_go_to_both_streams(capsys: pytest.CaptureFixture[str]) -> None:
    with showing(View("a | ")):
        info("one\x1b[2J")
        with showing(View("b | ")):
            assert warn("two") == "two"
        info("three")
    info("four")
    found = capsys.readouterr()
    assert found.out == "a | one\N{REPLACEMENT CHARACTER}[2J\na | three\nfour\n"
    assert found.err == "b | pe-bench: two\n"


def test_a_bar_speaks_every_ten_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    bar = progress("train", 10, initial=2, unit="item")
    clock.now += 9.9
    bar.update()
    assert capsys.readouterr().err == ""
    clock.now += 0.1
    bar.update(3)
    assert capsys.readouterr().err == "train: 6/10 items, 0:10 left\n"  # four in ten seconds
    clock.now += 9
    bar.note = "loss 1.5"
    bar.update()
    assert capsys.readouterr().err == ""
    clock.now += 1
    bar.update()
    assert capsys.readouterr().err == "train: 8/10 items, loss 1.5, 0:07 left\n"
    clock.now += 50
    bar.update(2)  # the end is shown on closing
    assert capsys.readouterr().err == "" and not bar.closed
    with bar:
        pass
    bar.close()
    found = capsys.readouterr()
    assert found.err == "train: 10/10 items, loss 1.5, in 1:10\n" and found.out == ""


@pytest.mark.parametrize(
    ("seconds", "note", "line"),
    [
        (9.0, "", ""),
        (9.0, "n", "a: 0/3 steps, n, in 0:09\n"),
        (10.0, "", "a: 0/3 steps, in 0:10\n"),
    ],
)
def test_the_end_of_a_short_bar_without_a_note_is_not_shown(
    clock: Clock, capsys: pytest.CaptureFixture[str], seconds: float, note: str, line: str
) -> None:
    with progress("a", 3) as bar:
        bar.note = note
        clock.now += seconds
    assert capsys.readouterr().err == line


def test_a_bar_without_finished_units_has_no_estimate(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    bar = Bar("a", 5, 2)
    assert bar.seconds_left is None
    clock.now += 12
    bar.update(0)
    assert capsys.readouterr().err == "a: 2/5 steps\n"
    bar.update()
    assert bar.seconds_left == 24.0


def test_a_bar_of_another_process_keeps_its_age(clock: Clock) -> None:
    bar = Bar("a", 5, 1, "item")
    bar.note = "n"
    clock.now += 7
    content = pickle.dumps(bar)
    clock.now = 5.0
    again: Bar = pickle.loads(content)
    assert again.seconds == 7 and again.shown == again.started
    names = ("title", "total", "done", "unit", "note", "closed")
    assert [getattr(again, name) for name in names] == [getattr(bar, name) for name in names]
    again.update(2)
    assert again.seconds_left == 7


class Failing(io.StringIO):
    """A stream whose writes raise an error."""

    def __init__(self, error: OSError, handle: int) -> None:
        super().__init__()
        self.error = error
        self.handle = handle

    def write(self, text: str) -> int:
        raise self.error

    def fileno(self) -> int:
        return self.handle


@pytest.mark.parametrize("error", [BrokenPipeError(), OSError(errno.ENOSPC, "no space left")])
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_stream_that_fails_is_silenced(
    error: OSError, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silenced: list[Any] = []
    stream = Failing(error, 0)
    monkeypatch.setattr(console, "silence", silenced.append)
    with monkeypatch.context() as patch:
        patch.setattr(sys, name, stream)
        write("text", stream)
    assert silenced == [stream]
    told = isinstance(error, BrokenPipeError) or name == "stderr"
    line = "pe-bench: cannot write to standard output (no space left): further lines are lost\n"
    assert capsys.readouterr().err == ("" if told else line)


def test_what_is_silenced_is_discarded() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading) as reader, os.fdopen(writing, "w") as stream:
        write("before", stream)
        silence(stream)
        write("after", stream)
        stream.close()
        assert reader.read() == "before"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_characters_that_a_stream_lacks_become_question_marks(encoding: str) -> None:
    content = io.BytesIO()
    with io.TextIOWrapper(content, encoding=encoding) as stream:
        write("nope ↑\n", stream)
        assert content.getvalue() == b"nope ?\n"


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> dict[int, Any]:
    """Replace the handlers of this process by made ones; one signal is ignored."""
    made: dict[int, Any] = dict.fromkeys(SIGNALS, signal.SIG_DFL)
    made[signal.SIGINT] = signal.default_int_handler
    made[signal.SIGHUP] = signal.SIG_IGN
    monkeypatch.setattr(signal, "getsignal", made.__getitem__)
    monkeypatch.setattr(signal, "signal", made.__setitem__)
    return made


def test_the_first_signal_interrupts_and_the_second_ends(
    handlers: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []

    def leave(code: int) -> None:
        codes.append(code)
        raise SystemExit

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(KeyboardInterrupt), stopping_cleanly() as received:
        assert handlers[signal.SIGHUP] is signal.SIG_IGN
        handlers[signal.SIGTERM](signal.SIGTERM, None)
    assert received == [signal.SIGTERM]
    for number in (signal.SIGINT, signal.SIGTERM):  # the handlers stay
        with pytest.raises(SystemExit):
            handlers[number](number, None)
    assert codes == [130, 143] and received == [signal.SIGTERM]


def test_without_a_signal_the_handlers_come_back(handlers: dict[int, Any]) -> None:
    before = dict(handlers)
    with stopping_cleanly() as received:
        assert handlers != before
    assert handlers == before and received == []


def test_other_threads_handle_no_signals(handlers: dict[int, Any]) -> None:
    before = dict(handlers)
    inside = []

    def work() -> None:
        with stopping_cleanly():
            inside.append(dict(handlers))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [before]
