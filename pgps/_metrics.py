"""Figures of a broker in the format of Prometheus, each metric with a line that says what it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Figure", "exposition"]

_MEANINGS = {
    "pgps_audit_findings": "Counts or digests of neighbours that differ from what came; more than 0 is an alarm.",
    "pgps_audit_missing_events": "Events stated by a neighbour and not here; below 0: more are here.",
    "pgps_batches_total": "Batches dispatched by this broker.",
    "pgps_composite_event_suspended": "1: what a composite event is made of failed, and it detects nothing.",
    "pgps_composite_owner_lag_events": "Events that the composite events of a slow role are behind.",
    "pgps_composite_owner_slow": "1: the filters or attributes of a role's composite events are slow.",
    "pgps_connections": "Sessions of clients at the server.",
    "pgps_event_type_waiting_events": "Events of a type that is set aside.",
    "pgps_event_types_set_aside": "Event types that are not dispatched, because their code fails.",
    "pgps_findings": "What pgps doctor finds, by check and level.",
    "pgps_lane_lag_batches": "Batches that the filters of a role are behind.",
    "pgps_lane_lag_events": "Events that the filters of a role are behind.",
    "pgps_lane_lag_seconds": "How far the filters of a role are behind.",
    "pgps_lane_slow": "1: the filters of a role are slow.",
    "pgps_last_batch_age_seconds": "Time since the newest batch.",
    "pgps_ledger_bytes": "Space of positions, statuses and other ledgers.",
    "pgps_link_batches_total": "Batches that crossed a link since the worker began, by way.",
    "pgps_link_bytes_total": "Bytes that crossed a link since the worker began, by way.",
    "pgps_link_events_total": "Events that crossed a link since the worker began, by way.",
    "pgps_link_failures_total": "Failures of a link since the worker began.",
    "pgps_link_gaps": "Known gaps of a link: events that will not come.",
    "pgps_link_lag_events": "Events that have not crossed a link yet.",
    "pgps_link_lag_seconds": "How long the oldest event that has not crossed a link has waited.",
    "pgps_link_last_error": "1, with the code of the newest error of a link.",
    "pgps_link_reconnects_total": "How often a link was connected again since the worker began.",
    "pgps_link_refused": "Events of a neighbour that were refused or lost in a gap, by state.",
    "pgps_link_refused_events": "Events of a link that constraints here refused.",
    "pgps_link_state": "1, with the state of a link.",
    "pgps_link_up": "1: a link carries all that it should.",
    "pgps_log_bytes": "Space of the log of an event type, with indexes.",
    "pgps_max_connections": "Sessions that the server allows.",
    "pgps_oldest_transaction_seconds": "Age of the oldest transaction, for which reclaim waits.",
    "pgps_oldest_waiting_seconds": "How long the oldest committed event of a type has waited for dispatch.",
    "pgps_published_events_total": "Events of a type that were dispatched.",
    "pgps_subscription_dead": "1: nobody has taken from a subscription for longer than dead_after.",
    "pgps_subscription_events_per_second": "Events that a subscription acknowledges; of the twenty busiest.",
    "pgps_subscription_failed_events": "Events in the exception queue of a subscription.",
    "pgps_subscription_lag_seconds": "How long the oldest event has waited; of the twenty furthest behind.",
    "pgps_subscription_last_failed_event_id": "The event of a subscription that failed last.",
    "pgps_subscription_passed_over_events": "Events a subscription was not given, because of its max_backlog.",
    "pgps_subscription_retrying_events": "Events of a subscription that failed and are tried again.",
    "pgps_subscription_suspended": "1: the filter or callback of a subscription failed too often.",
    "pgps_subscription_waiting_events": "Events that wait for a subscription; of the twenty furthest behind.",
    "pgps_subscriptions": "Subscriptions by state.",
    "pgps_waiting_events": "Committed events of a type that are not dispatched yet.",
    "pgps_worker_batches_dispatched_total": "Batches that this worker dispatched.",
    "pgps_worker_batches_handled_total": "Batches that this worker gave to callbacks.",
    "pgps_worker_callbacks_ousted_total": "Callbacks put back, since others waited for their turn too long.",
    "pgps_worker_callbacks_stopped_total": "Callbacks that this worker ended, because they took too long.",
    "pgps_worker_events_carried_total": "Events that this worker carried over links.",
    "pgps_worker_events_confirmed_total": "Confirming events that this worker raised.",
    "pgps_worker_events_dispatched_total": "Events that this worker dispatched.",
    "pgps_worker_events_filed_total": "Events whose callbacks failed, put into exception queues by this worker.",
    "pgps_worker_events_handled_total": "Events that this worker gave to callbacks.",
    "pgps_worker_leading": "1: this worker dispatches.",
    "pgps_worker_requests_executed_total": "Requests of clients that this worker executed.",
    "pgps_worker_segments_reclaimed_total": "Segments of logs and ledgers that this worker emptied.",
    "pgps_worker_service_restarts_total": "How often a service of this worker failed and was started again.",
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure: its metric, whether that is a counter or a gauge, its labels, and its value."""

    metric: str
    kind: str
    labels: Mapping[str, str]
    value: float


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def exposition(figures: Iterable[Figure]) -> str:
    """Return figures as a scraper reads them: all of a metric together, below its meaning and kind."""
    metrics: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures:
        metrics.setdefault((figure.metric, figure.kind), []).append(figure)
    return "".join(f"{_head(metric, kind)}{_lines(found)}" for (metric, kind), found in metrics.items())


def _head(metric: str, kind: str) -> str:
    # A broker that is newer than this may tell of more.
    meaning = _MEANINGS.get(metric)
    return (f"# HELP {metric} {meaning}\n" if meaning else "") + f"# TYPE {metric} {kind}\n"


def _lines(figures: Sequence[Figure]) -> str:
    lines = []
    for figure in figures:
        labels = ",".join(f'{name}="{_label(text)}"' for name, text in figure.labels.items())
        lines.append(f"{figure.metric}{f'{{{labels}}}' if labels else ''} {figure.value:.15g}\n")
    return "".join(lines)
