"""How often the tasks of one job ran: a task that wrote outside of a transaction must have run once.

Invariant: a second run of a task that ended shows, be it another attempt of a failed one or one whose rows
were lost on the way to the shuffle; Spark adds an accumulator up for every run that ended.
"""

from pyspark import SparkContext, TaskContext
from pyspark.accumulators import AccumulatorParam

Run = tuple[str, int, int]


class _Concatenated(AccumulatorParam[list[Run]]):
    def zero(self, value: list[Run]) -> list[Run]:
        return []

    def addInPlace(self, value1: list[Run], value2: list[Run]) -> list[Run]:
        return value1 + value2


class TaskRuns:
    """Made on the driver, handed to the tasks, asked after the job."""

    def __init__(self, context: SparkContext) -> None:
        self._ended = context.accumulator(list[Run](), _Concatenated())

    def note(self, part: str) -> None:
        """In a task of the job's part of that name: say that it ends."""
        task = TaskContext.get()
        assert task is not None, "only inside of a Spark task"
        self._ended.add([(part, task.partitionId(), task.attemptNumber())])

    def show_a_repetition(self) -> bool:
        """Tell, after the job, whether some task ran more than once."""
        ended = self._ended.value
        return len({run[:2] for run in ended}) < len(ended) or any(attempt for _, _, attempt in ended)
