"""House rules about batches."""

from logforensics.findings import Confidence, Severity
from logforensics.rules import Case
from logforensics.rules.registry import Verdict, cite, increase, rule, step

OUR_LEAST = 64  # requests; our service agreement counts on it


@rule("OWN002", "house_cap_too_small", "The request cap is below what this house needs")
def house_cap_too_small(case: Case) -> Verdict | None:
    """Our front end opens up to 64 requests at once."""
    capacity = next(iter(case.run.capacities), None)
    cap = capacity.max_running_requests if capacity else None
    if capacity is None or cap is None or cap >= OUR_LEAST:
        return None
    return Verdict(
        Severity.WARNING,
        Confidence.CERTAIN,
        "capacity",
        f"the server takes {cap} requests at once, we need {OUR_LEAST}",
        "Requests above the cap wait in the queue.",
        cite([capacity.mark.evidence("max_running_requests=")]),
        [step("needed", "house rule", OUR_LEAST, "requests")],
        [increase("--max-running-requests", OUR_LEAST, "requests", "what our front end opens")],
    )
