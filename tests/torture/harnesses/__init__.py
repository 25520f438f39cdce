"""The harnesses: each repeats one kind of fault and checks what is left."""
