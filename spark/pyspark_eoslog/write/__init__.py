"""Writing: encoding and staging on the executors, publishing on the driver."""
