"""Where the ids of a `.npy` file lie: one dimension of integers, ours or anyone's."""

from __future__ import annotations

from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from ramlet.errors import DatasetError
from ramlet.runtime.small_files import open_regular

__all__ = ["NpyFile", "largest_id", "sampled_digest"]

BLOCK_BYTES = 4 << 20
SAMPLES = 64
SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class NpyFile:
    path: Path
    header: int
    """Bytes before the first id."""
    dtype: str
    """`u2`, `i8`, ...; little-endian."""
    length: int

    @property
    def id_bytes(self) -> int:
        return int(self.dtype[1:])

    @classmethod
    def read(cls, path: Path) -> NpyFile:
        """From the header alone."""
        from tokenize import TokenError

        from numpy.lib import format as npy

        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        try:
            with BufferedReader(open_regular(path, DatasetError)) as file:
                version = npy.read_magic(file)
                if version not in readers:
                    raise ValueError(f"version {version[0]}.{version[1]}")
                shape, _, dtype = readers[version](file)
                header = file.tell()
        except FileNotFoundError:
            raise DatasetError(f"no such file: {path}") from None
        except OSError as error:
            raise DatasetError(f"cannot read {path}: {error.strerror}") from None
        except DatasetError:
            raise
        except (ValueError, TokenError, SyntaxError, RecursionError) as error:
            raise DatasetError(f"{path} is no .npy file that can be read ({error}): save it with numpy.save") from None
        if dtype.kind not in "iu":
            raise DatasetError(f"{path} holds {dtype} and no ids: save them as integers, uint16 where they fit")
        if len(shape) != 1:
            raise DatasetError(f"{path} has {len(shape)} dimensions, and ids are one: save it with reshape(-1)")
        if dtype.byteorder == ">":
            raise DatasetError(f"{path} has its bytes in the other order: save it with astype('<{dtype.str[1:]}')")
        return cls(path, header, dtype.str[1:], int(shape[0]))


def sampled_digest(npy: NpyFile) -> str:
    """A hash of the type, the length, and 64 short stretches spread over the file: it is the same for a copy."""
    from ramlet.runtime.digest import digest

    size = npy.length * npy.id_bytes
    try:
        with open_regular(npy.path, DatasetError) as file:
            parts = [b"ramlet array 1", npy.dtype.encode(), str(npy.length).encode()]
            for at in range(SAMPLES):
                file.seek(npy.header + max(0, size - SAMPLE_BYTES) * at // (SAMPLES - 1))
                parts.append(file.read(SAMPLE_BYTES))
    except OSError as error:
        raise DatasetError(f"cannot read {npy.path}: {error.strerror}") from None
    return digest(iter(parts))


def largest_id(npy: NpyFile) -> int:
    """Reads all of the file, a block at a time."""
    import numpy as np

    from ramlet.dataset.reader import read_at

    dtype = np.dtype(f"<{npy.dtype}")
    ahead = npy.header // dtype.itemsize
    if npy.header % dtype.itemsize:
        raise DatasetError(f"{npy.path} has its ids at an odd place: save it anew with numpy.save")
    step = BLOCK_BYTES // dtype.itemsize
    return max(
        int(read_at(npy.path, dtype, ahead + first, ahead + min(first + step, npy.length)).max())
        for first in range(0, npy.length, step)
    )
