"""Cores and memory are what the container allows, not what the machine has: control groups of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import asyncfeed as af
from asyncfeed.machine import LAUNCHERS, usable_cores, usable_memory

GB = 1 << 30
V2 = "30 23 0:26 {top} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n"
V1_MEMORY = "33 32 0:29 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
V1_CPU = "34 32 0:30 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
NO_LIMIT_V1 = "9223372036854771712\n"


@pytest.fixture(autouse=True)
def _a_large_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 64 * GB // 4096}
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sysconf", sizes.__getitem__)


def system(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def v2(root: Path, group: str, files: dict[str, str], top: str = "/") -> Path:
    """Write a system of version 2; `files` are those below the place where the groups are mounted."""
    proc = {"proc/self/cgroup": f"0::{group}\n", "proc/self/mountinfo": V2.format(top=top)}
    return system(root, proc | {f"sys/fs/cgroup/{name}": text for name, text in files.items()})


def v1(root: Path, group: str, files: dict[str, str], top: str = "/") -> Path:
    """Write a system of version 1, with its two hierarchies."""
    proc = {
        "proc/self/cgroup": f"11:memory:{group}\n4:cpu,cpuacct:{group}\n1:name=systemd:/init.scope\n0::/\n",
        "proc/self/mountinfo": V1_MEMORY.format(top=top) + V1_CPU.format(top=top),
    }
    return system(root, proc | {f"sys/fs/cgroup/{name}": text for name, text in files.items()})


def test_without_groups_it_is_the_machine(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 16
    assert usable_memory(tmp_path) == 64 * GB


def test_a_system_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither affinity nor sysconf exist everywhere."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "sysconf")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores(tmp_path) == 1
    assert usable_memory(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000", 16),
        ("200000 100000", 2),
        ("150000 100000", 2),
        ("10000 100000", 1),
        ("1000000 500000", 2),
        ("6400000 100000", 16),
        ("", 16),
        ("nonsense", 16),
        ("100000 0", 16),
    ],
)
def test_a_quota_of_version_2_is_rounded_up(tmp_path: Path, text: str, cores: int) -> None:
    """Half a core more is worth a thread, and there is one at least."""
    assert usable_cores(v2(tmp_path, "/", {"cpu.max": text + "\n"})) == cores


@pytest.mark.parametrize(
    ("files", "memory"),
    [
        ({"memory.max": "max\n"}, 64 * GB),
        ({"memory.max": f"{GB}\n"}, GB),
        ({"memory.max": f"{2 * GB}\n", "memory.high": f"{GB}\n"}, GB),
        ({"memory.max": "max\n", "memory.high": "max\n"}, 64 * GB),
        ({"memory.max": f"{100 * GB}\n"}, 64 * GB),
        ({}, 64 * GB),
    ],
)
def test_memory_of_version_2(tmp_path: Path, files: dict[str, str], memory: int) -> None:
    assert usable_memory(v2(tmp_path, "/", files)) == memory


def test_the_lowest_limit_of_nested_groups_counts(tmp_path: Path) -> None:
    """A group's own limit may be higher than that of the one it is in, or be none."""
    files = {
        "memory.max": f"{32 * GB}\n",
        "pod/memory.max": f"{2 * GB}\n",
        "pod/box/memory.max": "max\n",
        "pod/box/cpu.max": "800000 100000\n",
        "pod/cpu.max": "300000 100000\n",
        "pod/other/cpu.max": "100000 100000\n",
    }
    root = v2(tmp_path, "/pod/box", files)
    assert usable_memory(root) == 2 * GB
    assert usable_cores(root) == 3


def test_version_1_has_a_hierarchy_for_each(tmp_path: Path) -> None:
    files = {
        "memory/docker/abc/memory.limit_in_bytes": f"{4 * GB}\n",
        "memory/docker/memory.limit_in_bytes": NO_LIMIT_V1,
        "cpu,cpuacct/docker/abc/cpu.cfs_quota_us": "250000\n",
        "cpu,cpuacct/docker/abc/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/docker/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/docker/cpu.cfs_period_us": "100000\n",
    }
    root = v1(tmp_path, "/docker/abc", files)
    assert usable_memory(root) == 4 * GB
    assert usable_cores(root) == 3


def test_no_limit_of_version_1(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": NO_LIMIT_V1,
        "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    root = v1(tmp_path, "/", files)
    assert usable_memory(root) == 64 * GB
    assert usable_cores(root) == 16


@pytest.mark.parametrize("group", ["/docker/abc", "/docker/abc/inner", "/", "/../other", "/elsewhere"])
def test_a_container_that_sees_its_own_group_as_the_top(tmp_path: Path, group: str) -> None:
    """The path is written from the system's top, from the container's, or lies outside of what is mounted."""
    root = v1(tmp_path, group, {"memory/memory.limit_in_bytes": f"{GB}\n"}, top="/docker/abc")
    assert usable_memory(root) == GB


def test_both_versions_at_once(tmp_path: Path) -> None:
    """Systems in between have version 2 beside some hierarchies of version 1."""
    root = v1(
        tmp_path, "/box", {"memory/box/memory.limit_in_bytes": f"{GB}\n", "unified/cpu.max": "100000 100000\n"}
    )
    mounts = root / "proc/self/mountinfo"
    mounts.write_text(mounts.read_text() + V2.format(top="/").replace("/sys/fs/cgroup", "/sys/fs/cgroup/unified"))
    assert usable_memory(root) == GB
    assert usable_cores(root) == 1


def test_a_place_with_a_space_in_its_name(tmp_path: Path) -> None:
    root = v2(tmp_path, "/", {})
    (root / "proc/self/mountinfo").write_text("30 23 0:26 / /my\\040groups rw - cgroup2 cgroup rw\n")
    system(root, {"my groups/memory.max": f"{GB}\n"})
    assert usable_memory(root) == GB


@pytest.mark.parametrize(
    ("usable", "limit"), [(None, GB), (64 * GB, GB), (GB, GB // 4), (64 << 20, 16 << 20), (1, 1)]
)
def test_the_default_limit_is_a_quarter(usable: int | None, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(af.machine, "usable_memory", lambda: usable)
    assert af.machine.default_memory_limit() == limit


@pytest.mark.parametrize(
    ("said", "processes"),
    [
        ({}, 1),
        ({"LOCAL_WORLD_SIZE": "8"}, 8),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, 4),
        ({"MPI_LOCALNRANKS": "2"}, 2),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x4)"}, 8),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x3),2"}, 1),  # which of these this machine has is not said
        ({"LOCAL_WORLD_SIZE": "2", "SLURM_STEP_TASKS_PER_NODE": "1"}, 2),  # torchrun inside srun
        ({"LOCAL_WORLD_SIZE": "0"}, 1),
        ({"LOCAL_WORLD_SIZE": "many"}, 1),
    ],
)
def test_processes_of_one_launcher_divide_cores_and_memory(
    said: dict[str, str], processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LAUNCHERS:
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(af.machine, "usable_memory", lambda: GB)
    assert usable_cores(tmp_path) == max(1, 16 // processes)
    assert af.machine.default_memory_limit() == GB // 4 // processes
    text = af.items(range(3)).explain()
    assert (f"the launcher has started {processes} processes" in text) is (processes > 1)


def test_a_process_that_is_bound_to_cores_has_these_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5})
    assert usable_cores(tmp_path) == 2
