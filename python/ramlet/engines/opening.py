"""Which engine runs where, and opening it.

    choose_engine("auto", "cpu")            # native: the default on a CPU
    choose_engine("auto", "cuda")           # torch: a GPU needs PyTorch
    choose_engine("auto", "tpu")            # jax: only it runs there
    open_engine("cpu", threads=2)           # loads its libraries

On a CPU the native engine is faster than PyTorch and needs a fraction of its memory (docs/design/native.md), except
where the CPU has AMX, which only PyTorch uses: it is twice as fast there. `auto` is JAX on a TPU, where nothing else
runs, and nowhere else.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from os.path import exists
from typing import TYPE_CHECKING, Any, NamedTuple

from ramlet.errors import SettingsError, option
from ramlet.runtime.processor import has_amx

if TYPE_CHECKING:
    from ramlet.engines import Engine
    from ramlet.engines.torch.modules.subject import Subject

ENGINES = ("torch", "native", "jax")
ON_A_CPU = "native"
"""What `auto` uses on a CPU."""
DEVICES = ("auto", "cpu", "cuda", "tpu")
PRECISIONS = ("auto", "fp8", "bf16", "fp16", "fp32")
OF_WEIGHTS = tuple(name for name in PRECISIONS if name != "fp8")
"""Of a model to evaluate or to generate with: only the products of training can be fp8."""
OLDEST_JAX = (0, 6)


class Chosen(NamedTuple):
    name: str
    why: str
    """Of `auto`, for a message: the default on a CPU. Empty if the user named the engine."""

    def __str__(self) -> str:
        return f"{self.name}, {self.why}" if self.why else self.name


def check_hardware(device: str | None, precision: str | None, engine: str | None = None) -> None:
    """Refuses unknown names, and what cannot work here, before the libraries of an engine are loaded."""
    named = (("device", device, DEVICES), ("precision", precision, PRECISIONS), ("engine", engine, ("auto", *ENGINES)))
    for name, value, known in named:
        if value is not None and value not in known:
            raise SettingsError(f"unknown {name} {value!r}: use {', '.join(known[:-1])} or {known[-1]}")
    choose_engine(engine or "auto", device or "auto")


def check_of_weights(precision: str) -> None:
    """Refuses what is only for training, before a model is loaded."""
    if precision not in OF_WEIGHTS:
        raise SettingsError(f"{precision} is only for training: use {option('precision', 'bf16')}")


def has_torch() -> bool:
    """Whether PyTorch is installed; does not load it."""
    return find_spec("torch") is not None


def has_jax() -> bool:
    """Whether JAX and optax are installed; does not load them."""
    return find_spec("jax") is not None and find_spec("optax") is not None


def jax_version() -> tuple[int, ...] | None:
    """Of the installed JAX, or None; does not load it."""
    from importlib.metadata import PackageNotFoundError, version  # a megabyte, only for JAX

    try:
        return tuple(int(part) for part in version("jax").split(".")[:3] if part.isdigit())
    except PackageNotFoundError:
        return None


def has_tpu() -> bool:
    """Whether there is a TPU, and a JAX that was installed for it; does not load it."""
    return find_spec("libtpu") is not None and (exists("/dev/accel0") or exists("/dev/vfio/0"))


def has_gpu() -> bool:
    """Whether there is an NVIDIA driver; does not load it."""
    return exists("/dev/nvidiactl")


def several_processes() -> bool:
    """Whether torchrun started this process with others, to train the same model."""
    return "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


def is_first_process() -> bool:
    """Whether this process prints, and prepares what all of them read. RANK alone may be left from something else."""
    return not several_processes() or os.environ["RANK"] == "0"


def require_ranks(shard: str, engine: str) -> None:
    """Refuses a setting `shard` without several processes to divide a model, or with an engine that is always one."""
    if shard in ("auto", "none"):
        return
    if not several_processes():
        raise needs_ranks(shard)
    if engine != "torch":
        raise single_process()


def single_process() -> SettingsError:
    return SettingsError(f"the native engine is a single process: use {option('engine', 'torch')} to train on ranks")


def needs_ranks(shard: str) -> SettingsError:
    """If a single process should divide something."""
    return SettingsError(
        f"{option('shard', shard)} divides a model over several processes: start them with torchrun, "
        f"or use {option('shard', 'none')}"
    )


def require_torch(what: str) -> None:
    """Refuses to do `what` ("training on a GPU") without PyTorch."""
    if not has_torch():
        raise SettingsError(f"{what} needs PyTorch: pip install 'ramlet[torch]'")


def require_jax(what: str) -> None:
    """Refuses to do `what` ("a TPU") without JAX."""
    if not has_jax():
        raise SettingsError(f"{what} needs JAX: pip install 'ramlet[jax]'")


def choose_engine(name: str, device: str, *, ranks: int = 1) -> Chosen:
    """The engine for a device (auto, cpu, cuda, tpu), by the setting `engine`; refuses one that cannot work here.

    `ranks` are processes to plan for; a run has those that torchrun started.
    """
    if name == "native" and device in ("cuda", "tpu"):
        other = "torch" if device == "cuda" else "jax"
        raise SettingsError(
            f"the native engine runs on a CPU: use {option('device', 'cpu')}, or {option('engine', other)}"
        )
    if name == "torch" and device == "tpu":
        raise SettingsError(f"PyTorch runs on a CPU or a GPU here: use {option('engine', 'jax')} for a TPU")
    if name == "jax":
        require_jax("the jax engine")
    if device == "tpu":
        require_jax("a TPU")
    if device == "cuda" and name != "jax" and not has_torch():
        raise SettingsError(
            "a GPU needs PyTorch, which is not installed: pip install 'ramlet[torch]', "
            f"or use {option('device', 'cpu')}"
        )
    if name == "torch" and not has_torch():
        raise SettingsError(
            f"PyTorch is not installed: pip install 'ramlet[torch]', or use {option('engine', 'native')}"
        )
    return Chosen(name, "") if name != "auto" else _best(device, ranks)


def _best(device: str, ranks: int) -> Chosen:
    """What `auto` stands for."""
    if device == "tpu" or (device == "auto" and has_tpu() and has_jax()):
        return Chosen("jax", "which uses the TPU")
    gpu = device == "cuda" or (device == "auto" and has_gpu())
    if gpu and has_torch():
        return Chosen("torch", "which uses the GPU")
    if gpu:
        return Chosen("native", "on the CPU: using the GPU needs PyTorch, pip install 'ramlet[torch]'")
    if (ranks > 1 or several_processes()) and has_torch():
        return Chosen("torch", "because several processes train together")
    if has_amx() and has_torch():
        return Chosen("torch", "which multiplies bf16 with AMX")
    return Chosen(ON_A_CPU, "the default on a CPU")


def open_engine(device: str = "auto", threads: int | None = None, *, name: str = "auto") -> Engine:
    """Loads an engine's libraries and opens it on a device (auto, cpu, cuda, tpu); `name` is the setting `engine`."""
    chosen = choose_engine(name, device).name
    engine: Engine = import_module(f"ramlet.engines.{chosen}").open_engine(device, threads)
    return engine


def open_subject(module: Any, loss: Any, *, device: str | None, threads: int | None, precision: str) -> Subject:
    """A module of torch with its loss, to train it; loads torch's engine."""
    require_torch("training a module")
    from ramlet.engines.torch.base_memory import load_torch

    load_torch(threads)
    from ramlet.engines.torch.modules.subject import Subject

    subject = Subject.of(module, loss, device=device, precision=precision)
    subject.engine.release()  # what the caller has freed
    return subject
