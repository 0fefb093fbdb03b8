"""Files: what a file is, how files are listed, and who reads them.

Each thing has one place:

* `file.py`: a `File` is known and not read. It says in which store it is and which version of it was listed.
* `listing.py`, `glob.py`: from paths and patterns to files of the local disk.
* `reader.py`: what a `Store`, a `Reader` and an `AsyncReader` are.
* `local.py`, `opener.py`: the local disk. `memory.py`: bytes that are in memory already.
* `scope.py`: which reader the code of a run gets for a file. `stream.py`: the bytes of a file one after the other.

Who owns what, and when it is closed:

* A store is a value. It opens nothing, so nobody closes it.
* A run makes one reader for each store that its files are in, when the first of them is read. All stages of the
  run share it. The run closes it once, however the run ends, after all reads have ended or were given up.
* Outside a run, whoever reads makes a reader for that one use and closes it.
* A reader owns what it opens beyond one call: connections, caches. What it opens for one call it closes in that
  call, whatever happens. Whoever asks it to `open` a file, or to stream one, closes that.
* The memory that is read into belongs to the caller. A reader keeps no reference to it after the call. Memory that
  a reader returns belongs to the caller, too.
* A decoder gets bytes. It opens nothing.
"""
