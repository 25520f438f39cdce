# System calls, locks and wake-ups.
