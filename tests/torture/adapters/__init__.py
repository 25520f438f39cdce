"""The simulator, the fuzzer and the Hypothesis state machines as harnesses."""
