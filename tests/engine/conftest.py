"""What every test of the engine gets beside the rest: an error where the engine blocks a loop."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, BlockBusterFunction

ALSO = (
    "os.open",
    "os.readv",
    "os.preadv",
    "os.pread",
    "os.scandir",
    "io.open",
    "builtins.open",
    "subprocess.Popen.__init__",
)
"""What blocks, is called by us, and is not known to BlockBuster."""


@pytest.fixture(autouse=True, scope="package")
def detector() -> Iterator[BlockBuster]:
    """Raise `BlockingError` from whatever reads, waits for a lock or starts a process on a loop, called by us."""
    detector = BlockBuster("asyncfeed", excluded_modules=["asyncfeed.testing"])
    for name in ALSO:
        detector.functions[f"also {name}"] = BlockBusterFunction(
            None, name, scanned_modules="asyncfeed", excluded_modules=["asyncfeed.testing"]
        )
    for function in detector.functions.values():
        # `files`, `table` and `open(path=...)` read when they are called, and say so: that is the caller's affair.
        function.can_block_in("asyncfeed/reading/listing.py", "expand").can_block_in(
            "asyncfeed/tables.py", "table"
        ).can_block_in("asyncfeed/state/saving.py", {"alone", "checked", "read"})
        # A run that never began frees its file where it is closed or dropped. Other runs do so on a thread.
        function.can_block_in("asyncfeed/state/lock.py", "_unlock")
        # If the program has handlers of signals, a state is made on a thread, in 0.1 ms.
        function.can_block_in("asyncfeed/engine/interruptions.py", "calmly")
        # Measuring coverage takes a lock of its own wherever a file is entered for the first time.
        function.can_block_in("coverage/collector.py", "lock_data")
    detector.activate()
    yield detector
    detector.deactivate()
