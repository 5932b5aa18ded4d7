//! OrderMergeDedup.
