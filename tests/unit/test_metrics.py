"""Each metric says what it is."""

from __future__ import annotations

from pgps._metrics import exposition
from pgps_worker.health import _figures
from pgps_worker.vitals import LinkVitals, Vitals


def test_each_figure_of_a_worker_has_a_line_that_says_what_it_is() -> None:
    vitals = Vitals(links={"far": LinkVitals(last_error="08006")})
    lines = exposition(_figures(vitals)).splitlines()
    kinds = {line.split()[2] for line in lines if line.startswith("# TYPE ")}
    assert {"pgps_worker_leading", "pgps_worker_service_restarts_total", "pgps_link_last_error"} <= kinds
    assert kinds - {line.split()[2] for line in lines if line.startswith("# HELP ")} == set()
