"""Limits of one caller."""

from __future__ import annotations

import pytest

from relayout_api.access.callers import Caller
from relayout_api.access.limits import Limits
from relayout_api.problems import RefusedError


def test_requests_a_minute_are_limited_and_the_error_says_when_to_come_back() -> None:
    now = 0.0
    limits = Limits(lambda: now)
    caller = Caller("key:a", rate=6)
    for _ in range(6):
        with limits.admitted(caller):
            pass
    with pytest.raises(RefusedError) as error, limits.admitted(caller):
        pass
    assert error.value.kind == "too-many-requests"
    assert error.value.retry_after == 10
    with limits.admitted(Caller("key:b", rate=6)):
        pass
    now = 10.0
    with limits.admitted(caller):
        pass
    with pytest.raises(RefusedError), limits.admitted(caller):
        pass


def test_requests_at_once_are_limited_until_one_ends() -> None:
    limits = Limits()
    caller = Caller("key:a", concurrency=2)
    with limits.admitted(caller):
        with limits.admitted(caller), pytest.raises(RefusedError), limits.admitted(caller):
            pass
        with limits.admitted(caller):
            pass


def test_a_caller_without_limits_is_never_refused() -> None:
    limits = Limits()
    for _ in range(1000):
        limits.admitted(Caller("address:1")).__enter__()
