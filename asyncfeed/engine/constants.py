"""Every tuned number of the engine, with its unit in its name, its effect, and what set it.

Figures were measured on two cores of a shared machine, so only their ratios mean something. A number that is part
of a format, or a limit of Python's, is defined in the code that needs it.
"""

from __future__ import annotations

from typing import Final

# -- checkpoints

TRACKED_EVENTS: Final = 4096
"""Number of recorded chunks at which the records are brought to the consumer's place, which takes some ms."""
RECORDED_EVENTS: Final = 1 << 17
"""Maximum number of recorded chunks of a stage: about 30 MB. Fewer are between a stage and the consumer, but a
later `filter` may leave out everything for a long time. Such a run has no state."""

# -- chunks and queues

CHUNK_ITEMS: Final = 128
"""Maximum number of items in a chunk, if a step is free to choose."""
CHANNEL_BYTES: Final = 4 << 20
"""Bytes queued in a channel between two steps at which its producer waits."""
PICKED_FIRST_ITEMS: Final = 32
"""Size of the first chunk of a source that computes items by number. It is small, so that the first items come
soon. The chunks then grow to `PICKED_ITEMS`."""
PICKED_ITEMS: Final = 512
"""Maximum size of a chunk of a source that computes items by number. Each chunk costs each step a turn of the
loop. An item costs 1.5 us in chunks of 128, and 0.9 us in chunks of 512."""
WINDOW_ITEMS: Final = 16384
"""Maximum number of items of a stage between the first one that was not sent and the last one that was taken in.
The byte limits usually apply before this one."""
WINDOW_EPOCH_ENDS: Final = 64
"""Maximum number of ends of epochs in that window. It bounds a source whose epochs have no items."""
BACKLOG_ITEMS: Final = 256
"""Maximum number of items that a stage holds while the next stage is behind. Reading further ahead would not raise
throughput."""
BACKLOG_BYTES: Final = 1 << 20
"""Maximum bytes of these items. More would touch new memory, and that costs as much as filling it."""
TOGETHER_BYTES: Final = 4 << 20
"""Maximum bytes of large results that a stage takes in at a time, because it begins all items that it takes in."""
PREFETCH_BATCHES: Final = 32
"""Number of batches that the handoff holds for the consumer if no `prefetch` says so. It holds fewer if they are
large."""
PREFETCH_SAMPLES: Final = 256
"""Number of samples that the handoff holds for the consumer if nothing is batched."""
READY_BYTES: Final = 1 << 20
"""Bytes of small batches that the handoff holds. With less, the consumer and the loop take turns more often."""
KEPT_FAILURES: Final = 1000
"""Number of skipped failures that are kept. All are counted."""

# -- groups of items that go to a thread or a process

GROUP_SECONDS: Final = 2e-3
"""Work of one group that goes to a thread, in seconds. A group costs 15 to 25 us, and twice that if other threads
hold the GIL."""
GROUP_BYTES: Final = 1 << 20
"""Maximum bytes of the results of a group."""
GROUP_SHARED_FACTOR: Final = 4
"""How many times larger groups are if several threads compute. The loop then has no core of its own. A group costs
the loop about 200 us, and the system may suspend it while it holds the GIL, which all threads wait for. JPEGs in
batches on two cores: 2,370 per second in groups of 2 ms, 3,080 in groups of 8 ms."""
MANY_FACTOR: Final = 4
"""How many times more bytes a group may have if one call makes all its results. With more, a run holds more
memory. With fewer, batches of 1 MB are read with a call each, and padded batches come at 0.75 of the rate."""
PROCESS_GROUP_SECONDS: Final = 10e-3
"""Work of one group that goes to a process, in seconds. A group costs 0.2 ms in both processes."""
LATE_FACTOR: Final = 4
"""A group that takes this many times longer than planned ends early. Its remaining items form a new group."""
READY_GROUPS: Final = 1
"""Number of extra groups that are prepared while all threads are busy, so that no thread waits for the loop."""
INLINE_BYTES: Final = 64 * 1024
"""Maximum bytes of a result that asyncfeed's own functions may make on the loop. Larger results go to a thread."""
KERNEL_THREADS: Final = 2
"""Number of threads for files that the kernel reads without the GIL, io_uring. Two read 4 KB files 1.17 times as
fast as one on two cores. More were not measured on more cores."""
HEAVY_FACTOR: Final = 2
"""Groups of so many times `GROUP_BYTES` are read by one such thread. Padded files of 3 to 32 KB came no faster
with two, which held 10 MB more."""
READ_SHARE: Final = 0.75
"""Share of the time of a segment that reading must take, so that a second thread reads at the same time. With a
function of 20 us between `load` and `batch`, samples of 4 KB came 1.4 times as fast from one thread."""
SECOND_THREAD_SECONDS: Final = 50e-6
"""A stage gets a second thread if a sample computes for longer than this. With shorter samples the threads only
compete for the GIL: 4 KB files in batches give 138,000 per second with one thread, and 41,000 with eight."""
WAITED_FACTOR: Final = 2
"""Treat a sample as waiting for IO only if it took more than this many times its CPU time. A smaller gap may be
time spent waiting for the GIL, and more threads would make that worse."""
GIL_FACTOR: Final = 2
"""A thread waited for something other than the GIL if its waits were longer than this many times what the loop
waits for the GIL. Waits for the GIL were 0.5 to 1.3 times as long, beside a busy loop and beside 1 to 4 threads
that run Python. Those of a function that sleeps for 1 ms were 12 times as long."""
HELD_SHARE: Final = 0.5
"""Other threads that computed for this share of a wait perhaps held the GIL for whole switch intervals. The loop
may have got it at once by chance."""
READ_BLOCKS: Final = 4
"""So many blocks for each sample show that it was read from a disk: half a page. A few belong to a directory."""
DOUBTFUL_SHARE: Final = 0.1
"""A wait in which other threads of the process computed for this share of the time was perhaps for the GIL."""
DOUBTFUL_GROUPS: Final = 4
"""So many slow groups in a row are believed if each of them is doubtful. Beside a thread that runs Python and two
programs that use all cores, 14 of 96 runs took waits for the GIL for waits for IO, and with this 1 of 160."""
SURE_FACTOR: Final = 4
"""A sample that takes this many times longer than `SECOND_THREAD_SECONDS` is believed at once. Others must be that
slow twice in a row, because one slow group may be the machine's fault."""
BUSY_FACTOR: Final = 1.25
"""A sample that takes at most this many times its CPU time does not wait, so one thread per core is enough."""
FIRST_THREADS: Final = 32
"""Maximum number of threads that a stage begins with, unless there are more cores. The tuner finds whether more
help."""

IDLE_SECONDS: Final = 1.0
"""Threads that were not needed for this long end. With less, stages whose calls come in bursts start threads anew:
with 100 calls at a time that sleep for 1 ms, that took 15 us an item, a fifth of all."""
HUNG_SECONDS: Final = 0.05
"""If a function has not moved for this time, while others wait for its place, one of them begins beside it."""
HUNG_SHARE: Final = 0.1
"""A function has not moved if it computed for less than this share of the time. A thread that waits for the GIL
wakes every 5 ms, which is the switch interval. One that wakes for less than this share of that waits for something
else."""

# -- calls on the loop

FIRST_CALLS: Final = 32
"""Number of calls of an async function that `concurrency="auto"` begins with. It counts requests, if a call makes
several."""
FEWEST_BATCHES: Final = 4
"""Number of calls that it begins with at least if each reads a batch of files. The files of one batch end at
different times, and with fewer batches the store would wait for the last ones."""
BATCHED_REQUESTS: Final = 1024
"""Maximum number of requests in calls that each read a batch: twice the number of single requests. A batch keeps
its call until its slowest file is there, and most of its requests have been answered by then."""
FLAT_CALLS: Final = 4
"""Number of items that a `flat_map` with `concurrency="auto"` opens at a time. The next ones open while the first
one streams."""
FLAT_OPEN_ITEMS: Final = 64
"""Maximum number of items of a `flat_map` that are open, or wait for their turn."""
TURN_SECONDS: Final = 1e-3
"""A worker whose function does not wait lets other tasks run after this time. It may take twice as long."""
SLICE_AFTER_WAIT_ITEMS: Final = 16
"""Maximum number of items that a worker takes between two looks at the clock, if it has just waited."""
SLICE_ITEMS: Final = 512
"""Maximum number of items that a worker takes between two looks at the clock otherwise."""

# -- memory

GUESS_MIN_BYTES: Final = 1 << 20
"""Minimum bytes charged for a call before the first result is weighed. With more, fewer calls begin before the
first result if the limit is small. With less, more results exceed a small limit."""
SMALL_ITEM_BYTES: Final = 4096
"""Items of fewer bytes than this are admitted to the budget by the chunk, and others one by one."""
SURPRISE_BYTES: Final = 4 * SMALL_ITEM_BYTES
"""A stage of small results weighs its results again after a result of more bytes than this."""
PACKED_FACTOR: Final = 1.25
"""If results weigh more than this many times their files, reading unpacks the files. Each further file is measured
before it is read."""
AUTO_SHARES: Final = 32
"""Number of calls that share the memory limit before the first result, if `concurrency="auto"`."""
ALONE_SECONDS: Final = 0.01
"""How long the first call of a stage runs alone, so that its result tells what others will weigh. If it takes
longer, other calls begin beside it."""
LIKELY_BYTES: Final = 32 << 20
"""Few results of a slow call are larger. So many calls as have room for such a result begin beside the first one.
With less, larger results exceed a small limit by more. With more, stages of slow calls begin later."""
HEAVY_BYTES: Final = 32 << 20
"""A stage that holds more than this, and more than the memory limit, is named in a warning."""
LOOK_SECONDS: Final = 0.05
"""How often the threads look at the memory of the process. Giving back 400 MB takes 8 ms, on one thread."""
GROWN_BYTES: Final = 64 << 20
"""Freed memory is given back if the process has grown by this. With less, it is given back and taken again more
often."""
GROWN_SHARE: Final = 0.125
"""The same as a share of the memory of the process: in a large one malloc has more to walk through."""
WEIGHT_CLASS_BITS: Final = 4
"""Weights in bytes form a class if their numbers of bits, divided by this, are equal: they differ by less than 16
times. The items of a class share an estimate of their results. With more bits, a light item with a heavy result
makes heavier items seem huge. With fewer, more items must be seen before the weight of a result is predicted."""

# -- the tuner's search for the number of calls at a time

STEP_FACTOR: Final = 4.0
"""Factor of a step up while nothing is known. Whether that much more work has any effect shows soon."""
LOOK_UP_FACTOR: Final = 1.25
"""Factor of a probe upwards when the rate is stable. A probe costs little if it finds nothing."""
LOOK_DOWN_FACTOR: Final = 0.875
"""Factor of a probe downwards."""
CALM_INTERVALS: Final = 8
"""Number of intervals between two probes. The first probe after a search comes after half as many."""
PAYS_SHARE: Final = 0.25
"""An increase is kept if it gains at least this share of the largest possible gain."""
EQUAL_SHARE: Final = 0.97
"""Fewer calls count as equally good if they reach at least this share of the rate."""
WORSE_SHARE: Final = 0.9
"""More calls count as too many if they reach less than this share of the rate."""
CHANGED_RATES: Final = (0.75, 1.25)
"""If the rate leaves this range, relative to the last one, while the number of calls stays the same, something
else has changed."""
UNLIKELY_RATES: Final = (0.6, 1.6)
"""The same during a probe. The range is wider, because a probe itself changes the rate."""
BETTER_FACTOR: Final = 1.1
"""If the rate rises by this factor without a change of the number of calls, the tuner probes upwards at once. The
store may now allow more calls, although the present calls gain little from that. A smaller factor makes the tuner
react to noise."""

# -- what the tuner measures

LEAST_ITEMS: Final = 32
"""Number of items from which a rate can be told. A call that makes several requests counts as several items."""
LEAST_CALLS: Final = 4
"""Number of such calls from which a rate can be told."""
INTERVAL_SECONDS: Final = 0.01
"""Minimum length of an interval. The clock of a loop may tick in milliseconds."""
IDLE_SHARE: Final = 0.25
"""An interval counts only if workers were parked for at most this share of their time."""
HUNGRY_SHARE: Final = 0.05
"""More calls are tried only if the consumer waits for at least this share of the time. A lower value adds calls
that can gain less than that. A higher value misses calls that would pay."""
FED_SHARE: Final = 0.01
"""Fewer calls are tried only if the consumer waits for at most this share of the time."""
SPARE_FACTOR: Final = 2.0
"""The tuner keeps at most this many times the average number of calls in flight. With a value closer to 1, the
consumer waits when calls become slower for a while. With a higher value, more calls begin at once when the
consumer makes room."""
EASE_ITEMS: Final = 512
"""Minimum number of items before fewer calls are tried. The queue to the consumer fills and empties in turns, so
an average over less than both is wrong."""
PATIENCE_FACTOR: Final = 64
"""Each time fewer calls were too few, twice as many items must pass before the next try, up to this many times
as many."""
STEP_SECONDS: Final = 1.0
"""Assumed duration of a training step before one was seen. With a higher value, a first batch that needs many
rounds of calls gets fewer calls, and comes later. With 0.5, 1 and 2 s, the first batch of 1,024 reads of 50 ms
takes 0.96, 1.36 and 1.61 s, and 128, 64 and 32 calls are in flight."""
RETURN_FACTOR: Final = 16
"""Each batch that the consumer takes divides the shortest step that is believed by this factor. With a lower
value, a consumer that always waits gets its calls later. With a higher value, a queue of two batches looks like
two short steps."""
WINDOW_BATCHES: Final = 8
"""Number of batches that the consumer takes between two marks. With fewer, one short step is taken for the
average. With more, it takes longer to see that steps have become shorter."""

# -- worker processes, and the end of a run

ARENA_START_BYTES: Final = 1 << 20
"""Size of a new arena of shared memory. The system provides memory only for the pages that are written to."""
ARENA_KEEP_BYTES: Final = 16 << 20
"""An arena that grew beyond this size shrinks again when it is no longer needed."""
ARENA_ARRAY_BYTES: Final = 4096
"""Arrays of fewer bytes than this are pickled with the rest. A separate buffer costs 2 us more."""
BLOCK_ARRAY_BYTES: Final = 1 << 16
"""Arrays of results of at least this many bytes are shown to the parent in the memory that the worker wrote. The
processor time was 0.89 of that with a copy for arrays of 64 KB, 0.78 for 128 KB, 0.75 for 1 MB."""
BLOCKS_BYTES: Final = 32 << 20
"""Memory that a worker process has in blocks, in use or free. Further results are copied. With less, more results
are copied if the consumer is slow. With more, more memory is free after that: with 64 MB, a stage of two processes
that returns arrays of 64 KB had 60 MB more, and took as much processor time."""
BLOCKS_FEW: Final = 4
"""A worker process may have this many blocks of any size."""
BLOCK_AFTER_COPIES: Final = 2
"""Number of arrays that are copied before another block is made. A new block costs as much as several copies. With
fewer, short runs spend more on blocks than they save. With more, it takes longer until nothing is copied."""
BLOCKS_KEPT_BYTES: Final = 16 << 20
"""Free blocks that a worker process keeps for the next run. With less, short runs make more blocks anew."""
BLOCKS_MOST: Final = 1024
"""Number of blocks that a process maps. Further results are copied. The system allows 65,530 maps to a process."""
BLOCK_DESCRIPTORS_SHARE: Final = 8
"""The part of the file descriptors of a process that blocks may have: 1/8, so 128 of the usual 1,024. With more,
the program's own files may find none left."""
WORKER_IDLE_SECONDS: Final = 300.0
"""How long an idle worker process is kept. With less, training has to start new ones after a validation that takes
longer. With more, memory is held that may never be needed again: about 100 MB for each worker that imports a
framework. joblib's pool waits as long."""
WORKER_EXIT_SECONDS: Final = 5.0
"""How long worker processes may take to end when told to. After that they are killed. Functions registered with
`atexit` run during this time."""
KILLED_SECONDS: Final = 0.5
"""How long a run waits for worker processes that it has killed, and for tasks that it has cancelled again."""
NOTICED_SECONDS: Final = 0.1
"""Closing a feed is reported if it blocks a loop for longer than this, which is the limit of asyncio's debug mode.
With less, pipelines that close as they should would be reported."""
CLOSED_LOOP_CANCELLATIONS: Final = 100
"""How many times a coroutine of a closed loop is cancelled, if it awaits again each time. With more, a coroutine
that never ends blocks the closing of its loop for longer. With less, a `finally` block with many awaits is not
completed."""
AHEAD_ITEMS: Final = 64
"""Maximum number of small items that leave the last queue together. Consumers draw them without its lock."""
AHEAD_FEWEST: Final = 4
"""Fewer are taken one by one."""
AHEAD_BYTES: Final = 1024
"""Maximum bytes of each of them. They no longer count as in flight."""
