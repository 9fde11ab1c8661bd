"""What learners of few-shot tasks share: a network as a function, derivatives in two ways, and two engines."""
