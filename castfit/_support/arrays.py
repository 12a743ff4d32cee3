"""Types of arrays: real and complex numbers, indices and masks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Mask = NDArray[np.bool_]
Signs = NDArray[np.int8]
Complex = NDArray[np.complex128]
