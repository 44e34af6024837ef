"""Arrow arrays made of, and seen as, plain memory.

``pa.array``, ``pa.scalar`` and ``Array.to_numpy`` import pandas to see whether they were given something of
it. Spark starts a process for each kind of question it asks a data source, and in each that import would
take longer than the answer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.int32]

_TYPES = {np.dtype(np.int64): pa.int64(), np.dtype(np.int32): pa.int32()}


def texts(values: Sequence[bytes], kind: pa.DataType) -> pa.Array:
    """An array of binary or (if they are UTF-8) of strings.

    >>> texts([b"a", b"bc"], pa.string()).to_pylist()
    ['a', 'bc']
    """
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=ends[1:])
    return pa.Array.from_buffers(
        kind, len(values), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(values))]
    )


def integers(values: Numbers) -> pa.Array:
    """An array of the numbers' own type.

    >>> integers(np.array([1, 2])).to_pylist()
    [1, 2]
    """
    return pa.Array.from_buffers(_TYPES[values.dtype], len(values), [None, pa.py_buffer(values)])


def lists(ends: Numbers, items: pa.Array) -> pa.Array:
    """An array of lists; ``ends`` says where each ends, after a 0.

    >>> lists(np.array([0, 1, 3], np.int32), integers(np.array([1, 2, 3]))).to_pylist()
    [[1], [2, 3]]
    """
    return pa.ListArray.from_arrays(integers(ends), items)


def numbers(array: pa.Array) -> npt.NDArray[np.int64]:
    """The memory of an array of 64-bit integers without nulls.

    >>> int(numbers(integers(np.array([1, 2, 3]))[1:]).sum())
    5
    """
    return np.frombuffer(array.buffers()[1], np.int64, len(array), array.offset * 8)


def ends(array: pa.Array) -> npt.NDArray[np.int32]:
    """Where each text of an array begins, and where the last ends.

    >>> ends(texts([b"a", b"bc"], pa.binary())).tolist()
    [0, 1, 3]
    """
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, array.offset * 4)
