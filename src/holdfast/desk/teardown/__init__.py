"""The gate before a rented place is ended: what must hold, the approval, the provider's verb, and whether it is gone.

Nothing here calls a rental's interface or ends anything: the last step is a verb that a person types.
"""
