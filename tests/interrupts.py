"""Ctrl-C as a script sees it: pytest's event loop has a handler of its own, put aside meanwhile."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from branchwork.lang.mock import MockClient


@contextmanager
def interrupt_when_busy(client: MockClient) -> Iterator[None]:
    """Press it once, as soon as a call is live."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    stop = threading.Event()

    def watch() -> None:
        while not client.open_streams and not stop.wait(0.005):
            pass
        if not stop.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(5)
        signal.signal(signal.SIGINT, before)
