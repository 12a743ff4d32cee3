"""The types of arrays: real numbers, positions, and what holds or does not."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]
Signs = NDArray[np.int8]
