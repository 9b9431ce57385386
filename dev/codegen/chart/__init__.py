"""The model of the chart's values, which its schema is generated from. Bounds of settings come from the operator's own
settings.
"""
