"""The DAG `eventful`, whose changes are published (test_run_events.py): a task in a group, and one that fails."""

from airflow.sdk import Asset, dag, task, task_group

made = Asset("made by eventful")


@dag(schedule=None)
def eventful() -> None:
    @task_group
    def group() -> None:
        @task(outlets=[made])
        def makes() -> None: ...

        makes()

    @task
    def waits() -> None:
        import time

        time.sleep(3)

    @task(retries=1)
    def fails() -> None:
        raise ValueError("a secret")

    group() >> waits() >> fails()


eventful()
