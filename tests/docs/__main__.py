"""Run the blocks of pages in the current directory: `python -m tests.docs PAGE...`."""

import sys

from tests.docs.pages import main

sys.exit(main(sys.argv[1:]))
