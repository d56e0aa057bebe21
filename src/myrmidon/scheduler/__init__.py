"""The verbs: a file per thing that can happen. No SQL, no clock, no chance in here."""
