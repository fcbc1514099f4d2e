import numpy as np
import pytest

from fedmcc.federation.engines.worker import sendable


def test_missing_memory_reaches_the_other_process_as_such():
    with pytest.raises(MemoryError) as caught:
        np.empty(2**50)
    error = sendable(caught.value)
    assert type(error) is MemoryError  # NumPy raises a kind of its own
    assert "Unable to allocate" in str(error)
