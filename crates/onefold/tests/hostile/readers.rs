//! Hostile archives and stores that somebody opens: rule 9.
