"""Imports torch with little memory, and measures what it costs before anything is trained.

    torch = load_torch(threads=2)
    base = settled_memory()             # 310 MB (ramlet.runtime.settled)
    keep_large_blocks(True)

`import torch` of the CUDA build touches 280 MB of its libraries' files, most of it only while they are loaded. Those
pages count as resident until someone needs the memory: a budget of 500 MB would be broken before the first step. So
the large libraries are loaded one by one, releasing their untouched pages after each (rust/pages.rs); the needed ones
return from the page cache as they are used, about 45 MB in a step. Peak during the import and resident memory
afterwards, in a fresh process, torch 2.11 with CUDA 13:

    import torch                      559 MB, 559 MB
    load_torch()                      375 MB, 292 MB       0.1 s more

How many pages return depends on how the system caches the files. A library that was written or read in one go, for
example by an installer, is cached in pages of up to 2 MiB, and one instruction makes such a page resident as a whole: a
step touched 23 MB of libtorch_cpu.so, but 103 MB with large pages. Other programs can turn one into the other within a
minute. So large pages are split (rust/pages.rs, 0.05 s), and pages touched by a probe are not released.

torch.optim and torch.utils.checkpoint import torch's compiler, another 80 MB, only to disable it for themselves; that
import is avoided (`_skip_compiler`).

The allocator. torch allocates every tensor with glibc. By default glibc raises its mmap threshold whenever a block is
freed, so the peak depends on the order of allocations. Measured with a model of 10M parameters in bf16 (CPU seconds per
step on one thread, and the peak beyond weights, tensors and libraries):

    micro-batch                 2048 tokens       4096 tokens
    heap, freed blocks kept     0.89 s, +33 MB    1.72 s, +75 MB      fragmentation: up to 40% of the activations
    mmap from 128 KiB           0.99 s,   0 MB    2.05 s,   0 MB      75,000 page faults per step

Huge pages (THP_MEM_ALLOC_ENABLE) improved neither, nor did a single arena. Small micro-batches are as fast per token as
large ones and fragment little, so the heap keeps freed blocks if memory allows, and returns them otherwise.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from ramlet import _native
from ramlet.engines.opening import require_torch
from ramlet.runtime.memory import resident_memory
from ramlet.runtime.settled import release_library_pages
from ramlet.runtime.threads import available_threads

_LARGE_LIBRARIES = (
    *("cudart", "c10", "cupti", "torch_cpu", "cublasLt", "cublas", "cufft", "nvJitLink", "cusparse", "cusparseLt"),
    *("nccl", "curand", "cudnn", "nvshmem_host", "torch_cuda", "torch_python"),
)
"""Each after those that it needs. Which of them exist depends on how torch was built."""


def load_torch(threads: int | None = None) -> Any:
    """Imports torch and sets its threads [default: all that this process may use]; touches no device."""
    with _interruptible():
        if "torch" not in sys.modules:
            require_torch("this engine")
            found = find_spec("torch")
            if found is not None and found.origin is not None and sys.platform.startswith("linux"):
                _load_libraries(Path(found.origin).parent)
        # Expandable segments: the GPU allocator then reserves what tensors need, without fragmentation.
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        import torch

        _skip_compiler(torch)
        # Of the libraries that a step on a CPU runs through.
        _native.split_file_pages([f"lib{name}.so" for name in ("torch_cpu", "torch_python", "c10")])
        release_library_pages()
    # torch counts the machine's cores, even if the container has fewer.
    threads = threads or min(torch.get_num_threads(), available_threads())
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    return torch


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C in the block always ends in KeyboardInterrupt: code that imports a library may swallow it (torch treats
    it as a missing numpy) or turn it into another error."""
    interrupted = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    # Leave other handlers in place; and only the main thread receives signals.
    ours = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, handle)
    try:
        yield
    except BaseException:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)
    if interrupted:
        raise KeyboardInterrupt


def _load_libraries(torch_folder: Path) -> None:
    folders = [torch_folder / "lib", *sorted((torch_folder.parent / "nvidia").glob("*/lib"))]
    for name in _LARGE_LIBRARIES:
        for library in (path for folder in folders for path in sorted(folder.glob(f"lib{name}.so*"))[:1]):
            try:
                ctypes.CDLL(str(library))
            except OSError:
                continue  # `import torch` reports the error, if it matters
            release_library_pages()


def _skip_compiler(torch: Any) -> None:
    """Keeps the optimizers and checkpointing from importing torch._dynamo: nothing here is compiled.

    Both wrap functions so that the compiler skips them, and import it for that on the first call; the wrapper caches
    the result on the function. If a version of torch caches it elsewhere, this does nothing.
    """
    from torch.utils import checkpoint

    optimizer = torch.optim.Optimizer
    methods = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    wrapped = [getattr(optimizer, name, None) for name in methods]
    for wrapper in (*wrapped, checkpoint.checkpoint, getattr(checkpoint, "_run_fn_with_dynamo_disabled", None)):
        function = getattr(wrapper, "__wrapped__", None)
        if function is not None and not hasattr(function, "__dynamo_disable"):
            setattr(function, "__dynamo_disable", function)


SPARE = 16
"""One part in this many of the budget is for the gaps that a single micro-batch may add."""


def keep_large_blocks(keep: bool) -> None:
    """Whether the allocator keeps freed tensors, which is faster, or returns them at once, which is smaller."""
    _native.keep_large_blocks(keep)


class KeptBlocks:
    """Freed tensors are kept for reuse, until the gaps between them take what the budget leaves.

    glibc finds no place for an aligned tensor where one of its size was freed (until 2.38), so gaps grow from step to
    step: a module of 12 MB had 671 MB resident after its first step, and 802 after ten.
    """

    def __init__(self, budget: int) -> None:
        self._most: int | None = budget - budget // SPARE

    @property
    def ended(self) -> bool:
        return self._most is None

    def check(self) -> None:
        """Between two micro-batches. From then on freed tensors are returned at once: slower, with the same results."""
        if self._most is not None and resident_memory() > self._most:
            self._most = None
            keep_large_blocks(False)
            _native.release_freed_memory()
