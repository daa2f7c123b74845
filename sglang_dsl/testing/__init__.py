"""The testing kit for programs: mock, fixtures, assertions."""
