import os
import signal
from types import SimpleNamespace

import pytest

from vaswani.processes import StopRequest, Team, others_must_answer
from vaswani.run_config import UserError

ALONE = SimpleNamespace(process_index=0, num_processes=1, is_local_main_process=True)


def test_alone_nothing_waits():
    team = Team(ALONE, 1)
    assert (team.gather("a"), team.largest(3), team.main_only(lambda: 5), team.local_first(lambda: 6)) == (
        ["a"],
        3,
        5,
        6,
    )

    def fail():
        raise UserError("why")

    with pytest.raises(UserError, match="why"):
        team.main_only(fail)


@pytest.mark.parametrize("number", StopRequest.SIGNALS)
def test_a_signal_is_noted_and_handlers_are_restored(number, capfd):
    before = signal.getsignal(number)
    with StopRequest(os.getppid()) as stop:
        assert stop.signal == 0
        os.kill(os.getpid(), number)
        assert stop.signal == number
        os.kill(os.getpid(), number)  # a launcher repeats it at once
        stop.since -= 3
        if number == signal.SIGINT:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    assert signal.getsignal(number) == before
    assert capfd.readouterr().err.count("saving at the end of this step") == 1


def test_only_launched_processes_mind_the_end_of_their_parent(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("ACCELERATE_", "TORCHELASTIC_"))]:
        monkeypatch.delenv(name)
    with StopRequest(parent=-1, speak=False) as stop:  # as if the parent had changed
        assert stop.signal == 0
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    with StopRequest(parent=-1, speak=False) as stop:
        assert stop.signal == signal.SIGTERM


def test_other_errors_are_not_taken_for_lost_processes():
    with pytest.raises(RuntimeError, match="gloo"), others_must_answer():
        raise RuntimeError("gloo: connection closed")  # but nobody trains together here
