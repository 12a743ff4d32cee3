"""Models compared by what they explain: information criteria side by side, and the likelihood ratio test.

In flow results of fits to the same data; nothing is fitted but what tells whether one model contains another.  Out come
a `ModelTable`, whose sentences say which model to prefer, and a `LikelihoodRatio`.  Read `table` first.
"""
