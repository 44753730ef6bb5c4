"""What a plan delivers and what starting it takes: a roofline that a person can check. Pure arithmetic.

`devices` is the table of GPUs, `memory` says what fits, `collectives` what ranks spend talking, `steps` what one
step of a plan takes, `outlook` what a plan or gear delivers under a load, `starting` how long a cold start is.
Called by gears, planning, costing and the emulated engine's adapter; never measures anything and never reads a
file.
"""
