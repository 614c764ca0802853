"""The bodies of the tasks. Each writes a line of evidence when it has completed its work, and never before."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow.sdk import get_current_context

from airflow_nats_jetstream.compat import AirflowFailException, AirflowSkipException

OUT = Path(os.environ.get("DAG_FUZZ_OUT", "build/dag_fuzz/out"))


def write(dag_id: str, **line: Any) -> None:
    """Append one line, whole, although other processes append to the same file."""
    file = os.open(OUT / f"{dag_id}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, (json.dumps({"dag": dag_id, **line, "at": time.time()}) + "\n").encode())
    finally:
        os.close(file)


def act(task: dict[str, Any], claim: str, sequences: list[int], country: str = "") -> dict[str, Any]:
    """End as the plan says for this try. If it completes its work, leave evidence that it has."""
    ti: Any = get_current_context()["ti"]
    how = task["tries"][min(ti.try_number, len(task["tries"])) - 1]
    if task["poison"] and ti.try_number == 1 and any(each % 3 == 0 for each in sequences):
        how = "raise"
    time.sleep(task["seconds"])
    about = {
        "run": ti.run_id,
        "task": ti.task_id,
        "index": ti.map_index,
        "try": ti.try_number,
        "claim": claim,
        "sequences": sequences,
        "country": country,
    }
    if how == "raise":
        raise RuntimeError("this try raises")
    if how == "fail":
        raise AirflowFailException("this try fails for good")
    if how == "skip":
        write(ti.dag_id, what="skip", **about)
        raise AirflowSkipException("this try skips")
    if how.startswith("exit"):
        sys.exit(int(how[-1]))
    write(ti.dag_id, what="done", **about)
    return {"claim": claim, "sequences": sequences}


def function(task: dict[str, Any], crossed: bool) -> Any:
    """The function of a task that holds its claim."""

    def usual(claim: Any, country: str = "") -> Any:
        sequences = list(claim.sequences) if hasattr(claim, "sequences") else list(range(claim.first, claim.last + 1))
        return act(task, claim.id, sequences, country)

    def generator(claim: Any, country: str = "") -> Iterator[Any]:
        yield usual(claim, country)

    def lazy(claim: Any, country: str = "") -> Any:
        return (usual(each, country) for each in [claim])

    def coroutine(claim: Any, country: str = "") -> Any:
        async def later() -> Any:
            return usual(claim, country)

        return later()

    chosen = {"usual": usual, "generator": generator, "lazy": lazy, "coroutine": coroutine}[task["body"]]
    if crossed:
        return chosen

    def alone(claim: Any) -> Any:
        return chosen(claim)

    def generated(claim: Any) -> Iterator[Any]:
        yield usual(claim)

    return generated if task["body"] == "generator" else alone


SCRIPT = """
sleep {seconds}
how=$(echo '{tries}' | cut -d, -f$(( {{{{ ti.try_number }}}} < 3 ? {{{{ ti.try_number }}}} : 3 )))
case $how in
    ok) ;;
    skip) exit 99 ;;
    *) exit 1 ;;
esac
echo '{{"dag": "{{{{ ti.dag_id }}}}", "what": "done", "run": "{{{{ ti.run_id }}}}", "task": "{{{{ ti.task_id }}}}",' \\
    '"index": {{{{ ti.map_index }}}}, "try": {{{{ ti.try_number }}}}, "claim": "{{{{ claim.id }}}}",' \\
    '"sequences": [], "country": "'"$COUNTRY"'"}}' >> {out}/{{{{ ti.dag_id }}}}.jsonl
"""


def script(task: dict[str, Any]) -> str:
    """The same as a script of Bash. There, `exit 0` means that the work is done, so it is not without evidence."""
    tries = ",".join("ok" if each == "exit 0" else each for each in task["tries"])
    return SCRIPT.format(seconds=task["seconds"], tries=tries, out=OUT)
