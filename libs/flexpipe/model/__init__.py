"""The nouns: fleet, plan, gear, deployment, shift, sequence. Frozen values without behaviour beyond their own laws."""
