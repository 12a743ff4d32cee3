"""Problems of optimal control: models with free inputs, objectives and the best values known, one file each.

``castfit.problems.load_control(name)`` loads one; ``cf.control(b.model, **b.question)`` answers it.
"""
