//! The pools of a cluster, and those that belong to a store.
//!
//! A store is found by the tag of its metadata pool: application `onefold`, with the number of the
//! chunk pool. Tags are in the cluster's map, so that nothing has to be stored outside.

use std::{path::PathBuf, time::Duration};

use onefold_core::{
    Error, Kind, Result,
    object::{Held, Space},
};
use serde_json::{Value, json};

use super::{
    Connection,
    pool_info::{APPLICATION, CHUNKS, PoolInfo},
};

/// A cluster, and a store in it: `rados:[CONFIGURATION][#METADATA-POOL]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The cluster's configuration file; `None` for the usual one.
    pub configuration: Option<PathBuf>,
    /// The store's metadata pool; `None` when the cluster has one store only.
    pub metadata: Option<String>,
}

impl Location {
    /// Reads `rados:…`; `None` for something else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Location> {
        let rest = text.strip_prefix("rados:")?;
        let (path, pool) =
            rest.split_once('#').map_or((rest, None), |(path, pool)| (path, Some(pool)));
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Some(Location {
            configuration: some(path).map(PathBuf::from),
            metadata: pool.and_then(some),
        })
    }
}

/// The free space of the cluster for a pool.
pub(super) struct Left {
    pub(super) free: u64,
    pub(super) total: u64,
}

impl Connection {
    /// All pools that can hold objects.
    ///
    /// # Errors
    /// The cluster's.
    pub fn pools(&self) -> Result<Vec<PoolInfo>> {
        let map = self.command(&json!({"prefix": "osd dump", "format": "json"}))?;
        Ok(map["pools"].as_array().into_iter().flatten().filter_map(PoolInfo::parse).collect())
    }

    /// A pool by its name.
    ///
    /// # Errors
    /// `NotFound`, and the cluster's.
    pub fn pool(&self, name: &str) -> Result<PoolInfo> {
        let pool = self.pools()?.into_iter().find(|pool| pool.name == name);
        pool.ok_or_else(|| {
            Error::new(Kind::NotFound, format!("the cluster has no pool '{}'", name.escape_debug()))
        })
    }

    /// The pools of the store at `location`.
    ///
    /// # Errors
    /// `NotFound` when there is none, or several and none was named.
    pub fn find(&self, location: &Location) -> Result<(PoolInfo, PoolInfo)> {
        let pools = self.pools()?;
        let stores: Vec<&PoolInfo> = pools
            .iter()
            .filter(|pool| {
                pool.chunks.is_some()
                    && location.metadata.as_ref().is_none_or(|name| pool.name == *name)
            })
            .collect();
        let metadata = match stores[..] {
            [one] => one,
            [] => {
                return Err(Error::new(
                    Kind::NotFound,
                    "there is no store in the cluster; onefold create cluster makes one",
                ));
            }
            _ => {
                let names: Vec<&str> = stores.iter().map(|pool| pool.name.as_str()).collect();
                let what = format!(
                    "the cluster has several stores; name one by its metadata pool, as rados:#{}",
                    names.join(" or rados:#")
                );
                return Err(Error::new(Kind::NotFound, what));
            }
        };
        let chunks = pools.iter().find(|pool| Some(pool.id) == metadata.chunks);
        let chunks = chunks.ok_or_else(|| {
            Error::new(
                Kind::NotFound,
                format!("the chunk pool of store '{}' is gone", metadata.name.escape_debug()),
            )
        })?;
        Ok((metadata.clone(), chunks.clone()))
    }

    /// Refuses pools that would lose what a store has: with snapshots, whose rollback names chunks
    /// that were removed, with tiers, and those that go on with a single copy, unless `force`.
    ///
    /// # Errors
    /// `Unsupported`, with the reason.
    pub fn check_pools(&self, pools: &[&PoolInfo], force: bool) -> Result<()> {
        let refused = |what: String| Err(Error::new(Kind::Unsupported, what));
        for pool in pools {
            if pool.has_snapshots {
                return refused(format!(
                    "pool '{}' has snapshots; a rollback would name chunks that were removed",
                    pool.name.escape_debug()
                ));
            }
            if pool.is_tiered {
                return refused(format!("pool '{}' has a cache tier", pool.name.escape_debug()));
            }
            if !pool.survives() && !force {
                return refused(format!(
                    "pool '{}' goes on with a single copy (min_size 1), which loses writes when \
                     that fails too; --force takes it",
                    pool.name.escape_debug()
                ));
            }
        }
        Ok(())
    }

    /// Tags two pools as those of a store, so that [`find`](Self::find) finds it. A pool that is
    /// tagged already needs no right to tag.
    ///
    /// # Errors
    /// The cluster's.
    pub fn tag(&self, metadata: &PoolInfo, chunks: &PoolInfo) -> Result<()> {
        for pool in [metadata, chunks].iter().filter(|pool| !pool.enabled) {
            let enable = json!({
                "prefix": "osd pool application enable", "pool": pool.name, "app": APPLICATION,
                "yes_i_really_mean_it": true,
            });
            self.command(&enable)?;
        }
        if metadata.chunks == Some(chunks.id) {
            return Ok(());
        }
        let set = json!({
            "prefix": "osd pool application set", "pool": metadata.name, "app": APPLICATION,
            "key": CHUNKS, "value": chunks.id.to_string(),
        });
        self.command(&set).map(|_| ())
    }

    fn df(&self) -> Result<Value> {
        self.command(&json!({"prefix": "df", "format": "json"}))
    }

    /// True while parts or copies are missing, or are moved.
    pub(super) fn recovers(&self) -> Result<bool> {
        let status = self.command(&json!({"prefix": "status", "format": "json"}))?;
        let count = |key: &str| status["pgmap"][key].as_u64().unwrap_or(0);
        Ok(["degraded_objects", "misplaced_objects", "recovering_objects_per_sec"]
            .into_iter()
            .any(|key| count(key) > 0))
    }

    /// The space that remains for a pool, with its copies.
    pub(super) fn left(&self, pool: &str) -> Result<Left> {
        let df = self.df()?;
        let stats = df["pools"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|found| found["name"] == pool)
            .map(|found| &found["stats"]);
        let number = |key: &str| stats.and_then(|stats| stats[key].as_u64());
        match (number("max_avail"), number("stored")) {
            (Some(free), Some(stored)) => Ok(Left { free, total: free + stored }),
            _ => Err(Error::new(Kind::Io, "the cluster does not tell its free space")),
        }
    }

    /// What a pool holds, by the cluster's own counts.
    pub(super) fn held(&self, pool: &str) -> Result<Option<Held>> {
        let df = self.df()?;
        let mut pools = df["pools"].as_array().into_iter().flatten();
        let stats = pools.find(|found| found["name"] == pool).map(|found| &found["stats"]);
        let number = |key: &str| stats.and_then(|stats| stats[key].as_u64());
        Ok(number("objects").zip(number("stored")).map(|(objects, bytes)| Held { objects, bytes }))
    }

    /// Space of pools together and of the cluster, all copies counted.
    pub(super) fn space(&self, pools: &[String]) -> Result<Space> {
        let df = self.df()?;
        let mine = df["pools"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|pool| pools.iter().any(|name| pool["name"] == name.as_str()));
        let used = mine.filter_map(|pool| pool["stats"]["bytes_used"].as_u64()).sum();
        Ok(Space { total: used + df["stats"]["total_avail_bytes"].as_u64().unwrap_or(0), used })
    }
}

/// How long an operation may be without a reply, unless somebody says otherwise.
pub const TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use onefold_core::object::PoolKind;

    use super::*;

    #[test]
    fn locations_name_a_configuration_and_a_pool() {
        let at = |configuration: Option<&str>, pool: Option<&str>| {
            Some(Location {
                configuration: configuration.map(PathBuf::from),
                metadata: pool.map(str::to_owned),
            })
        };
        assert_eq!(Location::parse("rados:"), at(None, None));
        assert_eq!(Location::parse("rados:/etc/ceph/a.conf"), at(Some("/etc/ceph/a.conf"), None));
        assert_eq!(Location::parse("rados:#meta"), at(None, Some("meta")));
        assert_eq!(Location::parse("rados:c.conf#meta"), at(Some("c.conf"), Some("meta")));
        assert_eq!(Location::parse("pool"), None);
    }

    #[test]
    fn pools_are_read_from_the_map() {
        let pool = json!({
            "pool": 7, "pool_name": "m", "type": 1, "size": 2, "min_size": 1, "pool_snaps": [],
            "tiers": [], "tier_of": -1,
            "application_metadata": {"onefold": {"chunk-pool": "9"}},
        });
        let found = PoolInfo::parse(&pool).unwrap();
        assert_eq!(
            (found.id, found.kind, found.chunks, found.survives()),
            (7, PoolKind::Replicated, Some(9), false)
        );
        assert!(found.enabled);
        assert_eq!((found.has_snapshots, found.is_tiered, found.copies()), (false, false, 2.0));
        assert!(PoolInfo::parse(&json!({"pool": 7})).is_none());
    }
}
