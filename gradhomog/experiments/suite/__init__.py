"""The suite: where a method stands on fixed problems, and how much tuning of loss weights it saves."""
