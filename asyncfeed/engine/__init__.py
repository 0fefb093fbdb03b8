"""The engine: the only home of tasks, threads and queues.

Invariants, each held by a test in `tests/engine`:

1. Every chunk that a step takes in is accounted for until it is sent on, dropped by a stage, or the run ends.
2. A step sends chunks in the order of the stream; one that is not ordered keeps to the epoch's boundaries.
3. After a chunk with `last` nothing follows on that channel.
4. Only `Run` starts tasks, only `Threads` starts threads. All tasks are in one flat group, and no task runs inside
   the call that starts it, whatever task factory the loop has.
5. No wait is a poll, and none has a time-out that decides what the consumer gets.
6. Bytes charged to the budget move with the items; they are released by the consumer taking them.
"""
