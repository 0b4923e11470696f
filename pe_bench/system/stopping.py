"""Stop on a signal: cleanly on the first one, at once on a second."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOST = 70  # exit code of a process that cannot go on; its last line says why


@contextlib.contextmanager
def stopping_cleanly() -> Iterator[list[signal.Signals]]:
    """Turn the first signal to stop into a KeyboardInterrupt, and the second into an exit.

    A signal that is ignored, as under nohup, stays so. After a signal the handlers stay, so that
    another one while the interpreter ends is no traceback.

    Yields:
        The signals that have come.
    """
    received: list[signal.Signals] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)  # all that is written is whole at any moment
        received.append(signal.Signals(number))
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield received
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, stop)
    try:
        yield received
    finally:
        if not received:
            for number, handler in before.items():
                signal.signal(number, handler)


def follow_parent() -> None:
    """Let a process that `multiprocessing` has started leave Ctrl-C to its parent, and end with it.

    A worker whose parent is gone would wait for its next task for ever.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        parent.join()
        os._exit(LOST)

    threading.Thread(target=watch, daemon=True).start()
