"""Every block of Python in `docs/torch.md` and `docs/jax.md` runs by itself, and prints what its comments say."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
RANKS = "init_process_group"


def blocks(name: str) -> dict[str, str]:
    """Return the blocks of a document by the number of their first line."""
    text = (DOCS / name).read_text(encoding="utf-8")
    return {
        f"{name} line {text[: found.start()].count(chr(10)) + 2}": found[1]
        for found in re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    }


BLOCKS = blocks("torch.md") | blocks("jax.md")
ALONE = [
    pytest.param(name, marks=pytest.mark.tensorflow if "jax" in name else ())
    for name, block in BLOCKS.items()
    if RANKS not in block
]


def promised(block: str) -> str:
    """Return what the comments behind `print(...)` say; a line in a loop of two is printed twice."""
    lines = []
    for found in re.finditer(r"^( *)print\(.*\)  # (.*)", block, re.MULTILINE):
        lines += [found[2].replace(", ", " ") if "[" not in found[2] else found[2]] * (2 if found[1] else 1)
    return "\n".join(lines)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata
@pytest.mark.parametrize("name", ALONE)
def test_a_block_of_the_document_runs_and_prints_what_it_says(
    name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    block = BLOCKS[name]
    for library in ("torch", "jax", "torchdata", "orbax"):
        if f"import {library}" in block or f"from {library}" in block:
            pytest.importorskip(library)
    if "orbax" in block:  # it does not work in a process in which blockbuster was used
        done = subprocess.run([sys.executable, "-c", block], stdout=subprocess.PIPE, text=True, check=True)
        assert done.stdout.strip() == promised(block) != ""
        return
    exec(compile(block, f"docs/{name}", "exec"), {"__name__": "__main__"})
    assert capfd.readouterr().out.strip() == promised(block) != ""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


def test_ranks_get_the_same_number_of_batches_or_join(tmp_path: Path) -> None:
    """Two processes run the program of the document, as torchrun starts them."""
    pytest.importorskip("torch")
    (block,) = [each for each in BLOCKS.values() if RANKS in each]
    program = tmp_path / "program.py"
    program.write_text(block, encoding="utf-8")
    given = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    env = {**os.environ, **given, "PYTHONPATH": str(DOCS.parent)}
    running = [
        subprocess.Popen([sys.executable, program], env={**env, "RANK": rank}, stdout=subprocess.PIPE, text=True)
        for rank in "01"
    ]
    printed = [each.communicate(timeout=100)[0].split() for each in running]
    assert [each.returncode for each in running] == [0, 0]
    assert [each[1::2] for each in printed] == [["4", "3", "4"], ["4", "3", "2"]]
