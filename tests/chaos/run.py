"""One run: publish, trigger, strike, let everything recover, judge."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import shutil
import statistics
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx

from demo.stack import stop
from tests.chaos import pipelines, tables, windows
from tests.chaos.judge import Faults, Verdict, count, judge, judge_order, judge_tables
from tests.chaos.observer import Observer, sequences
from tests.chaos.pipelines import PIPELINES
from tests.chaos.plan import DRIVER, EXECUTOR, TASK, Blow, plan
from tests.chaos.proxy import Proxy
from tests.chaos.publisher import Publisher
from tests.chaos.record import Record
from tests.chaos.scenes import Scenes
from tests.chaos.stack import ChaosStack
from tests.chaos.striker import Strike, Striker

Value = TypeVar("Value")

STRETCHED = {windows.FETCH: 2.5, windows.HAND_OFF: 2.0, windows.WORK: 4.0, windows.ACKNOWLEDGE: 2.0}
"""The longest time that a pipeline waits in a window while there are strikes, in seconds. Only Dagster's pipelines wait
in the hand-off, which takes longer in Airflow anyway."""
TO_RECOVER = 360.0
"""Seconds at the end within which everything must come to rest. The lease until a retry alone is five minutes."""
LOOK_AHEAD = 60
"""How many strikes of the plan are tried on the pipelines that are in a window now."""
SPARKS = (DRIVER, EXECUTOR)
IN_AIRFLOW = tuple(pipeline for pipeline in PIPELINES if pipeline.in_airflow)
TO_MEET = 60.0
"""Seconds for which the last strikes on Spark wait for its pipeline."""
BETWEEN_SPARK = 35.0
"""Seconds between two runs of a Spark pipeline, because a JVM takes ten seconds of both cores."""
FAULTS = ("lost", "settled_twice", "committed_duplicates", "lost_in_tables", "duplicates_in_tables", "out_of_order")
ENOUGH = 20
"""How many strikes each window must have had."""


class Loop:
    """An event loop in a separate thread, for proxies, publishers and requests."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Value], seconds: float = 120) -> Value:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(seconds)

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Cancel running tasks, and end the thread."""

        async def cancel() -> None:
            mine = asyncio.all_tasks() - {asyncio.current_task()}
            for task in mine:
                task.cancel()
            await asyncio.wait(mine, timeout=3) if mine else None

        with suppress(TimeoutError):
            self.run(cancel(), 5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)


class Run:
    """All files are in `folder`. An earlier run there is stopped and its files are removed."""

    def __init__(self, folder: Path, *, seed: int, strikes: int, minutes: float, breaking: str = "") -> None:
        self.folder = folder.absolute()
        self._seed = seed
        self._plan = plan(seed, strikes)
        self._deadline = time.monotonic() + minutes * 60
        self._began = time.monotonic()
        self._chance = random.Random(f"{seed} pauses")
        self._loop = Loop()
        self._settled: dict[str, set[int]] = {pipeline.stream: set() for pipeline in PIPELINES}
        self._last_spark = 0.0
        self._ticks: dict[str, float] = {}
        stop(self.folder / "services")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        # Lost connections are expected here, so the publishers' client need not report them.
        logging.basicConfig(filename=self.folder / "publishers.log", format="%(asctime)s %(message)s")
        pipelines.write(PIPELINES, self.folder / "pipelines.json")
        self._record = Record(self.folder / "record" / "settled.jsonl")
        self._struck = Record(self.folder / "record" / "strikes.jsonl")
        self._scenes = Scenes(self.folder, PIPELINES)
        self._proxies = {name: Proxy(0) for name in ("one", "n1", "n2", "n3")}
        for proxy in self._proxies.values():
            self._loop.run(proxy.start())
        ports = {name: proxy.port for name, proxy in self._proxies.items()}
        environment = {"CHAOS_BREAK": breaking} if breaking else {}
        self._stack = ChaosStack(self.folder / "services", self.folder, ports, environment)
        for name, proxy in self._proxies.items():
            proxy.target = self._stack.servers[name].port

    def __call__(self) -> dict[str, Any]:
        """Do everything, and return the report."""
        self._say("starting nats-servers, Postgres, Airflow and Dagster")
        try:
            with self._stack:
                return self._on_the_stack()
        finally:
            self._loop.close()

    def _on_the_stack(self) -> dict[str, Any]:
        stack, loop = self._stack, self._loop
        tables.create(self.folder, stack.tables)
        servers = AsyncExitStack()
        self._observers = {
            place: loop.run(
                servers.enter_async_context(Observer(*stack.urls[place[0]], ledger=place[1], **stack.options(place[0])))
            )
            for place in {pipeline.place for pipeline in PIPELINES}
        }
        self._publishers = {
            pipeline.stream: Publisher(
                pipeline, stack.urls[pipeline.servers], stack.lasting(pipeline.servers), self.folder, self._seed
            )
            for pipeline in PIPELINES
        }
        for publisher in self._publishers.values():
            loop.run(publisher.create())
        for pipeline in IN_AIRFLOW:
            stack.airflow.wait_for_dag(pipeline.name)
        publishing = [loop.start(publisher.run()) for publisher in self._publishers.values()]
        self._striker = Striker(stack, self._proxies, self._observers, loop.run, self._chance)
        self._say(f"{len(self._plan)} strikes are planned; Airflow is at {stack.airflow.url}")
        windows.ask(self.folder, self._seed, STRETCHED)
        self._strike()
        self._say("letting everything recover")
        windows.ask(self.folder, self._seed, {})
        self._striker.mend(everything=True)
        for publisher in self._publishers.values():
            publisher.over = True
        for each in publishing:
            each.result(120)
        self._come_to_rest()
        verdict = loop.run(judge(self.folder, {pipeline: self._observers[pipeline.place] for pipeline in PIPELINES}))
        rows = {each.stream: tables.rows(each, self.folder, stack.tables) for each in PIPELINES if each.table}
        judge_tables(self.folder, verdict, rows)
        for each in PIPELINES:
            if each.ordered:
                judge_order(verdict, each.stream, rows[each.stream])
        report = self._report(verdict)
        loop.run(servers.aclose())
        return report

    def _strike(self) -> None:
        left = list(self._plan)
        until = self._deadline - min(TO_RECOVER, (self._deadline - self._began) / 3)
        next_blow = struck = time.monotonic() + 5
        while left and time.monotonic() < until:
            self._tend()
            if time.monotonic() < next_blow:
                continue
            if time.monotonic() > struck + TO_MEET and all(blow.target in SPARKS for blow in left):
                self._say(f"{len(left)} strikes at Spark go to task processes instead: Spark is not in the window")
                left = [replace(blow, target=TASK) for blow in left]
            if strike := self._one(left):
                struck = time.monotonic()
                self._struck.append(asdict(strike))
                pace = max(0.0, until - time.monotonic()) / max(1, len(left))
                next_blow = time.monotonic() + self._chance.uniform(0.2, 1.2) * min(pace, 8.0)
        if left:
            self._say(f"{len(left)} strikes of the plan found no time")

    def _one(self, left: list[Blow]) -> Strike | None:
        """Make the first strike of the plan that is possible on a pipeline now."""
        scenes = self._scenes.now()
        self._chance.shuffle(scenes)
        # Strikes that affect few pipelines come first. Otherwise the end would wait for the next run of those.
        for blow in sorted(left[:LOOK_AHEAD], key=lambda blow: blow.target not in SPARKS):
            for scene in list(scenes):
                if not self._striker.suits(blow, scene):
                    continue
                if strike := self._striker.strike(blow, scene):
                    self._scenes.over(scene)
                    left.remove(blow)
                    return strike
                scenes.remove(scene)  # the target does not exist, or the servers do not answer: look again later
        return None

    def _come_to_rest(self) -> None:
        """Keep triggering until nothing waits anywhere."""
        until = max(self._deadline, time.monotonic() + TO_RECOVER)
        while time.monotonic() < until:
            self._tend()
            try:
                if all(self._at_rest(pipeline) for pipeline in PIPELINES):
                    return
            except Exception as error:  # noqa: BLE001 - a server that has just come back
                self._say(f"asking again: {error!r}")
            time.sleep(0.5)
        self._say("not everything came to rest in time")

    def _at_rest(self, pipeline: pipelines.Pipeline) -> bool:
        info = self._loop.run(self._observers[pipeline.place].consumer(pipeline.stream))
        return not (info["num_pending"] or info["num_ack_pending"])

    def _tend(self) -> None:
        """Repeated work: repairs, runs, recording settled messages, and a line every few seconds."""
        self._striker.mend()
        now = time.monotonic()
        for name, every, work in (
            ("credential", 1.0, self._stack.credential.renew),
            ("runs", 0.7, self._trigger),
            ("settled", 1.0, self._note_settled),
            ("services", 10.0, self._tend_services),
            ("progress", 5.0, self._progress),
        ):
            if now - self._ticks.get(name, 0) > every:
                self._ticks[name] = now
                work()
        time.sleep(0.1)

    def _tend_services(self) -> None:
        self._stack.end_orphans()
        for name in self._striker.revive_the_fallen():
            self._say(f"{name} ended unexpectedly and was restarted")

    def _trigger(self) -> None:
        rows = self._stack.query(
            "SELECT dag_id, count(*) FROM dag_run WHERE state IN ('queued', 'running') GROUP BY dag_id"
        )
        active = {str(dag_id): int(str(number)) for dag_id, number in rows}
        for pipeline in IN_AIRFLOW:
            if active.get(pipeline.name, 0) >= pipeline.runs:
                continue
            if pipeline.spark:
                if time.monotonic() - self._last_spark < BETWEEN_SPARK and not self._publishers[pipeline.stream].over:
                    continue
                self._last_spark = time.monotonic()
            try:
                self._stack.airflow.trigger(pipeline.name)
            except (RuntimeError, httpx.HTTPError) as error:
                self._say(f"could not trigger {pipeline.name}: {error}")

    def _note_settled(self) -> None:
        for observer in self._observers.values():
            try:
                receipts = self._loop.run(observer.new_receipts())
            except Exception:  # noqa: BLE001 - the server is down; the next look tells
                continue
            for receipt in receipts:
                self._record.append({"at": time.time(), **receipt})
                if receipt["state"] == "done":
                    self._settled[receipt["stream"]] |= set(sequences(receipt["ranges"]))
        for pipeline in PIPELINES:
            settled = self._settled[pipeline.stream]
            self._publishers[pipeline.stream].settled = len(settled)
            try:
                info = self._loop.run(self._observers[pipeline.place].consumer(pipeline.stream))
            except Exception:  # noqa: BLE001 - as above
                continue
            floor = info["ack_floor"]["stream_seq"] if info else 0
            self._striker.recovered(pipeline.stream, settled, floor)

    def _progress(self) -> None:
        by_window = Counter(strike.window for strike in self._striker.strikes)
        published = sum(publisher.published for publisher in self._publishers.values())
        settled = sum(map(len, self._settled.values()))
        struck = ", ".join(f"{by_window[window]} {window}" for window in windows.WINDOWS)
        self._say(
            f"{len(self._striker.strikes)} strikes ({struck}); "
            f"{published} published, {settled} settled, {published - settled} pending"
        )

    def _say(self, line: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f} s  {line}", flush=True)

    def _report(self, verdict: Verdict) -> dict[str, Any]:
        strikes = self._striker.strikes
        self._note_settled()
        recovered = [strike.recovered_after for strike in strikes if strike.recovered_after is not None]
        figures = {
            "published": count(verdict.published),
            "lost": count(verdict.lost),
            "settled_twice": count(verdict.settled_twice),
            "committed_duplicates": count(verdict.committed_duplicates),
            "in_tables": sum(verdict.in_tables.values()),
            "lost_in_tables": count(verdict.lost_in_tables),
            "duplicates_in_tables": count(verdict.duplicates_in_tables),
            "out_of_order": count(verdict.out_of_order),
        }
        by_window = self._by_window(verdict)
        report = {
            "seed": self._seed,
            "seconds": round(time.monotonic() - self._began, 1),
            "strikes": len(strikes),
            **figures,
            "pending": sum(verdict.pending.values()),
            "contradictions": verdict.contradictions,
            "by_window": by_window,
            "by_target": _table(strikes),
            "by_pipeline": _by_pipeline(strikes, verdict.redelivered),
            "redeliveries": sum(verdict.redelivered.values()),
            "fenced": dict(self._scenes.fenced),
            "recovery_seconds": {
                "median": round(statistics.median(recovered), 1) if recovered else None,
                "worst": round(max(recovered), 1) if recovered else None,
                "not_recovered": len(strikes) - len(recovered),
                "slowest": [
                    f"{strike.recovered_after:.0f} s: {strike.window}, {strike.target}, {strike.kind}, {strike.stream}"
                    for strike in sorted(strikes, key=lambda strike: strike.recovered_after or 0, reverse=True)[:5]
                    if strike.recovered_after
                ],
            },
            "faults": {
                name: {stream: found for stream, found in getattr(verdict, name).items() if found} for name in FAULTS
            },
        }
        faultless = verdict.faultless and all(
            each["strikes"] >= min(ENOUGH, len(self._plan) // 4) for each in by_window.values()
        )
        report["passed"] = faultless
        (self.folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
        return report

    def _by_window(self, verdict: Verdict) -> dict[str, dict[str, int]]:
        """Assign faults to the last window in which their message was struck. `published` counts those struck there."""
        last: dict[tuple[str, int], str] = {}
        struck: dict[str, set[tuple[str, int]]] = {window: set() for window in windows.WINDOWS}
        for strike in self._striker.strikes:
            for sequence in sequences(strike.ranges):
                last[strike.stream, sequence] = strike.window
                struck[strike.window].add((strike.stream, sequence))

        def of(faults: Faults) -> Counter[str]:
            return Counter(
                last.get((stream, sequence), "elsewhere") for stream, found in faults.items() for sequence in found
            )

        faults = {name: of(getattr(verdict, name)) for name in FAULTS}
        number = Counter(strike.window for strike in self._striker.strikes)
        return {
            window: {
                "strikes": number[window],
                "published": len(struck[window]),
                **{name: found[window] for name, found in faults.items()},
            }
            for window in windows.WINDOWS
        }


def _by_pipeline(strikes: list[Strike], redelivered: dict[str, int]) -> dict[str, dict[str, float]]:
    """Return for each pipeline how often it was struck, how many messages were redelivered, and its recoveries."""
    table: dict[str, dict[str, float]] = {}
    for stream, messages in redelivered.items():
        mine = [strike for strike in strikes if strike.stream == stream]
        table[stream] = {"strikes": len(mine), "redeliveries": messages}
        if recovered := [strike.recovered_after for strike in mine if strike.recovered_after is not None]:
            table[stream] |= {"median": round(statistics.median(recovered), 1), "worst": round(max(recovered), 1)}
    return table


def _table(strikes: list[Strike]) -> dict[str, dict[str, int]]:
    table: dict[str, dict[str, int]] = {}
    for strike in strikes:
        kinds = table.setdefault(strike.target, {})
        kinds[strike.kind] = kinds.get(strike.kind, 0) + 1
    return table
