"""Handling of stop signals: a clean stop on the first one, an immediate one on the second."""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOST = 70  # exit code of a process that cannot continue; its last line says why


@contextlib.contextmanager
def stopping_cleanly() -> Iterator[list[signal.Signals]]:
    """Turn the first stop signal into a KeyboardInterrupt, and the second into an exit.

    Ignored signals, for example under nohup, stay ignored. The handlers stay after a signal, so
    that another signal during the exit of the interpreter prints no traceback.

    Yields:
        The list of received signals.
    """
    received: list[signal.Signals] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if received:
            os._exit(128 + number)  # files are written atomically
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
    """Make a `multiprocessing` worker ignore Ctrl-C and exit when its parent exits.

    Otherwise a worker without a parent would wait for its next task forever.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        parent.join()
        os._exit(LOST)

    threading.Thread(target=watch, daemon=True).start()
