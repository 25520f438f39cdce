"""Kill drivers, workers and executors inside Spark jobs.

Run it as `python -m tests.spark.torture`.
"""

import sys

from tests.spark.torture.kills import main

sys.exit(main())
