"""Exit codes of `run`."""

from __future__ import annotations

import pytest

from replicator.cli.main import _finish
from replicator.runtime.supervisor import End, RunOutcome


@pytest.mark.parametrize("end", [End.CAUGHT_UP, End.COMPLETE])
def test_a_run_with_a_failed_table_exits_with_1(end: End, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        _finish("shop", RunOutcome(end=end, failed=("public.half",)))
    assert ended.value.code == 1
    assert "except failed tables: public.half." in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        _finish("shop", RunOutcome(end=end, alarmed=("public.a", "public.odd name")))
    assert ended.value.code == 1
    assert "Next step: replicator verify shop public.a 'public.odd name' --repair" in capsys.readouterr().err
    _finish("shop", RunOutcome(end=end))
