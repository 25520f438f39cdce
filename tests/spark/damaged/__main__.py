"""`python -m tests.spark.damaged`: damage files, then read them through Spark."""

import sys

from tests.spark.damaged.pairs import main

sys.exit(main())
