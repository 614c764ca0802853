"""Running streaming queries.

Spark gives the Python worker that plans a query ten seconds to start (``PythonWorkerFactory``), and no setting changes
that. On a busy machine a worker takes longer. Then the query fails before its first batch, and is started again here.
"""

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from demo.service import until

_TOO_SLOW = "Python worker failed to connect back"


def run_to_the_end(writer: DataStreamWriter, path: str | None = None) -> StreamingQuery:
    """Process all messages that are available now."""
    while True:
        query = writer.trigger(availableNow=True).start(path)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if _TOO_SLOW not in str(error):
                raise
        else:
            return query


def begin(writer: DataStreamWriter, path: str | None = None) -> StreamingQuery:
    """Start a query that goes on, and return it when it has begun to wait for messages."""
    query = writer.start(path)
    until("the query to begin", lambda: query.lastProgress or query.exception(), seconds=240)
    if (error := query.exception()) is None:
        return query
    if _TOO_SLOW not in str(error):
        raise error
    return begin(writer, path)
