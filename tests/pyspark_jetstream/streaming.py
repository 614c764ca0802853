"""Running streaming queries until their end."""

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter


def run_to_the_end(writer: DataStreamWriter, path: str | None = None) -> StreamingQuery:
    """Process all messages that are available now.

    Spark gives the Python worker that plans a query ten seconds to start (``PythonWorkerFactory``), and no setting
    changes that. On a busy machine a worker takes longer. Then the query fails before its first batch and is restarted.
    """
    while True:
        query = writer.trigger(availableNow=True).start(path)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error):
                raise
        else:
            return query
