"""Exceptions that a plugin may raise."""

import pytest

from pe_bench.errors import PluginError, as_exception


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_grid_can_handle_does_not_change(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, as_exception():
        raise error
    assert caught.value is error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (GeneratorExit(), "GeneratorExit"),
        (GeneratorExit("x"), "GeneratorExit: x"),
        (BaseException("x"), "BaseException: x"),
    ],
)
def test_other_exceptions_cannot_end_a_grid(error: BaseException, says: str) -> None:
    with pytest.raises(PluginError) as caught, as_exception():
        raise error
    assert str(caught.value) == says and caught.value.__cause__ is error
