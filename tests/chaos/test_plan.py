"""The plan depends only on the seed, and is complete."""

from collections import Counter

from tests.chaos import plan
from tests.chaos.windows import ACKNOWLEDGE, FETCH, WINDOWS, WORK


def test_the_seed_decides() -> None:
    assert plan.plan(1, 200) == plan.plan(1, 200) != plan.plan(2, 200)


def test_each_window_gets_its_share_of_every_target() -> None:
    blows = plan.plan(3, 200)
    assert Counter(blow.window for blow in blows) == dict.fromkeys(WINDOWS, 50)
    struck = {(blow.window, blow.target, blow.kind) for blow in blows}
    assert {(FETCH, plan.TRIGGERER, plan.KILL), (WORK, plan.DRIVER, plan.FREEZE)} < struck
    assert {(WORK, plan.TRIGGERER, plan.KILL), (WORK, plan.TRIGGERER, plan.FREEZE)} < struck
    assert {(ACKNOWLEDGE, plan.SUPERVISOR, plan.KILL), (WORK, plan.EXECUTOR, plan.KILL)} < struck
    of_dagster = {(each, plan.KILL) for each in plan.IN_DAGSTER - {plan.RUN}} | {(plan.RUN, plan.TERMINATE)}
    of_dagster |= {(plan.DAEMON, plan.FREEZE), (plan.STEP, plan.FREEZE)}
    assert {(window, *card) for window in WINDOWS for card in of_dagster} < struck
    for target in (plan.ONE, plan.ALL, *plan.LEADERS):
        assert {(window, target, kind) for window in WINDOWS for kind in (plan.KILL, plan.FREEZE)} < struck
    for window in WINDOWS:
        assert {(window, plan.CONSUMER, edit) for edit in plan.EDITS} < struck
        assert (window, plan.CREDENTIAL, plan.EXPIRE) in struck
        assert {(window, plan.PROXY, fault) for fault in plan.PROXY_FAULTS} < struck
