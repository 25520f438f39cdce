# A partition: state, append, recovery.
