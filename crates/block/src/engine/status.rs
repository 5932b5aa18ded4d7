//! The store's figures about itself.

use onefold_core::{VolumeId, VolumeLimits};

use crate::{
    counters::Counts,
    engine::{domain_room::kept, quota::charged_blocks},
    format::{
        catalogue::{NoDedup, Volume},
        domain_entry::DomainLimits,
    },
    kernel::{Kernel, Leftovers, VolumeState},
    scheme::room::reserve,
    traffic::Traffic,
};

/// A volume in a [`Status`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStatus {
    /// Its number.
    pub id: VolumeId,
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its blocks that are not deduplicated.
    pub no_dedup: NoDedup,
    /// How fast clients may use it.
    pub limits: VolumeLimits,
    /// Blocks that clients may map in it; 0 for any number.
    pub quota_blocks: u64,
    /// The number of the domain that it belongs to.
    pub domain: u32,
    /// The name of that, which is empty for the first one; `None` when it was erased: nobody reads the
    /// volume any more.
    pub domain_name: Option<String>,
    /// True when only a receive changes it.
    pub replica: bool,
    /// Snapshots of it.
    pub snapshots: u64,
    /// Its blocks that hold data, as of the last checkpoint; `None` where nobody has counted them.
    pub mapped_blocks: Option<u64>,
    /// Blocks that its quota charges, as of the last checkpoint: those that hold data, and the pages of its
    /// map beyond those that are free; `None` where nobody has counted them, and without a quota.
    pub charged_blocks: Option<u64>,
    /// Pages of its map, as of the last checkpoint; `None` when nobody has counted them since the store was
    /// opened.
    pub map_pages: Option<u64>,
    /// Its blocks that are known to be lost, as of the last checkpoint.
    pub lost_blocks: u64,
    /// What clients read and wrote; of a store at work alone.
    pub traffic: Option<Traffic>,
}

/// A domain with limits in a [`Status`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainStatus {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// Its limits, in blocks.
    pub limits: DomainLimits,
    /// Blocks that it stores, as of the last checkpoint; `None` when nobody knows: a page can't be read, or
    /// the limits are not durable yet.
    pub stored_blocks: Option<u64>,
}

/// A store at one moment. Sizes are in blocks of 4096 bytes unless they say otherwise.
#[derive(Clone, Debug)]
pub struct Status {
    /// First half of the store's id.
    pub id: u64,
    /// Blocks that data and tables can use.
    pub usable_blocks: u64,
    /// Blocks that new data can use now, neither the store's reserve nor those of domains counted; those that a growing store can
    /// still ask of its host are.
    pub free_blocks: u64,
    /// Blocks that nothing holds, those included that a growing store can still ask of its host.
    pub unused_blocks: u64,
    /// Free blocks that are kept for the reserves of domains.
    pub kept_blocks: u64,
    /// Logical blocks that hold data, as of the last checkpoint.
    pub mapped_blocks: u64,
    /// Physical blocks that hold data, as of the last checkpoint.
    pub live_blocks: u64,
    /// Physical blocks among them that are packs, of several compressed blocks each.
    pub packs: u64,
    /// Logical blocks that are in packs.
    pub fragments: u64,
    /// Blocks of tables, as of the last checkpoint.
    pub table_blocks: u64,
    /// Logical blocks that pending discards still cover at most: space still to come.
    pub pending_blocks: u64,
    /// Records that no checkpoint holds, and the most there may be.
    pub uncommitted_records: u64,
    /// See [`uncommitted_records`](Self::uncommitted_records).
    pub records_max: u64,
    /// With leaves in place: those with changes that wait for another write of theirs.
    pub delayed_leaves: u64,
    /// Zones that no checkpoint holds, and the most there may be.
    pub uncommitted_zones: u64,
    /// See [`uncommitted_zones`](Self::uncommitted_zones).
    pub zones_max: u64,
    /// Entries of the fingerprint index in memory.
    pub index_entries: u64,
    /// Entries of the fingerprint index on disk.
    pub index_on_disk: u64,
    /// Entries that found no room in memory since the last checkpoint.
    pub index_refused: u64,
    /// True when the index knows every stored block.
    pub index_complete: bool,
    /// Page cache hits.
    pub cache_hits: u64,
    /// Page cache misses.
    pub cache_misses: u64,
    /// Bytes of memory that grow with the data.
    pub memory_bytes: u64,
    /// Recoveries and openings since the store was made.
    pub epoch: u32,
    /// Why writes were stopped, if they were.
    pub stopped: Option<String>,
    /// Volumes, by name.
    pub volumes: Vec<VolumeStatus>,
    /// Domains with limits, by number.
    pub domains: Vec<DomainStatus>,
    /// How many snapshots there are.
    pub snapshots: u64,
    /// Volumes that were made from a snapshot or another volume, as of the last checkpoint.
    pub clones: u64,
    /// Acts (snapshots, clones, rollbacks, parts of receives) that no checkpoint has made durable, and
    /// those that wait for room.
    pub acts_waiting: u64,
    /// True while checkpoints free what deleted volumes and snapshots leave behind.
    pub leftovers: bool,
    /// Pages of maps that nothing counts for and that wait to be handed over, as far as is known.
    pub orphan_pages: u64,
    /// True when a page of an old snapshot could not be read, so that counts may be too high.
    pub inexact: bool,
    /// The counters since the store was opened.
    pub counts: Counts,
}

/// The store at this moment.
pub(crate) fn status(kernel: &Kernel) -> Status {
    use std::sync::atomic::Ordering::Relaxed;
    let (index_entries, index_refused) = {
        let index = kernel.index.lock();
        (index.len(), index.refused())
    };
    let memory_bytes = kernel.memory();
    let index_complete = kernel.index_complete();
    let (reserve, delayed_leaves) =
        (reserve(&kernel.geometry()), kernel.pages.held().changes() as u64);
    let state = kernel.state.lock();
    let tables = &state.overlays.tables().state;
    let maps = &state.overlays.tables().volumes;
    let status_of = |id: VolumeId, volume: &VolumeState| VolumeStatus {
        id,
        name: volume.name.clone(),
        bytes: volume.blocks * 4096,
        no_dedup: volume.no_dedup.clone(),
        limits: volume.limits,
        quota_blocks: volume.quota,
        domain: volume.domain,
        domain_name: kernel.domain_name(volume.domain),
        replica: volume.replica_of.is_some(),
        snapshots: state.volumes.snapshots(id).count() as u64,
        mapped_blocks: maps
            .get(&id)
            .and_then(|map| map.sharing.mapped)
            .filter(|_| tables.shares_pages()),
        charged_blocks: maps
            .get(&id)
            .filter(|_| tables.shares_pages() && volume.quota > 0)
            .and_then(|map| charged_blocks(kernel, volume.quota, map)),
        map_pages: maps.get(&id).and_then(Volume::pages).filter(|_| tables.shares_pages()),
        lost_blocks: maps.get(&id).map_or(0, |map| map.sharing.lost),
        traffic: None,
    };
    let kept = kept(kernel, &state, None);
    let domain_of = |(&number, &limits): (&u32, &DomainLimits)| DomainStatus {
        number,
        name: kernel.domain_name(number).unwrap_or_default(),
        limits,
        stored_blocks: tables
            .domains
            .iter()
            .find(|entry| entry.number == number)
            .and_then(|entry| entry.stored),
    };
    let mut volumes: Vec<VolumeStatus> = state
        .volumes
        .iter()
        .filter(|(_, volume)| volume.is_any_volume())
        .map(|(id, volume)| status_of(*id, volume))
        .collect();
    let receiving = state.volumes.receiving().count() as u64;
    let snapshots = state.volumes.count() as u64 - volumes.len() as u64 - receiving;
    volumes.sort_by(|a, b| a.name.cmp(&b.name));
    Status {
        id: kernel.identity.id,
        usable_blocks: kernel.geometry().usable_blocks(),
        free_blocks: (state.allocator.free() + state.allocator.idle.growable())
            .saturating_sub(reserve + kept),
        unused_blocks: state.allocator.free() + state.allocator.idle.growable(),
        kept_blocks: kept,
        domains: state.domains.all().iter().map(domain_of).collect(),
        mapped_blocks: tables.mapped_blocks,
        live_blocks: tables.live_blocks,
        packs: tables.packs,
        fragments: tables.fragments,
        table_blocks: tables.used_blocks.saturating_sub(tables.live_blocks),
        pending_blocks: state
            .overlays
            .tables()
            .discards
            .iter()
            .fold(0, |sum, (_, start, span)| sum.saturating_add(span.end - start)),
        uncommitted_records: state.uncommitted_records(),
        records_max: kernel.settings.records_max,
        delayed_leaves,
        uncommitted_zones: state.allocator.list.listed() as u64,
        zones_max: state.allocator.list.limit() as u64,
        index_entries,
        index_on_disk: tables.index_entries,
        index_refused,
        index_complete,
        cache_hits: kernel.pages.hits.load(Relaxed),
        cache_misses: kernel.pages.misses.load(Relaxed),
        memory_bytes,
        epoch: state.epoch,
        stopped: state.fail_stop.reason().map(ToString::to_string),
        volumes,
        snapshots,
        clones: state.overlays.tables().volumes.values().filter(|volume| volume.is_clone()).count()
            as u64,
        acts_waiting: (state.acts_ahead().count() + state.act_turn.waiting()) as u64,
        leftovers: state.leftovers == Leftovers::Some
            || state.overlays.tables().volumes.values().any(Volume::is_leaving),
        orphan_pages: state.orphans,
        inexact: tables.inexact,
        counts: kernel.counters.counts(),
    }
}
