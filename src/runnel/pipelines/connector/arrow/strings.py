"""Byte strings that lie scattered in one buffer, as a column."""

import numpy as np
import pyarrow as pa

from runnel.pipelines.connector.arrow.scan import Span


def strings(data: pa.Buffer, span: Span) -> pa.Array:
    """Arrow's column of binary: the strings at these places, in order, copied together by Arrow itself.

    Arrow's strings touch each other. So the gaps between ours are made strings too, and every other one is taken.
    """
    count = len(span.at)
    if not count:
        return pa.array([], pa.binary())
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0:-1:2] = span.at
    bounds[1::2] = span.ends()
    bounds[-1] = bounds[-2]
    touching = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), data])
    wanted = np.arange(0, 2 * count, 2, dtype=np.int32)
    null = span.size < 0
    return touching.take(pa.array(wanted, mask=null) if null.any() else pa.array(wanted))
