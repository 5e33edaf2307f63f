"""Tests marked ``gpu`` run where there is a GPU, and say elsewhere why they do not."""

import pytest

from nanoeuler.errors import UserError
from nanoeuler.ops.gpu.runtime.driver import open_device


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    try:
        open_device()
    except UserError as error:
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason=str(error)))
