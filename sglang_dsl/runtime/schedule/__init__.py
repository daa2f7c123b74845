"""Requests, budget, policies: yields a StepPlan of integers, takes a StepResult. No torch."""
