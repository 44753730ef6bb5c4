"""What a plan delivers and what starting it takes: a roofline that a person can check. Pure arithmetic."""
