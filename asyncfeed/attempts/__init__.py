"""How a call is made that may fail, hang or be slow: again, for a limited time, or a second time beside the first.

* `retry.py`: when a call that failed is made again, and what a stage or a reader is told about its calls.
* `hedging.py`: when a slow call is made a second time.
* `skip.py`: how many items that failed may be left out.
* `watched.py`: a call with a deadline, and with calls beside it if it is slow.
* `alarms.py`: one timer for the deadlines of many calls. This module and `watched.py` know asyncio.

Calls of functions follow it in `engine/operators/attempts.py`.
"""
