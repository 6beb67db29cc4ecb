"""The operator: reconcilers, admission, the one allocator and the scheduler extender."""
