"""From a data set's own step fields to those of an RLDS step.

A `StepMapping` says what each field is made of; the mappings of well-known data
sets are there by name.
"""
