"""What becomes of a claim, as a table: how the work ended, whose the claim is, and whether there is a next try."""

from datetime import timedelta

import pytest

from jetstream_handoff.hold.ending import Ending, Fail, How, Leave, Lost, Ownership, Release, Settle, Skip, ending

SOON = timedelta(minutes=6)
TABLE: dict[How, tuple[Ending, Ending]] = {  # without a next try, and with one
    How.SUCCEEDED: (Settle(), Settle()),
    How.NOTHING_TO_DO: (Settle(), Settle()),
    How.SKIPPED: (Skip(), Skip()),
    How.FAILED: (Fail(), Release(SOON)),
    How.UNREADABLE: (Fail(blame=False), Fail(blame=False)),
    How.UNSETTLED: (Release(None), Release(SOON)),
    How.LATER: (Release(None), Release(SOON)),
}


@pytest.mark.parametrize("how", How)
def test_a_claim_of_ours(how: How) -> None:
    last, retried = TABLE[how]
    assert ending(how, Ownership.OURS, None) == last
    assert ending(how, Ownership.OURS, SOON) == retried


@pytest.mark.parametrize("how", How)
@pytest.mark.parametrize("next_try", [None, SOON])
def test_a_claim_that_is_no_longer_ours(how: How, next_try: timedelta | None) -> None:
    """Work that has succeeded asks for a settlement all the same, which raises: the task must not succeed."""
    succeeded = how is How.SUCCEEDED
    assert ending(how, Ownership.LOST, next_try) == (Settle() if succeeded else Lost())
    assert ending(how, Ownership.OVER, next_try) == (Settle() if succeeded else Leave())
