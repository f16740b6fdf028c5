"""A deadline raises after its time and adds up the seconds of each stage."""

from __future__ import annotations

import pytest

from relayout.solve.deadline import UNLIMITED, Deadline, ExpiredError


def test_a_deadline_of_no_time_has_passed() -> None:
    deadline = Deadline(0.0)
    left = deadline.left()
    assert left is not None
    assert left <= 0
    assert deadline.is_over()
    with pytest.raises(ExpiredError):
        deadline.check()


@pytest.mark.parametrize("deadline", [UNLIMITED, Deadline(), Deadline(1e6)])
def test_a_later_deadline_has_not_passed(deadline: Deadline) -> None:
    assert not deadline.is_over()
    deadline.check()


def test_no_limit_has_no_remaining_seconds() -> None:
    assert Deadline().left() is None


def test_the_seconds_of_a_stage_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 3.0, 6.0, 10.0, 11.0])
    monkeypatch.setattr("relayout.solve.deadline.perf_counter", lambda: next(times))
    deadline = Deadline()
    for name in ("build", "solve", "build"):
        deadline.stage(name)
    assert deadline.seconds == {"build": 4.0, "solve": 2.0}
    deadline.include({"solve": 3.5})
    deadline.stage("rewrite")
    assert deadline.seconds == {"build": 4.0, "solve": 5.5, "rewrite": 1.0}
