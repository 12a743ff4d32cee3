"""Transcriptions: an estimation problem becomes a staged least-squares problem."""
