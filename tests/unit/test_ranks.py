"""`shard()` without numbers: it finds the rank of this process, says where, and never guesses."""

from __future__ import annotations

import json
import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import asyncfeed as af
from asyncfeed.ranks import LAUNCHERS, find_rank, torch_rank

CLUSTER = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}
VARIABLES = ["TF_CONFIG", "RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID"]
MODULES = ["tensorflow", "torch", "torch.distributed", "jax", "jax._src.distributed"]


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin each test as a process that no launcher started and that imported no framework."""
    for name in (*VARIABLES, *(each for rank, counts in LAUNCHERS for each in (rank, *counts))):
        monkeypatch.delenv(name, raising=False)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)


def set_all(monkeypatch: pytest.MonkeyPatch, **variables: Any) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))


def tf_config(kind: str, index: Any, cluster: Any = CLUSTER) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def torch(rank: int, count: int, *, initialized: bool = True, available: bool = True) -> Any:
    return SimpleNamespace(
        is_available=lambda: available,
        is_initialized=lambda: initialized,
        get_rank=lambda: rank,
        get_world_size=lambda: count,
    )


def jax(rank: int, count: int, *, initialized: bool = True) -> Any:
    return SimpleNamespace(
        distributed=SimpleNamespace(is_initialized=lambda: initialized),
        process_index=lambda: rank,
        process_count=lambda: count,
    )


def tensorflow(resolver: Any, *, in_scope: bool = True) -> Any:
    strategy = SimpleNamespace(cluster_resolver=resolver)
    return SimpleNamespace(
        distribute=SimpleNamespace(has_strategy=lambda: in_scope, get_strategy=lambda: strategy)
    )


def resolver(kind: str | None, index: int | None, cluster: Any = CLUSTER) -> Any:
    return SimpleNamespace(
        task_type=kind, task_id=index, cluster_spec=lambda: SimpleNamespace(as_dict=lambda: cluster)
    )


def found() -> tuple[int, int, str]:
    rank = find_rank()
    return rank.index, rank.count, rank.said


# -- where the rank is found


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TF_CONFIG": tf_config("chief", 0)}, (0, 3, "TF_CONFIG")),
        ({"TF_CONFIG": tf_config("worker", 1)}, (2, 3, "TF_CONFIG")),
        ({"TF_CONFIG": tf_config("worker", "1", {"worker": ["a:1", "b:1"]})}, (1, 2, "TF_CONFIG")),
        ({"RANK": 3, "WORLD_SIZE": 8}, (3, 8, "RANK and WORLD_SIZE")),
        ({"SLURM_PROCID": 3, "SLURM_NTASKS": 8}, (3, 8, "SLURM_PROCID and SLURM_NTASKS")),
        (
            {"SLURM_PROCID": 3, "SLURM_NTASKS": 8, "SLURM_STEP_NUM_TASKS": 4},
            (3, 4, "SLURM_PROCID and SLURM_STEP_NUM_TASKS"),
        ),
        (
            {"OMPI_COMM_WORLD_RANK": 0, "OMPI_COMM_WORLD_SIZE": 2},
            (0, 2, "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"),
        ),
    ],
)
def test_the_variables_of_a_launcher_say_the_rank(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, Any], expected: tuple[int, int, str]
) -> None:
    set_all(monkeypatch, **variables)
    assert found() == expected


@pytest.mark.parametrize(
    ("name", "module", "expected"),
    [
        ("torch.distributed", torch(1, 4), (1, 4, "torch.distributed")),
        ("jax", jax(2, 4), (2, 4, "jax.distributed")),
        ("tensorflow", tensorflow(resolver("worker", 0)), (1, 3, "the strategy of tf.distribute")),
    ],
)
def test_a_framework_that_is_initialised_says_the_rank(
    monkeypatch: pytest.MonkeyPatch, name: str, module: Any, expected: tuple[int, int, str]
) -> None:
    monkeypatch.setitem(sys.modules, name, module)
    assert found() == expected


def test_an_older_jax_is_asked_whether_it_has_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    older = jax(1, 2)
    older.distributed = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "jax", older)
    with pytest.raises(af.PipelineError, match="nothing says"):
        find_rank()
    state = SimpleNamespace(global_state=SimpleNamespace(client=object()))
    monkeypatch.setitem(sys.modules, "jax._src.distributed", state)
    assert found() == (1, 2, "jax.distributed")


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("torch.distributed", torch(0, 1, initialized=False)),
        ("torch.distributed", torch(0, 1, available=False)),
        ("jax", jax(0, 1, initialized=False)),
        ("tensorflow", tensorflow(None)),
        ("tensorflow", tensorflow(resolver("worker", 0), in_scope=False)),
        ("tensorflow", tensorflow(resolver(None, None))),
        ("tensorflow", tensorflow(resolver("worker", 0, {}))),
        ("tensorflow", SimpleNamespace()),  # it is being imported
    ],
)
def test_a_framework_that_was_told_nothing_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, name: str, module: Any
) -> None:
    """It takes each process for the only one."""
    monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(af.PipelineError, match="nothing says which rank"):
        af.items(range(9)).shard()
    set_all(monkeypatch, RANK=1, WORLD_SIZE=2)
    assert list(af.items(range(4)).shard()) == [1, 3]


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"RANK": 1},
        {"WORLD_SIZE": 2},
        {"RANK": "", "WORLD_SIZE": 2},
        {"TF_CONFIG": "{}"},
        {"TF_CONFIG": json.dumps({"task": {"type": "worker", "index": 0}})},
        {"SLURM_NTASKS": 4},
    ],
)
def test_a_process_that_knows_no_rank_is_not_taken_for_the_only_one(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, Any]
) -> None:
    """The error says what to write if it is."""
    set_all(monkeypatch, **variables)
    with pytest.raises(
        af.PipelineError, match=r"nothing says .* write shard\(0, 1\), or set RANK=0 and WORLD_SIZE=1"
    ):
        af.items(range(9)).shard()
    set_all(monkeypatch, RANK=0, WORLD_SIZE=1, TF_CONFIG="")
    assert list(af.items(range(3)).shard()) == [0, 1, 2]


# -- several answers


def test_a_process_group_says_more_than_the_variables_it_was_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may start processes of its own, which inherit the variables."""
    monkeypatch.setitem(sys.modules, "torch.distributed", torch(1, 2))
    set_all(monkeypatch, RANK=0, WORLD_SIZE=1)
    assert found() == (1, 2, "torch.distributed")


def test_answers_that_agree_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", jax(2, 3))
    set_all(monkeypatch, TF_CONFIG=tf_config("worker", 1), RANK=2, WORLD_SIZE=3, SLURM_PROCID=2, SLURM_NTASKS=3)
    assert found() == (2, 3, "TF_CONFIG")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"TF_CONFIG": tf_config("worker", 1), "RANK": 0, "WORLD_SIZE": 3},
            r"rank 2 of 3 \(TF_CONFIG\) and rank 0 of 3 \(RANK and WORLD_SIZE\) do not agree",
        ),
        (
            {"RANK": 0, "WORLD_SIZE": 1, "SLURM_PROCID": 5, "SLURM_NTASKS": 8},
            r"rank 0 of 1 \(RANK and WORLD_SIZE\) and rank 5 of 8 \(SLURM_PROCID and SLURM_NTASKS\) do not agree",
        ),
        ({"RANK": 1, "WORLD_SIZE": 8, "SLURM_PROCID": 5, "SLURM_NTASKS": 8}, "do not agree: write shard"),
        (
            {"SLURM_PROCID": 1, "SLURM_NTASKS": 2, "OMPI_COMM_WORLD_RANK": 0, "OMPI_COMM_WORLD_SIZE": 2},
            "do not agree",
        ),
    ],
)
def test_answers_that_differ_are_an_error_that_names_both(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, Any], message: str
) -> None:
    set_all(monkeypatch, **variables)
    with pytest.raises(af.PipelineError, match=message):
        af.items(range(9)).shard()


@pytest.mark.parametrize(
    "launcher",
    [
        {"SLURM_PROCID": 1, "SLURM_NTASKS": 4},  # srun torchrun --nproc-per-node 2
        {"SLURM_PROCID": 0, "SLURM_NTASKS": 1},
        {"SLURM_PROCID": 5, "SLURM_NTASKS": 8, "TORCHELASTIC_RUN_ID": "none"},  # torchrun has its own numbers
    ],
)
def test_a_launcher_that_starts_another_one_does_not_contradict_it(
    monkeypatch: pytest.MonkeyPatch, launcher: dict[str, Any]
) -> None:
    set_all(monkeypatch, RANK=3, WORLD_SIZE=8, **launcher)
    assert found() == (3, 8, "RANK and WORLD_SIZE")


# -- answers that make no sense


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "two", "WORLD_SIZE": 3}, "RANK and WORLD_SIZE says 'two' of '3'"),
        ({"RANK": 3, "WORLD_SIZE": 3}, r"rank 3 of 3 \(RANK and WORLD_SIZE\): ranks are counted from 0 to 2"),
        ({"RANK": -1, "WORLD_SIZE": 3}, "counted from 0"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG is not as TensorFlow defines it"),
        ({"TF_CONFIG": "[]"}, "TF_CONFIG is not as"),
        ({"TF_CONFIG": json.dumps({"cluster": CLUSTER, "task": {"type": "worker"}})}, "'index'"),
        ({"TF_CONFIG": tf_config("worker", None)}, "TF_CONFIG says|not as TensorFlow"),
        ({"TF_CONFIG": tf_config("ps", 0)}, "this process is ps 0, which has no part of the training"),
        ({"TF_CONFIG": tf_config("evaluator", 0)}, "evaluator 0"),
    ],
)
def test_an_answer_that_makes_no_sense_is_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, Any], message: str
) -> None:
    set_all(monkeypatch, **variables)
    with pytest.raises(af.PipelineError, match=message):
        af.items(range(9)).shard()


# -- what is said


def test_the_log_and_the_description_say_which_part_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    set_all(monkeypatch, SLURM_PROCID=3, SLURM_NTASKS=8)
    with caplog.at_level(logging.INFO, "asyncfeed"):
        part = af.items(range(16)).shard(uneven="drop")
        af.items(range(16)).shard(0, 2)
    assert repr(part) == "items(range(0, 16)).shard(3, 8, uneven='drop')"
    assert [record.getMessage() for record in caplog.records] == [
        "shard: this process is rank 3 of 8 (SLURM_PROCID and SLURM_NTASKS)"
    ]


def test_no_framework_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, RANK=0, WORLD_SIZE=2)
    find_rank()
    assert not {"tensorflow", "torch", "jax"} & {*sys.modules}


def test_a_dataset_of_torch_asks_torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, SLURM_PROCID=3, SLURM_NTASKS=8)
    assert torch_rank() is None
    set_all(monkeypatch, RANK=1, WORLD_SIZE=2)
    rank = torch_rank()
    assert rank is not None
    assert (rank.index, rank.count) == (1, 2)
