"""Tests of eoslog; they mirror the package's tree, plus `reference`, `properties`, `faults` and `rows`."""

import signal

# A shell lets what it starts in the background ignore Ctrl-C, and so would each program under test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
