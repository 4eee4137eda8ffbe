"""A benchmark that is told to end."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from bench.stopping import SIGNALS, undisturbed, unwinding


@pytest.fixture(autouse=True)
def _default_handlers() -> Iterator[None]:
    """Whatever the tests themselves run under: `nohup` lets a closed terminal mean nothing."""
    former = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_unwinds_and_those_after_it_do_nothing(number: signal.Signals) -> None:
    former = [signal.getsignal(each) for each in SIGNALS]
    taken_down = []

    def bench() -> None:
        with unwinding():
            try:
                signal.raise_signal(number)
            finally:
                for each in SIGNALS:
                    signal.raise_signal(each)
                taken_down.append(True)

    with pytest.raises(SystemExit) as ended:
        bench()
    assert (ended.value.code, taken_down) == (128 + number, [True])
    assert [signal.getsignal(each) for each in SIGNALS] == former


def test_what_takes_things_down_is_ended_afterwards() -> None:
    steps = []

    def bench() -> None:
        with unwinding():
            with undisturbed():
                signal.raise_signal(signal.SIGTERM)
                steps.append("down")
            steps.append("more")

    with pytest.raises(SystemExit) as ended:
        bench()
    assert (ended.value.code, steps) == (143, ["down"])


def test_nothing_happens_without_a_signal() -> None:
    former = [signal.getsignal(each) for each in SIGNALS]
    with unwinding(), undisturbed():
        pass
    assert [signal.getsignal(each) for each in SIGNALS] == former


def test_a_closed_terminal_that_means_nothing_goes_on_to() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with unwinding():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
