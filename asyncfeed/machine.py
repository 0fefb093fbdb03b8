"""The number of cores and bytes of memory that this process may use, on its system and in its container.

On Linux a control group (cgroup) of version 1 or 2 sets the limits of a container. Groups are nested, and each one
limits every process in it. So the limit of a process is the lowest limit of its group and of all outer groups that
it can see.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

try:
    import resource

    resource.RUSAGE_THREAD  # noqa: B018 - only Linux has it
except (ImportError, AttributeError):
    resource = None  # type: ignore[assignment]

ROOT = Path("/")


def runs_python_in_parallel() -> bool:
    """Return whether threads run Python at the same time: there is no GIL."""
    return not getattr(sys, "_is_gil_enabled", lambda: True)()


def thread_waits() -> tuple[int, int]:
    """Return how often this thread has waited, and how many blocks of 512 bytes it has read from a disk.

    Waits for the GIL and for a core count. (0, 0) if the system does not say.
    """
    if resource is None:
        return 0, 0
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_nvcsw + used.ru_nivcsw, used.ru_inblock


def thread_activity(thread: int) -> tuple[float, int]:
    """Return for how many seconds a thread has computed or waited for a core, and how often it got one.

    (0, 0) if that is unknown.
    """
    try:
        computed, waited, times = Path(f"/proc/self/task/{thread}/schedstat").read_text(encoding="ascii").split()
    except (OSError, ValueError):  # another system, or the thread has ended
        return 0.0, 0
    return (int(computed) + int(waited)) * 1e-9, int(times)


LAUNCHERS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE")
"""Where launchers say how many processes of a job they have started on this machine: torchrun, mpirun of Open MPI
and of MPICH, srun. srun writes "8(x4)" if four machines have 8 each, and other texts if they differ."""


def local_processes() -> int:
    """Return how many processes of its job are on this machine, with this one, as its launcher says. Else 1."""
    for name in LAUNCHERS:
        found = re.fullmatch(r"([1-9]\d{0,5})(\(x\d+\))?", os.environ.get(name, ""))
        if found is not None:
            return int(found[1])
    return 1


def usable_cores(root: Path = ROOT) -> int:
    """Return how many cores this process may use, at least 1. A fraction of a core is rounded up.

    The processes that one launcher has started divide the cores, unless each is bound to some of them.
    """
    every = os.cpu_count() or 1
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS lacks this function
        cores = every
    shared = local_processes() if cores >= every else 1
    return max(1, min(cores, _allowed_cores(root) or cores) // shared)


def usable_memory(root: Path = ROOT) -> int | None:
    """Return how many bytes of memory this process may use. None if the system does not say."""
    limits = [_allowed_memory(root)]
    with suppress(AttributeError, ValueError, OSError):  # not every system has these names
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min((limit for limit in limits if limit is not None and limit > 0), default=None)


# Read once: a process is seldom moved to another group.
@cache
def _allowed_cores(root: Path) -> int | None:
    """Return how many cores the groups of this process allow."""
    cores = []
    for group in _groups(root, "cpu"):
        quota, period = _numbers(group / "cpu.max", 2)  # version 2: microseconds in each period
        if quota is None:
            quota, *_ = _numbers(group / "cpu.cfs_quota_us", 1)  # version 1; -1 is no limit
            period, *_ = _numbers(group / "cpu.cfs_period_us", 1)
        if quota is not None and period is not None and quota > 0 and period > 0:
            cores.append(-(-quota // period))
    return min(cores, default=None)


@cache
def _allowed_memory(root: Path) -> int | None:
    """Return how many bytes the groups of this process allow."""
    limits = []
    for group in _groups(root, "memory"):
        # Above `memory.high` the system slows a process down. Above the other limits it kills the process. Version
        # 1 writes "no limit" as a number larger than any memory.
        for name in ("memory.max", "memory.high", "memory.limit_in_bytes"):
            limits += [limit for limit in _numbers(group / name, 1) if limit is not None]
    return min((limit for limit in limits if limit > 0), default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process' control groups that may limit it, from the innermost outwards."""
    mine = _memberships(root)
    for mounted, at, version, options in _mounts(root):
        if version == "cgroup2":
            path = mine.get("")
        elif version == "cgroup" and controller in options:
            path = mine.get(controller)
        else:
            continue
        if path is None:
            continue
        top = root / at.lstrip("/")
        # A container may see its own group as the outermost one, even if the path starts at the system's root
        # group.
        inside = path.removeprefix(mounted.rstrip("/")) if f"{path}/".startswith(mounted.rstrip("/") + "/") else ""
        parts = [part for part in inside.split("/") if part]
        for depth in range(len(parts), -1, -1):
            yield top.joinpath(*parts[:depth])


def _memberships(root: Path) -> dict[str, str]:
    """Return the path of this process' group for each controller; that of version 2 is under ""."""
    found: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):  # hierarchy:controllers:path
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if path.startswith("/") and ".." not in path.split("/"):
            found |= dict.fromkeys(controllers.split(","), path)
        elif path:  # the group lies outside of the groups that this process can see
            found |= dict.fromkeys(controllers.split(","), "/")
    return found


def _mounts(root: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """Yield the group at the top of each cgroup file system, where it is mounted, its type and its options."""
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) > 4 and len(kind) > 2 and kind[0] in {"cgroup", "cgroup2"}:
            yield _unescaped(fields[3]), _unescaped(fields[4]), kind[0], kind[2].split(",")


def _unescaped(path: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), path)


def _numbers(path: Path, count: int) -> list[int | None]:
    """Return `count` whole numbers from a file. None stands for a missing number and for a word such as "max"."""
    words = (_lines(path) or [""])[0].split()
    return [int(word) if re.fullmatch(r"-?\d+", word) else None for word in [*words, *[""] * count][:count]]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:  # another system, or a file that only some groups have
        return []


def default_memory_limit() -> int:
    """Return a quarter of the memory that this process may use, in bytes, at most 1 GiB.

    The processes that one launcher has started divide the memory.
    """
    usable = usable_memory()
    return 1 << 30 if usable is None else max(1, min(1 << 30, usable // local_processes() // 4))


# These calls read files and fill the caches. Without them, the first read could block an event loop.
usable_cores()
usable_memory()
