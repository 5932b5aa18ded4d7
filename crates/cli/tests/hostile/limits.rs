//! Tables and lists whose limits a client can reach: rule 0.
