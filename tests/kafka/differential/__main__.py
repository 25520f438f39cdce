"""Send random sequences of requests to a real broker and to eoslog.

Run it as `python -m tests.kafka.differential`.
"""

import sys

from tests.kafka.differential.comparison import capture, main

if sys.argv[1:] == ["--capture"]:
    sys.exit(capture())
sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
