"""The bootstrap: how estimates scatter when data are drawn anew, and the intervals that follow."""
