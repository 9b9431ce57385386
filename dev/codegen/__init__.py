"""Generates files of the repository from code: the CRD, the reference pages, the dashboards, and the schema and README of the chart.

Each step is a function of the repository's root. The models stay where they ship: `trainyard.api` and `trainyard.controller`.
"""
