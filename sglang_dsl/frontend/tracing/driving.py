"""Running a body under the guard, whether it is a function or a coroutine function."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ...ir.execution import no_models
from .guard import no_effects

R = TypeVar("R")


def driven(call: Callable[[], Any], refuse: Callable[[str], Any], *, asynchronous: bool) -> Any:
    """What `call()` gives, or what its coroutine does; `refuse`: see `no_effects`."""
    if not asynchronous:
        with _kept_inside(refuse):
            return call()
    found: list[Any] = []  # a task's own result is shown in places, and showing an abstract value is asking

    async def follow() -> None:
        found.append(await call())

    with asyncio.Runner() as runner:
        runner.get_loop()  # makes its sockets before the guard stands
        with _kept_inside(refuse):
            runner.run(follow())
    return found[0]


@contextmanager
def _kept_inside(refuse: Callable[[str], Any]) -> Iterator[None]:
    """Nothing leaves the process and no model is asked."""
    with no_models(lambda what: refuse(f"{what}, and a trace asks no model")), no_effects(refuse):
        yield


def outside_of_loops(work: Callable[[], R], *, asynchronous: bool) -> R:
    """`work()`; where it drives coroutines and this thread's loop is running already, in a thread of its own."""
    if not asynchronous or not _loop_is_running():
        return work()
    found: list[R] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001  raised below, in the caller's thread
            failed.append(error)

    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


def _loop_is_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
