"""The ids in a `.npy` file, from ramlet or any other source: one dimension of integers."""

from __future__ import annotations

from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from ramlet.errors import DatasetError
from ramlet.runtime.small_files import open_regular

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
            raise DatasetError(f"{path} is not a readable .npy file ({error}): save it with numpy.save") from None
        if dtype.kind not in "iu":
            raise DatasetError(f"{path} has the dtype {dtype}, not ids: save integers, uint16 if they fit")
        if len(shape) != 1:
            raise DatasetError(f"{path} has {len(shape)} dimensions, but ids need 1: save it with reshape(-1)")
        if dtype.byteorder == ">":
            raise DatasetError(f"{path} is big-endian: save it with astype('<{dtype.str[1:]}')")
        return cls(path, header, dtype.str[1:], int(shape[0]))


def sampled_digest(npy: NpyFile) -> str:
    """A hash of the dtype, the length, and 64 short samples spread over the file; a copy has the same."""
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
    """Reads the whole file, block by block."""
    import numpy as np

    from ramlet.dataset.reader import read_at

    dtype = np.dtype(f"<{npy.dtype}")
    header = npy.header // dtype.itemsize
    if npy.header % dtype.itemsize:
        raise DatasetError(f"{npy.path} has ids that are not aligned: save it again with numpy.save")
    step = BLOCK_BYTES // dtype.itemsize
    return max(
        int(read_at(npy.path, dtype, header + first, header + min(first + step, npy.length)).max())
        for first in range(0, npy.length, step)
    )
