"""Whether a program keeps the heartbeat protocol: a scripted agent, and a judgement point by point.

The kit runs a program as the agent would, plays the agent by a script, and says which parts of
docs/reference/heartbeat-protocol.md it saw kept and broken. It judges what can be seen from outside, and names what it
could not judge.
"""
