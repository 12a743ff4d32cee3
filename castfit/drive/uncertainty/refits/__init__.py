"""Many fits of one problem to other data, from the same start: what bootstrap, leave-out and coverage share."""
