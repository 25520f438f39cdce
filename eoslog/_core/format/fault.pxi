# Converting C statuses into Python exceptions.
