"""The door through which training imports torch, and what torch costs before anything is trained.

    torch = load_torch(threads=2)
    base = settled_memory()             # 310 MB, and what of it can be given back was
    keep_large_blocks(True)

`import torch` of the CUDA build touches 280 MB of its libraries' files, most of it only while they are loaded. Those
pages count as resident until someone needs the memory: a budget of 500 MB would be broken before the first step. Here
the large libraries are loaded one by one and their untouched pages given back after each (rust/pages.rs); what is
needed comes back from the page cache as it is used, some 45 MB in a step. Peak while importing and resident afterwards,
in a fresh process, torch 2.11 with CUDA 13:

    import torch                      559 MB, 559 MB
    load_torch()                      375 MB, 292 MB       0.1 s more

How many come back depends on how the system caches the files. A library that was written or read in one go, as by an
installer, is cached in pages of up to 2 MiB, and one instruction makes all of such a page resident: of libtorch_cpu.so
a step touched 23 MB, and 103 MB where it was cached so. What other programs do turns the one into the other within a
minute. So large pages are split (rust/pages.rs, 0.05 s), and what a probe has touched is not given back.

torch.optim and torch.utils.checkpoint load torch's compiler, another 80 MB, only to tell it to look away; here it is
not loaded for that (`_leave_compiler_out`).

The allocator. torch takes every tensor from glibc. Left alone, glibc raises the size from which it takes a block
straight from the system whenever one is freed, so the peak depends on the order of things. Measured over a model of 10M
parameters in bf16 (CPU seconds a step on one thread, and the peak beyond weights, tensors and libraries):

    blocks of                   2048 tokens       4096 tokens
    its heap, kept              0.89 s, +33 MB    1.72 s, +75 MB      gaps between blocks: up to 40% of the activations
    the system, from 128 KiB    0.99 s,   0 MB    2.05 s,   0 MB      75,000 page faults a step

Huge pages (THP_MEM_ALLOC_ENABLE) made neither better, nor did one arena. Small micro-batches are as fast a token as
large ones and leave small gaps, so the heap is kept where there is room, and under pressure nothing is.
"""

from __future__ import annotations

import ctypes
import gc
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

from ramlet.errors import SettingsError
from ramlet.runtime.memory import resident_memory
from ramlet.runtime.threads import available_threads

__all__ = ["keep_large_blocks", "load_torch", "release_heap", "release_library_pages", "settled_memory"]

_LARGE_LIBRARIES = (
    *("cudart", "c10", "cupti", "torch_cpu", "cublasLt", "cublas", "cufft", "nvJitLink", "cusparse", "cusparseLt"),
    *("nccl", "curand", "cudnn", "nvshmem_host", "torch_cuda", "torch_python"),
)
"""Each after those that it needs. Which of them exist depends on how torch was built."""


def load_torch(threads: int | None = None) -> Any:
    """Torch, working in so many threads, or as many as this process may use; no device is touched."""
    with _hearing_ctrl_c():
        if "torch" not in sys.modules:
            found = find_spec("torch")
            if found is None or found.origin is None:
                raise SettingsError("training needs PyTorch: pip install 'ramlet[train]'")
            if sys.platform.startswith("linux"):
                _load_libraries(Path(found.origin).parent)
        # Segments that grow: what a GPU's allocator reserves is then what tensors take, without the gaps.
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        import torch

        _leave_compiler_out(torch)
        _split_library_pages()
        release_library_pages()
    # torch counts the machine's cores, also where a container is granted fewer.
    threads = threads or min(torch.get_num_threads(), available_threads())
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    return torch


@contextmanager
def _hearing_ctrl_c() -> Iterator[None]:
    """Ctrl-C in the block is a KeyboardInterrupt, also where it meets code that loads a library: that may pass over it
    (where numpy is not there torch does without), or make an error of its own of it."""
    heard = False

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard = True
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    # Others have their own way of hearing it, and a thread hears no signals.
    ours = before is signal.default_int_handler and threading.current_thread() is threading.main_thread()
    if ours:
        signal.signal(signal.SIGINT, hear)
    try:
        yield
    except BaseException:
        if heard:
            raise KeyboardInterrupt from None
        raise
    finally:
        if ours:
            signal.signal(signal.SIGINT, before)
    if heard:
        raise KeyboardInterrupt


def _load_libraries(torch_folder: Path) -> None:
    folders = [torch_folder / "lib", *sorted((torch_folder.parent / "nvidia").glob("*/lib"))]
    for name in _LARGE_LIBRARIES:
        for library in (path for folder in folders for path in sorted(folder.glob(f"lib{name}.so*"))[:1]):
            try:
                ctypes.CDLL(str(library))
            except OSError:
                continue  # import torch says what is wrong, if anything is
            release_library_pages()


def _leave_compiler_out(torch: Any) -> None:
    """Keeps the optimizers and checkpointing from importing torch._dynamo, which nothing here is compiled with.

    Both wrap functions so that the compiler skips them, and import it for that on the first call; the wrapper remembers
    the result on the function. Where a version of torch remembers it otherwise this changes nothing.
    """
    from torch.utils import checkpoint

    optimizer = torch.optim.Optimizer
    methods = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    wrapped = [getattr(optimizer, name, None) for name in methods]
    for wrapper in (*wrapped, checkpoint.checkpoint, getattr(checkpoint, "_run_fn_with_dynamo_disabled", None)):
        function = getattr(wrapper, "__wrapped__", None)
        if function is not None and not hasattr(function, "__dynamo_disable"):
            setattr(function, "__dynamo_disable", function)


def _split_library_pages() -> None:
    """Of the libraries that a step on a CPU runs through."""
    from ramlet import _native

    _native.split_file_pages([f"lib{name}.so" for name in ("torch_cpu", "torch_python", "c10")])


def release_library_pages() -> int:
    """Gives back the pages of libraries that were only read, and returns their bytes. Not while one is being loaded."""
    from ramlet import _native

    return _native.release_file_pages()


def settled_memory() -> int:
    """Bytes resident when nothing is held that can be given back, which is done: what a prediction starts from."""
    release_heap()
    release_library_pages()
    return resident_memory()


def release_heap() -> None:
    """Gives back what was freed."""
    from ramlet import _native

    gc.collect()
    _native.release_freed_memory()


def keep_large_blocks(keep: bool) -> None:
    """Whether freed tensors stay with the allocator, which is faster, or go back at once, which is smaller."""
    from ramlet import _native

    _native.keep_large_blocks(keep)
