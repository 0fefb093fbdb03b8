"""Ctrl-C while the main thread waits in TensorFlow, in processes of their own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import cache
from typing import Any

import pytest

from tests.engine.processes import PRELUDE

TENSORFLOW = r"""
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import collections, gc, json
gc.disable()  # jax, which keras imports, has the collector call a function, and Python drops a Ctrl-C inside one
import numpy as np
import tensorflow as tf
from asyncfeed.bridges import interrupt
from asyncfeed.bridges.tf_bridge import bridge

bridge()  # before any other thread asks for it
feeds, go_on = [], threading.Event()

async def stays(x):
    if x == 8 and not go_on.is_set():
        await asyncio.to_thread(go_on.wait)
    return x

def hanging(stuck=waits):  # waits for ever after three items
    return af.items(range(9)).map(stuck)

def main_frame():
    return sys._current_frames()[threading.main_thread().ident]

def main_sleeps():
    with open(f"/proc/self/task/{threading.main_thread().native_id}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "S"

def in_tensorflow():
    return main_sleeps() and main_frame().f_globals["__name__"].startswith("tensorflow.")

def function_of(thread):
    frame = sys._current_frames().get(thread.ident)  # kept in no variable: all frames would be in a cycle then
    return None if frame is None else frame.f_code.co_name

def pump_waits(number):
    # For the feed: nothing is in its hand, on the way to TensorFlow.
    pumps = [thread for thread in threading.enumerate() if thread.name == f"asyncfeed-tf-{number}-pump"]
    return any(function_of(thread) == "_wait_and_take" for thread in pumps)

def main_waits():
    # All that there was has been taken, and nothing comes: not in an operation of a step of training.
    iterations = list(bridge()._iterations.items())
    done = {number: each for number, each in iterations if not each._ended and not each._finished}
    taken = {number: each for number, each in done.items() if each._run.feed.stats().batches == 3}
    return bool(taken) and in_tensorflow() and all(
        pump_waits(number) and int(tf.raw_ops.QueueSizeV2(handle=each._queue)) == 0
        for number, each in taken.items()
    )

def tell(case, **facts):
    print(json.dumps({"case": case, **facts}), flush=True)
"""

ENDS = r"""
import keras

def draw(dataset):
    for _ in dataset:
        pass

@tf.function(autograph=False)
def total(dataset):
    return dataset.reduce(tf.constant(0, tf.int64), lambda sum, item: sum + item)

def fit(convert):
    batches = hanging().map(lambda n: (np.full((2, 1), n, np.float32), np.zeros((2, 1), np.float32)))
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(convert(batches), epochs=2, verbose=0)

def dataset():
    return hanging().to_tf(on_open=feeds.append)

ways = {
    "next": lambda: draw(dataset()),
    "map and prefetch": lambda: draw(dataset().map(lambda x: x + 1).prefetch(2)),
    "parallel map, batch and prefetch": lambda: draw(
        dataset().map(lambda x: x + 1, num_parallel_calls=2).batch(2).prefetch(tf.data.AUTOTUNE)
    ),
    "zip and repeat": lambda: draw(tf.data.Dataset.zip(dataset(), dataset()).repeat(2)),
    "numpy": lambda: draw(dataset().as_numpy_iterator()),
    "function": lambda: total(dataset()),
    "fit": lambda: fit(lambda batches: batches.to_tf(on_open=feeds.append)),
    "fit to_keras": lambda: fit(lambda batches: batches.to_keras(on_open=feeds.append)),
}

def use(way):
    sent, came, times = [], [], []
    def watch(over):
        seen = 0
        while seen < 5:
            time.sleep(0.001)
            if over.is_set():
                return
            seen = seen + 1 if main_waits() else 0
        sent.append(time.perf_counter())
        os.kill(os.getpid(), signal.SIGINT)
    for _ in range(ROUNDS):
        feeds.clear()
        over = threading.Event()
        thread = threading.Thread(target=watch, args=(over,))
        thread.start()
        try:
            way()
            came.append("the end")
        except KeyboardInterrupt:
            times.append(time.perf_counter() - sent[-1])
            came.append("KeyboardInterrupt")
        except BaseException as error:
            came.append(repr(error))
        try:
            over.set()
            thread.join()
            left = threads_left()
            list(feeds[-1])
        except af.ClosedError as error:
            closed = str(error)
        except KeyboardInterrupt:
            came.append("another")
    times.sort()
    assert times, came
    return {
        "came": collections.Counter(came), "left": left, "closed": closed, "runs": len(bridge()._iterations),
        "median": times[len(times) // 2], "worst": times[-1],
    }

for name, way in ways.items():
    tell(name, **use(way))
"""

LATER = r"""
def ends(way):
    try:
        way()
        return "the end"
    except BaseException as error:
        return type(error).__name__

@tf.function(autograph=False)
def total(dataset):
    return dataset.reduce(tf.constant(0, tf.int64), lambda sum, item: sum + item)

def heard():
    while not bridge().interrupts._unhandled:
        time.sleep(0.001)

def sends(_):
    os.kill(os.getpid(), signal.SIGINT)
    heard()

scalar = tf.TensorSpec((), tf.int64)
never = af.items(range(9)).map(lambda _: threading.Event().wait(60))

# -- before a function's first run is there, or a later one

total(af.items(range(3)).to_tf())  # so that it is traced
came = ends(lambda: total(af.items(range(9)).map(waits).to_tf(output_signature=scalar, on_open=sends)))
tell("before the run", came=came, left=threads_left(), pending=len(bridge().interrupts._unhandled))

opened = []
def second(feed):
    opened.append(feed)
    if len(opened) == 2:
        sends(feed)
data = af.items(range(3)).to_tf(on_open=second)
came = ends(lambda: total(data.repeat()))
tell("between two runs", came=came, runs=len(opened), left=threads_left())

# -- with items ready, in a function that goes on to draw

def full():
    return all(int(tf.raw_ops.QueueSizeV2(handle=each._queue)) for each in bridge()._iterations.values())

ready = af.items(range(1000)).repeat().to_tf()
interrupt_when(lambda: bridge()._iterations and in_tensorflow() and full())
tell("items ready", came=ends(lambda: total(ready)), left=threads_left())
"""

ELSE = r"""
def other_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()

def wakeup_fd():
    held = signal.set_wakeup_fd(-1)
    if held != -1:
        signal.set_wakeup_fd(held)
    return held

def watchers():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ctrl-c")]

def interrupted(function):
    try:
        function()
    except KeyboardInterrupt:
        return True
    return False

def three(iterator):
    return [int(next(iterator)) for _ in range(3)]

def draw_rest(iterator):
    return [int(item) for item in iterator]

# -- off the main thread

other_thread(lambda: af.items(range(3)).to_tf())
tell("off the main thread", fd=wakeup_fd(), watchers=watchers())

# -- a loop has the place

async def service():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: None)
    before = wakeup_fd()
    af.items(range(3)).to_tf()
    return before != -1 and before == wakeup_fd()

kept = asyncio.run(service())
freed = wakeup_fd()
iterator = iter(hanging().to_tf())
interrupt_when(main_waits)
tell("a loop", kept=kept, freed=freed, after=interrupted(lambda: draw_rest(iterator)), watchers=watchers())
del iterator

# -- a fork

child = os.fork()
if child == 0:
    os._exit(3 if wakeup_fd() == -1 else 4)
tell("a fork", code=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), parent=wakeup_fd() != -1)

# -- items are ready: the main thread is in Python, or in TensorFlow

def full():
    return all(int(tf.raw_ops.QueueSizeV2(handle=each._queue)) for each in bridge()._iterations.values())

iterator = iter(af.items(range(9)).to_tf())
first = three(iterator)
def sleeps():
    interrupt_when(lambda: main_sleeps() and main_frame().f_code.co_name == "wait" and full())
    threading.Event().wait()
looked, look = threading.Event(), interrupt._main_is_in_tensorflow
def looks():
    found = look()
    looked.set()
    return found
interrupt._main_is_in_tensorflow = looks
caught = interrupted(sleeps)
looked.wait()  # Until then a run that is drawn from again may be ended.
interrupt._main_is_in_tensorflow = look
tell("in Python", caught=caught, items=first + draw_rest(iterator))

iterator = iter(af.items(range(9)).to_tf())
first = three(iterator)
release, heard = threading.Event(), bridge().interrupts._waits
@tf.function(autograph=False)
def long_step():
    return tf.py_function(lambda: release.wait() and 1, [], tf.int64)
def step():
    interrupt_when(lambda: in_tensorflow() and full())
    long_step()
def asked():
    # The step ends after each of the runs was asked to, and left alone.
    yield from heard()
    release.set()
bridge().interrupts._waits = asked
caught = interrupted(step)
bridge().interrupts._waits = heard
tell("in a step", caught=caught, items=first + draw_rest(iterator))

# -- a handler of the user's

iterator = iter(af.items(range(12)).map(stays, concurrency=1).to_tf())
noted = []
signal.signal(signal.SIGINT, lambda *_: noted.append(1))
def go():
    seen = 0
    while seen < 20:
        time.sleep(0.001)
        seen = seen + 1 if in_tensorflow() else 0
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.05)  # were anything broken for it, it would be by now
    go_on.set()
threading.Thread(target=go, daemon=True).start()
tell("a handler", items=draw_rest(iterator), noted=len(noted))
signal.signal(signal.SIGINT, signal.default_int_handler)

# -- a second one, while the first is handled

def second():
    try:
        interrupt_when(main_waits)
        draw_rest(hanging().to_tf())
    except KeyboardInterrupt:
        interrupt_when(main_waits)
        draw_rest(hanging().to_tf())
tell("a second", caught=interrupted(second), left=threads_left(), then=draw_rest(af.items(range(3)).to_tf()))
"""


@cache
def cases(script: str, rounds: int = 4) -> dict[str, dict[str, Any]]:
    """Run a script; return what it tells of each case."""
    source = f"{PRELUDE}\nROUNDS = {rounds}\n{TENSORFLOW}{script}"
    quiet = ["-W", "ignore::DeprecationWarning", "-W", "ignore::UserWarning", "-W", "ignore::RuntimeWarning"]
    command = [sys.executable, "-X", "faulthandler", *quiet, "-c", source]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler says where it hangs
        out, err = process.communicate()
        raise AssertionError(f"it hangs, after\n{out}:\n{err}") from None
    assert process.returncode == 0, f"{out}\n{err}"
    assert "MISMATCH" not in out + err
    return {(told := json.loads(line)).pop("case"): told for line in out.splitlines()}


@pytest.mark.parametrize(
    "way",
    [
        "next",
        "map and prefetch",
        "parallel map, batch and prefetch",
        "zip and repeat",
        "numpy",
        "function",
        "fit",
        "fit to_keras",
    ],
)
def test_ctrl_c_ends_a_wait_with_exactly_one_keyboard_interrupt_and_the_run(way: str) -> None:
    told = cases(ENDS)[way]
    print(f"{way}: median {told['median'] * 1e3:.1f} ms, worst {told['worst'] * 1e3:.1f} ms")
    assert told["came"] == {"KeyboardInterrupt": 4}
    assert (told["left"], told["runs"]) == (0, 0)
    assert "the feed was stopped" in told["closed"]


@pytest.mark.parametrize("moment", ["before the run", "between two runs", "items ready"])
def test_ctrl_c_ends_a_function_that_does_not_wait_yet(moment: str) -> None:
    told = cases(LATER)[moment]
    assert (told["came"], told["left"]) == ("KeyboardInterrupt", 0)
    assert told.get("pending", 0) == 0
    assert told.get("runs", 2) == 2


def test_ctrl_c_at_random_moments_ends_each_way_to_iterate() -> None:
    """A small number of the tries of `tests/bridges/ctrl_c.py`."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.bridges.ctrl_c", "--rounds", "4"]
    command += ["--ways", "next,function", "--moments", "before the first,in the middle"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    for line in ended.stdout.splitlines():
        # On Python 3.11 the `KeyboardInterrupt` may come one step later, as "1 more".
        assert set(json.loads(line)["came"]) <= {"KeyboardInterrupt", "the end, 1 more"}, ended.stdout


def test_off_the_main_thread_nobody_listens() -> None:
    assert cases(ELSE)["off the main thread"] == {"fd": -1, "watchers": []}


def test_a_loop_that_listens_is_left_alone_until_it_closes() -> None:
    told = cases(ELSE)["a loop"]
    assert told == {"kept": True, "freed": -1, "after": True, "watchers": ["ctrl-c-of-asyncfeed"]}


def test_a_forked_child_does_not_listen() -> None:
    assert cases(ELSE)["a fork"] == {"code": 3, "parent": True}


@pytest.mark.parametrize("where", ["in Python", "in a step"])
def test_a_run_with_items_ready_goes_on(where: str) -> None:
    assert cases(ELSE)[where] == {"caught": True, "items": list(range(9))}


def test_nothing_is_broken_for_a_handler_of_the_users() -> None:
    assert cases(ELSE)["a handler"] == {"items": list(range(12)), "noted": 1}


def test_a_second_ctrl_c_ends_a_wait_in_the_handling_of_the_first() -> None:
    assert cases(ELSE)["a second"] == {"caught": True, "left": 0, "then": [0, 1, 2]}
