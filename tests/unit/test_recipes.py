"""The recipes for other libraries in docs/formats.md, as they stand there.

Each runs in a process of its own, because some of these libraries leave threads and sockets behind.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
RECIPES = {
    re.findall(r"^import (\w+)$", code, re.MULTILINE)[0]: code
    for code in re.findall(r"^```python\n(import .*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)
}
START = """
import numpy as np
X = np.random.default_rng(0).random((100, 3))
def rows_of(batches):
    return sorted(row for batch in batches for row in batch.tolist())
"""
WRITE = {
    "h5py": """
import h5py
with h5py.File("data.h5", "w") as file:
    file.create_dataset("x", data=X, chunks=(8, 3))
    file.create_dataset("label", data=np.arange(100))
""",
    "zarr": """
import zarr
zarr.create_array("data.zarr", data=X, chunks=(8, 3))
""",
    "lance": """
import lance, pyarrow as pa
lance.write_dataset(pa.table({"x": X[:, 0], "label": np.arange(100), "other": np.arange(100)}), "data.lance")
""",
    "av": """
import av
for number in range(2):
    with av.open(f"{number}.mp4", "w") as video:
        stream = video.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for shade in range(20):
            picture = np.full((32, 32, 3), 10 * shade + 5 * number, "u1")
            video.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        video.mux(stream.encode())
""",
}
CHECK = {
    "h5py": """
for batches in (list(rows), list(chunks)):
    assert rows_of(batch["x"] for batch in batches) == sorted(X.tolist())
    assert all((X[batch["label"]] == batch["x"]).all() for batch in batches)
""",
    "zarr": """
assert rows_of(rows) == rows_of(chunks) == sorted(X.tolist())
""",
    "lance": """
found = list(batches)
assert sorted(label for batch in found for label in batch["label"].tolist()) == list(range(100))
assert all((X[batch["label"], 0] == batch["x"]).all() for batch in found)
""",
    "av": """
found = list(batches)
assert [batch.shape for batch in found] == [(2, 8, 32, 32, 3)] * 2
assert abs(found[0][:, :, 0, 0, 0].astype(int) - 10 * np.arange(8)).max() < 15
""",
}


def test_these_are_the_recipes() -> None:
    assert set(RECIPES) == set(WRITE) == set(CHECK)


@pytest.mark.parametrize("library", WRITE)
def test_a_recipe_gives_all_rows(library: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    script = tmp_path / "recipe.py"
    script.write_text(START + WRITE[library] + RECIPES[library] + CHECK[library])
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
