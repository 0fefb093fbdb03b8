"""Every number of the engine that was tuned, with its unit in its name and what set it.

Figures come from two cores of a shared machine, so only their ratios mean something. A number that is a choice of
format, or a limit of Python's, stands with the code that needs it.
"""

from __future__ import annotations

from typing import Final

# -- how many items go on together

CHUNK_ITEMS: Final = 128
"""How many items a chunk holds at most, if a step is free to choose."""
CHANNEL_BYTES: Final = 4 << 20
"""How many bytes wait in a channel between two steps at most."""
PICKED_FIRST_ITEMS: Final = 32
"""How many items a source sends on together at first, if it only has to pick them: the first come out soon."""
PICKED_ITEMS: Final = 512
"""The same later. Each chunk costs every step on the way a turn of the loop: an item costs 1.5 us with 128 in a
chunk, and 0.9 us with 512."""
WINDOW_ITEMS: Final = 16384
"""How many items of a stage may lie between the first that was not sent and the last that was taken in. Bytes
bound them before that."""
WINDOW_EPOCH_ENDS: Final = 64
"""How many ends of epochs without items may lie among them."""
BACKLOG_ITEMS: Final = 256
"""How many items are taken in while the next step is behind. To read further ahead would help nobody."""
BACKLOG_BYTES: Final = 1 << 20
"""How many bytes these may have: memory that was not used before costs the system as much as filling it."""
TOGETHER_BYTES: Final = 4 << 20
"""How many bytes of large results are taken in together. What is taken in is worked on."""
PREFETCH_BATCHES: Final = 32
"""How many batches wait for the consumer if no `prefetch` says so. There are fewer if they are large."""
PREFETCH_SAMPLES: Final = 256
"""How many samples wait for the consumer if nothing is batched."""
READY_BYTES: Final = 1 << 20
"""How many bytes of small batches are kept ready, so that the consumer and the loop take turns less often."""
KEPT_FAILURES: Final = 1000
"""How many skipped failures are kept. All are counted."""

# -- groups of items that go to a thread or a process

GROUP_SECONDS: Final = 2e-3
"""How much work goes to a thread at a time. To go there costs 15 to 25 us, and twice that if the GIL is wanted."""
GROUP_BYTES: Final = 1 << 20
"""How many bytes of results a group has at most."""
GROUP_SHARED_FACTOR: Final = 4
"""By what groups are larger if several threads compute. The loop then has no core of its own: a group costs it
some 200 us, and it may be stopped while it has the GIL, which all others wait for. JPEGs in batches on two
cores: 2,370 a second in groups of 2 ms, 3,080 in groups of 8 ms."""
PROCESS_GROUP_SECONDS: Final = 10e-3
"""How much work goes to a process at a time. To go there costs 0.2 ms of both processes' time."""
LATE_FACTOR: Final = 4
"""A group that takes this many times as long as it should ends early. The rest of its items is taken anew."""
READY_GROUPS: Final = 1
"""How many groups are ready behind those that run, so that a thread need not wait for the loop."""
INLINE_BYTES: Final = 64 * 1024
"""How many bytes of results our own functions may make on the loop."""
SECOND_THREAD_SECONDS: Final = 50e-6
"""A sample that computes for longer than this is worth a second thread. Shorter ones only fight over the GIL: 4 KB
files in batches make 138,000 a second if one thread reads them, and 41,000 if eight do."""
WAITED_FACTOR: Final = 2
"""A sample that waits must take this many times longer to be worth a second thread. It may wait for the GIL, and
then threads make it worse."""
SURE_FACTOR: Final = 4
"""A sample that takes this many times longer than the bound needs no second look."""
BUSY_FACTOR: Final = 1.25
"""A sample that takes at most this many times the processor's time waits for nothing."""
FIRST_THREADS: Final = 32
"""How many threads a stage begins with at most. The tuner finds whether more help."""

# -- calls on the loop

FIRST_CALLS: Final = 32
"""How many calls of an async function `concurrency="auto"` begins with."""
FLAT_CALLS: Final = 4
"""How many items a `flat_map` with `concurrency="auto"` opens at a time: the next ones open while the first
streams."""
FLAT_OPEN_ITEMS: Final = 64
"""How many items of a `flat_map` may be open, or wait their turn."""
TURN_SECONDS: Final = 1e-3
"""After this time a worker whose function does not wait lets others have the loop. It may take twice as long."""
SLICE_AFTER_WAIT_ITEMS: Final = 16
"""How many items such a worker takes at most between two looks at the clock, if it has just waited."""
SLICE_ITEMS: Final = 512
"""The same if it has not."""

# -- memory

GUESS_MIN_BYTES: Final = 1 << 20
"""How many bytes a result of unknown weight is charged with at least. With more, fewer calls begin before the
first result is there if the limit is small. With less, more results exceed a small limit."""
SMALL_ITEM_BYTES: Final = 4096
"""Items that need fewer bytes than this are admitted to the budget by the chunk, and others one by one."""
SURPRISE_BYTES: Final = 4 * SMALL_ITEM_BYTES
"""A result has at least this many bytes if it could not be expected, because those before it were small."""
PACKED_FACTOR: Final = 1.25
"""Files whose contents weigh this many times as much are unpacked by reading. Each is then measured beforehand."""
AUTO_SHARES: Final = 32
"""How many calls share the memory limit if nobody said how many there will be."""
ALONE_SECONDS: Final = 0.01
"""How long the first call of a stage has for itself, so that its result tells what the others will weigh. If it
takes longer, other items are begun beside it, and `budget` says what is charged for them."""

# -- how many calls at a time: the search

STEP_FACTOR: Final = 4.0
"""By what to raise the number while nothing is known. Twice as much work for nothing is soon seen."""
LOOK_UP_FACTOR: Final = 1.25
"""By what to raise the number for a look when all is calm. A look costs little if it finds nothing."""
LOOK_DOWN_FACTOR: Final = 0.875
"""By what to lower it for a look."""
CALM_INTERVALS: Final = 8
"""How many intervals pass between two looks. The first look comes sooner."""
PAYS_SHARE: Final = 0.25
"""More calls are kept if they gain at least this share of what they could gain at best."""
EQUAL_SHARE: Final = 0.97
"""Fewer calls are as good if they do at least this share of the work."""
WORSE_SHARE: Final = 0.9
"""More calls are too many if they do less than this share of the work."""
CHANGED_RATES: Final = (0.75, 1.25)
"""A rate that leaves this range without our doing was changed by something else."""
UNLIKELY_RATES: Final = (0.6, 1.6)
"""So was one that leaves this range during a look."""
BETTER_FACTOR: Final = 1.1
"""A rate that rises by this factor by itself is a reason to look at more calls at once. The other side may allow
more now, and the calls that there are gain little from it. A smaller factor looks more often because of
noise."""

# -- how many calls at a time: what is measured

INTERVAL_SECONDS: Final = 0.01
"""How long an interval lasts at least. The clock of a loop may tick in milliseconds."""
IDLE_SHARE: Final = 0.25
"""The share of the workers' time that may be spent at rest in an interval that counts."""
HUNGRY_SHARE: Final = 0.05
"""More calls are tried only if the consumer waits for at least this share of the time. A lower value adds calls
that can gain less than that. A higher one misses calls that would pay."""
FED_SHARE: Final = 0.01
"""Fewer calls are tried only if the consumer waits for less than this share of the time."""
SPARE_FACTOR: Final = 2.0
"""How many times the average number of calls in flight to keep, if there are more. Closer to 1, calls that take
longer for a while keep the consumer waiting. Higher, more calls begin at once when the consumer makes room."""
EASE_ITEMS: Final = 512
"""How many items must pass before fewer calls are tried. The queue to the consumer is filled in one go and
emptied in another, and an average over less than both is wrong."""
PATIENCE_FACTOR: Final = 64
"""How many times as many items must pass at most, after fewer calls were too few."""
STEP_SECONDS: Final = 1.0
"""How long a step of training is assumed to last before one was seen. A higher value makes fewer calls for a first
batch that needs many rounds of them, and that batch comes later. With 0.5, 1 and 2 s, the first batch of 1,024
reads of 50 ms takes 0.96, 1.36 and 1.61 s, and 128, 64 and 32 calls are in flight."""
RETURN_FACTOR: Final = 16
"""By what each batch that was taken divides the shortest step that is believed. With a lower value, a consumer
that always waits gets its calls later. With a higher one, a queue of two batches passes for two short steps."""
WINDOW_BATCHES: Final = 8
"""How many batches the consumer takes from one mark to the next. With fewer, a short step passes for the
average. With more, it takes longer to see that steps have become shorter."""

# -- worker processes, and the end of a run

ARENA_START_BYTES: Final = 1 << 20
"""How large a new arena of shared memory is. The system gives memory only for what is written to."""
ARENA_KEEP_BYTES: Final = 16 << 20
"""An arena that grew beyond this shrinks again when what is written no longer needs it."""
ARENA_ARRAY_BYTES: Final = 4096
"""Arrays with fewer bytes than this are pickled with the rest. A buffer of its own costs 2 us more."""
WORKER_IDLE_SECONDS: Final = 300.0
"""How long an idle worker process is kept. With less, training pays a new start after a validation that takes
longer. With more, memory is held that nobody may need again: some 100 MB for each worker that imports a
framework. joblib's pool waits as long."""
WORKER_EXIT_SECONDS: Final = 5.0
"""How long worker processes may take to end when told to. Functions registered with `atexit` run meanwhile. Then
they are killed."""
KILLED_SECONDS: Final = 0.5
"""How long killed worker processes, and tasks that were cancelled again, may take to be gone."""
NOTICED_SECONDS: Final = 0.1
"""Closing a feed is reported if it holds up a loop for longer. It is the limit of asyncio's debug mode. With
less, a pipeline that closes as it should would be reported."""
CLOSED_LOOP_CANCELLATIONS: Final = 100
"""How often a coroutine is cancelled that awaits again, if its loop is closed. With more, one that never ends
holds up the closing of its loop for longer. With less, the `finally` of one with many waits is left in the
middle."""
