"""A rank that runs one function call: ``python -m shoal.testing.worker CALL RESULT``."""

import sys
from pathlib import Path

from shoal.testing.call import read_call, write_exception, write_value


def main() -> None:
    call_path, result_path = (Path(argument) for argument in sys.argv[1:])
    try:
        write_value(result_path, read_call(call_path).run())
    except BaseException as error:
        write_exception(result_path, error)
        raise  # what an uncaught exception does to a job is part of what is tested


if __name__ == "__main__":
    main()
