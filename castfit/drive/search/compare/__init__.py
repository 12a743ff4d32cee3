"""Methods compared from the same starts."""
