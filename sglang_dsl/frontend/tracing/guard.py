"""What a body may not do while it is traced, because a trace runs it several times and a run once more.

Python tells an audit hook of everything that leaves the process. The hook stays installed for the process's life (there is
no way to remove one) and does nothing but look at one thread-local, unless this thread is tracing. The same is done to the start of
threads, of which Python tells only in part.

Running a body under the guard, whether it is a function or a coroutine function.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

from ...ir.execution import no_models

_EFFECTS = {
    "builtins.input": "asked for input",
    "os.exec": "started a process",
    "os.fork": "started a process",
    "os.forkpty": "started a process",
    "os.posix_spawn": "started a process",
    "os.spawn": "started a process",
    "os.system": "started a process",
    "subprocess.Popen": "started a process",
    "os.mkdir": "changed the file system",
    "os.remove": "changed the file system",
    "os.rename": "changed the file system",
    "os.rmdir": "changed the file system",
    "os.link": "changed the file system",
    "os.symlink": "changed the file system",
    "os.truncate": "changed the file system",
    "os.chmod": "changed the file system",
    "os.putenv": "changed the environment",
    "os.unsetenv": "changed the environment",
}
_THREADS = (  # not every Python tells an audit hook of a new thread, and none of work for a thread that is there
    (threading.Thread, "start", "started a thread"),
    (ThreadPoolExecutor, "submit", "gave work to a thread"),
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_here = threading.local()  # .refuse: what this thread calls for each effect, while it traces
_install = threading.Lock()
_installed = False


@contextmanager
def no_effects(refuse: Callable[[str], Any]) -> Iterator[None]:
    """Inside, on this thread: `refuse(what)` is called before anything leaves the process; it raises to keep it in."""
    _install_hook()
    outer = getattr(_here, "refuse", None)
    _here.refuse = refuse
    try:
        yield
    finally:
        _here.refuse = outer


@contextmanager
def same_random() -> Iterator[Callable[[], None]]:
    """Gives a function that puts the random state back to where it is now; it is put back at the end too."""
    state = random.getstate()
    numpy = sys.modules.get("numpy")
    of_numpy = None if numpy is None else numpy.random.get_state()

    def restore() -> None:
        random.setstate(state)
        if numpy is not None:
            numpy.random.set_state(of_numpy)

    try:
        yield restore
    finally:
        restore()


def _install_hook() -> None:
    global _installed
    with _install:
        if not _installed:
            sys.addaudithook(_hook)
            for owner, name, what in _THREADS:
                setattr(owner, name, _checked(getattr(owner, name), what))
            _installed = True


def _checked(method: Callable[..., Any], what: str) -> Callable[..., Any]:
    """The method, refused in a traced body: a thread's work would be done outside of the trace, once per run of the body."""

    @wraps(method)
    def checked(*args: Any, **kwargs: Any) -> Any:
        refuse = getattr(_here, "refuse", None)
        if refuse is not None:
            refuse(what)
        return method(*args, **kwargs)

    return checked


def _hook(event: str, args: tuple[Any, ...]) -> None:
    refuse = getattr(_here, "refuse", None)
    if refuse is None:
        return
    what = _effect(event, args)
    if what:
        _here.refuse = None  # what follows of the refusal is our own work
        try:
            refuse(what)
        finally:
            _here.refuse = refuse


def _effect(event: str, args: tuple[Any, ...]) -> str:
    """What the body is about to do, or "" for what a trace may repeat."""
    if event == "open":
        path, _, flags = args
        return "" if not flags & _WRITING or _is_cache(path) else f"opened {path!r} for writing"
    if event.startswith("socket.") and event not in ("socket.gethostname", "socket.getservbyname"):
        return "used a socket"
    what = _EFFECTS.get(event, "")
    return "" if what == _EFFECTS["os.mkdir"] and any(map(_is_cache, args)) else what


def _is_cache(path: object) -> bool:
    """Whether it is Python's own cache of an import, or no file at all."""
    return isinstance(path, (str, bytes)) and ("__pycache__" in os.fsdecode(path) or os.fsdecode(path) == os.devnull)


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
