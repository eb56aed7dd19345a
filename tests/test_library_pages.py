"""What a process holds of its libraries must not depend on how the system has cached them."""

from __future__ import annotations

import mmap
import os
import re
import sys
from pathlib import Path

import pytest

from ramlet import _native
from ramlet.engines.gauge import ResidentGauge
from ramlet.engines.plan import Task
from ramlet.engines.torch.plan import make_plan
from ramlet.model.shape import Shape
from ramlet.runtime import settled
from ramlet.runtime.budget import Budget

LARGE = 2 << 20


def resident(name: str) -> int:
    """Bytes of a mapped file that are resident."""
    mappings = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.M)
    found = [one for one in mappings if one.split("\n", 1)[0].endswith(name)]
    return sum(int(re.search(r"^Rss:\s+(\d+) kB", one, re.M)[1]) << 10 for one in found)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_one_byte_makes_no_large_page_resident(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    with open(path, "wb") as file:
        file.write(os.urandom(LARGE) * 8)  # in one go: where the file system can, cached in pages of 2 MiB
        file.flush()
        os.fsync(file.fileno())
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapped:
        content = mapped[:]
        _native.release_file_pages()
        mapped[0]
        _native.split_file_pages([path.name])
        assert resident(str(path)) == 0
        for start in range(0, len(mapped), LARGE):
            assert mapped[start] == content[start]
        assert resident(str(path)) <= 8 * (256 << 10)
        assert mapped[:] == content


def test_a_probe_gives_back_the_heap_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of libraries that the run needs again would come back in another number."""
    given_back: list[str] = []
    monkeypatch.setattr(settled, "release_library_pages", lambda: given_back.append("libraries") or 0)
    gauge = ResidentGauge(meter=None)  # type: ignore[arg-type]  # settling measures nothing
    gauge.settle()
    assert given_back == []
    settled.settled_memory()
    assert given_back == ["libraries"]


def test_a_peak_before_the_first_step_is_part_of_the_prediction() -> None:
    shape = Shape(vocab_size=300, width=48, layers=2, heads=4, kv_heads=2, feed_forward=96, context=64)
    plan = make_plan(Task(shape, seq_len=48, batch_size=8, budget=Budget(10**9)))
    assert plan.at_least(plan.peak - 1) == plan
    higher = plan.at_least(plan.peak + 5)
    assert higher.peak == plan.peak + 5
    assert higher.choice == plan.choice
