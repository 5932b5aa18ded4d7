//! A pool according to the cluster's map.

use onefold_core::object::PoolKind;
use serde_json::Value;

/// The application that pools of a store are tagged with.
pub(super) const APPLICATION: &str = "onefold";

/// The tag of a metadata pool with the number of its chunk pool.
pub(super) const CHUNKS: &str = "chunk-pool";

/// Types of pools in a cluster's map.
const REPLICATED: u64 = 1;
const ERASURE: u64 = 3;

/// Bytes of a stripe in each part, where nobody said otherwise.
const STRIPE_UNIT: u64 = 4096;

/// A pool according to the cluster's map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolInfo {
    /// The number, which no other pool ever has.
    pub id: i64,
    /// The name.
    pub name: String,
    /// The kind of the pool: which operations its objects allow.
    pub kind: PoolKind,
    /// Copies of what is in it, or data and parity parts together.
    pub size: u64,
    /// Copies or parts below which the pool accepts no operations.
    pub min_size: u64,
    /// Data parts of an erasure-coded pool; 1 for a replicated one.
    pub data_parts: u64,
    /// Somebody made a snapshot of the pool.
    pub has_snapshots: bool,
    /// True when the pool is a cache of another one, or has one.
    pub is_tiered: bool,
    /// Somebody said that it is for Onefold.
    pub enabled: bool,
    /// The number of the chunk pool, when it is the metadata pool of a store.
    pub chunks: Option<i64>,
}

impl PoolInfo {
    /// Bytes of disk for a byte of data.
    #[must_use]
    pub fn copies(&self) -> f64 {
        self.size as f64 / self.data_parts.max(1) as f64
    }

    pub(super) fn parse(pool: &Value) -> Option<PoolInfo> {
        let kind = match pool["type"].as_u64()? {
            REPLICATED => PoolKind::Replicated,
            ERASURE => PoolKind::Erasure,
            _ => return None,
        };
        let some = |list: &Value| list.as_array().is_some_and(|list| !list.is_empty());
        Some(PoolInfo {
            id: pool["pool"].as_i64()?,
            name: pool["pool_name"].as_str()?.to_owned(),
            kind,
            size: pool["size"].as_u64()?,
            min_size: pool["min_size"].as_u64()?,
            // A stripe has a unit of 4 KiB in each data part.
            data_parts: if kind == PoolKind::Erasure {
                pool["stripe_width"].as_u64()? / STRIPE_UNIT
            } else {
                1
            },
            has_snapshots: some(&pool["pool_snaps"]),
            is_tiered: some(&pool["tiers"]) || pool["tier_of"].as_i64().is_some_and(|of| of >= 0),
            enabled: pool["application_metadata"][APPLICATION].is_object(),
            chunks: pool["application_metadata"][APPLICATION][CHUNKS]
                .as_str()
                .and_then(|id| id.parse().ok()),
        })
    }

    /// True when the pool never works with a single copy, or never has more.
    pub(super) fn survives(&self) -> bool {
        self.min_size > 1 || self.size == 1
    }
}
