"""Consumers and producers for coroutines of asyncio and trio.

Each client has one thread, which makes the calls that can wait. `call_thread.py` has the rules of a
cancelled call.
"""
