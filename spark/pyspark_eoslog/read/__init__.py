"""Reading: planning on the driver, tasks on the executors, streams."""
